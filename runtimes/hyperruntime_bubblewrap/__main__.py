"""Remove what a dead owner left: ``python -m hyperruntime_bubblewrap NAME=VALUE``, run by its guard."""

from __future__ import annotations

import sys

from hyperruntime_bubblewrap.driver import BubblewrapDriver

if __name__ == "__main__":
    label, _, value = sys.argv[1].partition("=")
    for record in BubblewrapDriver().containers():
        if record.labels.get(label) == value:
            BubblewrapDriver().remove_container(record.id)
