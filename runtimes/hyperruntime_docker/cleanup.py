"""Remove a dead owner's containers: its guard runs ``python -P -m hyperruntime_docker.cleanup
LABEL``.

It lists containers at most five times, until two lists in a row are empty: the daemon may still
create a container that the owner requested before it died.
"""

from __future__ import annotations

import sys
import time

from hyperruntime.errors import EngineError, HyperRuntimeError
from hyperruntime_docker.client import Engine, translated
from hyperruntime_docker.container import remove

_ROUNDS = 5
_PAUSE_S = 1.0


def remove_labelled(label: str) -> None:
    """Remove all containers with a label.

    Raises:
        HyperRuntimeError: the daemon does not answer, or there was a container in the last round.
    """
    engine = Engine()
    quiet = 0
    failed: HyperRuntimeError | None = None
    for _ in range(_ROUNDS):
        with translated("containers cannot be listed"):
            found = engine.api().containers(all=True, filters={"label": label})
        failed = None
        for entry in found:
            try:
                remove(engine, str(entry["Id"]))
            except HyperRuntimeError as error:  # the others must go all the same
                failed = error
        quiet = 0 if found else quiet + 1
        if quiet == 2:
            break
        time.sleep(_PAUSE_S)
    if failed is None and not quiet:
        failed = EngineError(
            f"there are ever more containers with the label {label}; remove them again"
        )
    if failed is not None:
        raise failed


if __name__ == "__main__":
    try:
        remove_labelled(sys.argv[1])
    except HyperRuntimeError as error:
        sys.exit(str(error))
