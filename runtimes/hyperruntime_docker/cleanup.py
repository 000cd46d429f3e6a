"""Remove every container with a label: ``python -m hyperruntime_docker.cleanup LABEL``, run when its owner is dead.

It looks again until nothing was found twice, because the daemon may still be making a container that a dying owner
had just asked for.
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
    """Remove what carries a label.

    Raises:
        HyperRuntimeError: the daemon does not answer, or refused.
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
