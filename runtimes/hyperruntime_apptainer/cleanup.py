"""Remove what a dead owner left: ``python -m hyperruntime_apptainer.cleanup NAME=VALUE``, run by its guard."""

from __future__ import annotations

import sys

from hyperruntime_apptainer.records import remove_labelled

if __name__ == "__main__":
    remove_labelled(sys.argv[1])
