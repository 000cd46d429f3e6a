"""Remove a dead owner's containers: its guard runs ``python -m hyperruntime_docker.cleanup LABEL``.

It lists containers again until two lists are empty, because the daemon may still create a container that the owner
requested before it died.
"""

from __future__ import annotations

import sys
import time

from hyperruntime.errors import HyperRuntimeError
from hyperruntime_docker.client import Engine, translated
from hyperruntime_docker.container import remove

_ROUNDS = 5
_PAUSE_S = 1.0


def remove_labelled(label: str) -> None:
    """Remove all containers with a label.

    Raises:
        HyperRuntimeError: the daemon does not answer or refuses.
    """
    engine, quiet = Engine(), 0
    for _ in range(_ROUNDS):
        with translated("containers cannot be listed"):
            found = engine.api().containers(all=True, filters={"label": label})
        for entry in found:
            remove(engine, str(entry["Id"]))
        quiet = 0 if found else quiet + 1
        if quiet == 2:
            break
        time.sleep(_PAUSE_S)


if __name__ == "__main__":
    try:
        remove_labelled(sys.argv[1])
    except HyperRuntimeError as error:
        sys.exit(str(error))
