"""The directory through which the host and the container exchange commands and streams."""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path

from hyperruntime.errors import StorageError

EXCHANGE_TARGET = "/run/hyperruntime"
_PROGRAMS = ("supervisor.sh", "lane.sh", "shell.sh", "state.sh")


def make_exchange(private_dir: str, exports: bytes) -> str:
    """Make the directory that is mounted into the container, with the shell programs in it; return its path.

    Only its owner can list it, so that no other user in the container finds a lane.

    Args:
        private_dir: directory of the owner in which it is made.
        exports: shell code that sets the environment, put before the supervisor's program: a command line would show
            the values to all users of the machine.

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
