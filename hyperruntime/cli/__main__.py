"""``python -m hyperruntime.cli``: the same as ``hyperrun``."""

from __future__ import annotations

import sys

from hyperruntime.cli import main

if __name__ == "__main__":
    sys.exit(main())
