"""Tests of one framework at a time, each in an environment that has it: `scripts/integrations NAME`
runs them.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

import hyperruntime as hr

_CHOSEN = os.environ.get("HYPERRUNTIME_INTEGRATION", "").split(",")
collect_ignore = [
    path.name
    for path in Path(__file__).parent.iterdir()
    if path.is_dir() and path.name not in _CHOSEN
]


@pytest.fixture
def with_memory_limit(runtime: hr.Runtime) -> AbstractContextManager[Any]:
    """Return the context of a use with a limit of memory, which is refused by name where the engine
    has none.
    """
    if runtime.info.limits.get("memory_bytes", "no") != "no":
        return nullcontext()
    return pytest.raises(Exception, match=r"cannot honour limits\.memory_bytes")
