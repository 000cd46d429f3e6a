"""The directory through which host and container hand each other work."""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path

from hyperruntime.errors import StorageError

EXCHANGE_TARGET = "/run/hyperruntime"
_PROGRAMS = ("supervisor.sh", "lane.sh", "shell.sh", "state.sh")


def make_exchange(private_dir: str, exports: bytes) -> str:
    """Make the directory that is mounted into the container, with the shell programs in it; return its path.

    The environment comes with the first of them: a command line is read by all users of the machine. Only its owner
    can list it, so that no other user inside finds a lane.

    Raises:
        StorageError: it cannot be made.
    """
    exchange = os.path.join(private_dir, "x")
    try:
        os.makedirs(exchange, mode=0o711)
        os.chmod(exchange, 0o711)
        for name in _PROGRAMS:
            path = Path(exchange, name)
            program = resources.files("hyperruntime.exec").joinpath("sh", name).read_bytes()
            path.write_bytes(exports + program if name == "supervisor.sh" else program)
            path.chmod(0o644)
    except OSError as error:
        raise StorageError(f"the exchange directory cannot be made: {error}; free space or set TMPDIR") from error
    return exchange
