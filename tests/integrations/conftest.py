"""Tests of one framework at a time, each in an environment that has it: `scripts/integrations NAME` runs them."""

from __future__ import annotations

import os
from pathlib import Path

_CHOSEN = os.environ.get("HYPERRUNTIME_INTEGRATION")
collect_ignore = [path.name for path in Path(__file__).parent.iterdir() if path.is_dir() and path.name != _CHOSEN]
