"""``python -m hyperruntime``: the same as ``hyperrun``.

In a directory that somebody else may have written, ``python -P -m hyperruntime`` is needed: without
``-P`` Python looks for the package itself there, before any line of it runs.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        del sys.path[0]  # the current directory: the modules that follow are not taken from it
    from hyperruntime.cli import main

    sys.exit(main())
