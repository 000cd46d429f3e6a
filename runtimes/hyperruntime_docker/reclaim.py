"""Run a host program as the daemon's root: ``python -m hyperruntime_docker.reclaim PROGRAM
ARGUMENT...``.

For ordinary users whose containers wrote files of root and of others; users of the daemon have this
power anyway. The program runs in a container of an empty image with the host's userland. The parent
directory of each path among its arguments is mounted: read-only for a file, writable for a
directory.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence

from hyperruntime.errors import EngineError, HyperRuntimeError
from hyperruntime.spec import Mount
from hyperruntime_docker.client import Engine
from hyperruntime_docker.trial import open_trial

_ENDED = "ended with"
_LAST = "and that was all"


def run_as_daemon(args: Sequence[str]) -> int:
    """Run a program to its end, print its output on standard error and return its exit code.

    Raises:
        HyperRuntimeError: the daemon does not answer or refuses.
    """
    script = (
        f"{shlex.join(args)} </dev/null; code=$?; echo; echo {_ENDED} $code; echo {_LAST}; read "
        "-r word"
    )
    with open_trial(Engine()) as trial:
        printed = trial.run_script(script, needed_mounts(args), _LAST)
    said, _, code = printed.removesuffix(f"{_LAST}\n").rpartition(f"{_ENDED} ")
    if not code.strip().isdigit():
        raise EngineError(f"the container of {args[0]} ended too early; see `hyperrun doctor`")
    print(said, file=sys.stderr, end="")
    return int(code)


def needed_mounts(args: Sequence[str]) -> list[Mount]:
    """Return the mounts that a host program and the paths among its arguments need."""
    folders = {sys.base_prefix: True}
    for path in filter(os.path.isabs, args):
        if os.path.lexists(path):
            folders[os.path.dirname(path)] = not os.path.isdir(path)
    outside = (folder for folder in folders if os.path.commonpath(["/usr", folder]) != "/usr")
    return [
        Mount(source=folder, target=folder, read_only=folders[folder]) for folder in sorted(outside)
    ]


if __name__ == "__main__":
    try:
        sys.exit(run_as_daemon(sys.argv[1:]))
    except HyperRuntimeError as error:
        sys.exit(str(error))
