"""Remove a dead owner's containers: its guard runs ``python -P -m hyperruntime_apptainer.cleanup
NAME=VALUE``.
"""

from __future__ import annotations

import sys

from hyperruntime_apptainer.records import remove_labelled

if __name__ == "__main__":
    remove_labelled(sys.argv[1])
