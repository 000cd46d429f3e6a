"""Own a run directory, so that one process at a time works on it; imports errors, owner and storage.

The directory holds a record of its owner: machine, boot, pid and when the process started. A record whose owner is
dead is taken over; one of another machine or pid namespace is respected, because nobody can see from here whether it
lives.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType

import attrs
from filelock import FileLock

from hyperruntime.errors import RunLockedError
from hyperruntime.loop.storage import json_document, storage_errors, write_atomic
from hyperruntime.owner import OwnerIdentity

RECORD = "owner.json"
_GUARD = ".owner.lock"


def read_owner(run_dir: Path) -> OwnerIdentity | None:
    """Return who last owned a run directory and did not give it up, or None."""
    try:
        return OwnerIdentity.from_record(json.loads((run_dir / RECORD).read_bytes()))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def owner_state(run_dir: Path) -> str:
    """Return ``alive``, ``dead``, ``elsewhere``, or ``none`` where nobody owns the directory."""
    owner = read_owner(run_dir)
    return "none" if owner is None else owner.state()


class RunLock:
    """The ownership of a run directory; a context manager."""

    def __init__(self, run_dir: Path) -> None:
        """Name the directory; nothing is taken yet."""
        self._run_dir = run_dir
        self._identity = OwnerIdentity.current()

    def acquire(self) -> None:
        """Take the directory.

        Raises:
            RunLockedError: another live process has it, or one of another machine.
            StorageError: the record cannot be written.
        """
        with storage_errors(self._run_dir), FileLock(self._run_dir / _GUARD):
            owner = read_owner(self._run_dir)
            state = "none" if owner is None else owner.state()
            if owner is not None and state == "alive":
                raise RunLockedError(
                    f"run {str(self._run_dir)!r} is owned by process {owner.pid}, which is alive; "
                    "wait for it, or end it with `kill`"
                )
            if owner is not None and state == "elsewhere":
                raise RunLockedError(
                    f"run {str(self._run_dir)!r} is owned by process {owner.pid} on {owner.host!r}; if that has "
                    f"ended, remove {str(self._run_dir / RECORD)!r}"
                )
            write_atomic(self._run_dir / RECORD, json_document(attrs.asdict(self._identity)))

    def release(self) -> None:
        """Give the directory up, if it is ours; may be called again."""
        if read_owner(self._run_dir) == self._identity:
            (self._run_dir / RECORD).unlink(missing_ok=True)

    def __enter__(self) -> RunLock:
        """Take it."""
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give it up."""
        self.release()
