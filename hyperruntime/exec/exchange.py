"""The exchange directories of a runtime's containers.

An exchange directory is mounted read-only in the container: a process there can use the FIFOs of
its lanes, but cannot create, replace or rename files. A lane's directory has a random name in a
directory that only the container's main user can list, so the other users cannot reach each other's
lanes.

A file system may take half a millisecond to make a file after many were removed. So containers
share the files of the shell programs, and a lane gets the directory of one that has ended.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from functools import cache
from importlib import resources
from pathlib import Path

from hyperruntime.errors import write_error
from hyperruntime.host.temporary import STEP

EXCHANGE_TARGET = "/run/hyperruntime"
_SUPERVISOR = "supervisor.sh"
_PROGRAMS = ("lane.sh", "shell.sh", "state.sh")
_MOST_SPARE = 64


class Exchanges:
    """What the exchange directories of one owner share. Safe to use from many threads."""

    def __init__(self, private_dir: str) -> None:
        """Make nothing yet.

        Args:
            private_dir: directory of the owner; containers do not see it.
        """
        self._private_dir = private_dir
        self._spare: list[str] = []  # a list's append and pop are atomic

    def make(self, name: str, exports: bytes) -> tuple[str, str]:
        """Make the directory that is mounted into a container, with the shell programs in it.

        Only its owner can list it, so that no other user in the container finds a lane.

        Args:
            name: the container's name.
            exports: shell code that sets the environment, put before the supervisor's program: a
                command line would show the values to all users of the machine.

        Returns:
            A directory for the container's private files, and the exchange directory in it.

        Raises:
            StorageError: it cannot be made.
        """
        private = os.path.join(self._private_dir, name)
        exchange = os.path.join(private, "x")
        try:
            os.mkdir(private, mode=0o711)
            os.mkdir(exchange, mode=0o711)
            os.chmod(exchange, 0o711)
            _write(Path(exchange, _SUPERVISOR), exports + _program(_SUPERVISOR))
            for program in _PROGRAMS:
                self._link(program, f"{exchange}/{program}")
        except OSError as error:
            raise write_error(
                f"the exchange directory cannot be made: {error}; free space, or {STEP}", error
            ) from error
        return private, exchange

    def take_lane(self, path: str) -> bool:
        """Move the directory of a lane that has ended to a new path; return whether there was
        one.
        """
        try:
            os.rename(self._spare.pop(), path)
        except (IndexError, OSError):
            return False
        return True

    def give_lane(self, path: str) -> bool:
        """Keep the directory of a lane; return whether it was taken.

        No process of its container may be alive: it could still have the FIFOs.
        """
        if len(self._spare) >= _MOST_SPARE:
            return False
        spare = f"{self._private_dir}/lane-{secrets.token_hex(8)}"
        try:
            os.truncate(f"{path}/c", 0)  # the last command, with its environment
            os.rename(path, spare)
        except OSError:
            return False
        self._spare.append(spare)
        return True

    def _link(self, program: str, target: str) -> None:
        shared = f"{self._private_dir}/{program}"
        try:
            os.link(shared, target)
        except OSError:  # it is the first one, or the file system has no more links
            _write(Path(target), _program(program))
            with suppress(OSError):  # made meanwhile, or not possible here
                os.link(target, shared)


@cache
def _program(name: str) -> bytes:
    return resources.files("hyperruntime.exec").joinpath("sh", name).read_bytes()


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    path.chmod(0o644)
