"""Own a run directory, so that only one process at a time works on it.

The directory holds a lease: the machine, boot, pid and start time of its owner, and the inode of the directory, so that
a copy of the directory has no owner. The owner renews the lease every few seconds. If the owner is of this boot, its
process is checked. Otherwise the directory may be taken over when the lease was not renewed for two minutes. Both times
come from the directory's file system, so the clocks of the machines may differ. An owner that lost its lease, because
it was frozen for too long, detects this before it writes, and ends its run.
"""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Self

import attrs
from filelock import FileLock

from hyperruntime.concurrency.closing import Closing
from hyperruntime.errors import LeaseLostError, RunLockedError
from hyperruntime.host.owner import OwnerIdentity
from hyperruntime.host.process import boot_id
from hyperruntime.json_values import parse_json
from hyperruntime.logs import get_logger
from hyperruntime.storage.atomic import json_document, storage_errors, write_atomic

log = get_logger(__name__)

RECORD = "owner.json"
RENEW_S, STALE_S = 5.0, 120.0
_GUARD, _PROBE = ".owner.lock", ".owner.clock"
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_SETTLE_S, _POLL_S = 1.0, 1.0


@attrs.frozen(kw_only=True)
class LockRecord:
    """The lease in a run directory.

    Attributes:
        owner: the process that owns the directory.
        directory: device and inode of the owned directory; other numbers mean that this directory is a copy.
    """

    owner: OwnerIdentity
    directory: tuple[int, ...] | None


def read_lease(run_dir: Path) -> LockRecord | None:
    """Return the lease in a run directory, which may be stale; None if it does not exist or is invalid."""
    try:
        value = json.loads((run_dir / RECORD).read_bytes())
        directory = tuple(value["directory"]) if "directory" in value else None
        return LockRecord(owner=OwnerIdentity.from_record(value), directory=directory)
    except (OSError, ValueError, TypeError, OverflowError, RecursionError):
        return None


def owner_state(run_dir: Path) -> str:
    """Return the state of the owner: ``alive``, ``dead``, or ``none`` without a lease; write nothing.

    An owner that cannot be checked from here is alive as long as it renews its lease.
    """
    lease = read_lease(run_dir)
    return "none" if lease is None else _state(lease, run_dir, time.time)


def wait_for_lease(run_dir: Path) -> None:
    """Wait, at most two minutes, while the owner may be a dead process of another machine; write no lease.

    Returns as soon as the lease is stale or released, or its owner renews it or can be checked from here.

    Raises:
        StorageError: the directory cannot be written.
    """
    lease = read_lease(run_dir)
    if lease is None or _seen(lease.owner) != "elsewhere":
        return
    clock = partial(_file_system_time, run_dir)
    with storage_errors(run_dir):
        renewed = _renewed(run_dir)
        if (left_s := STALE_S - (clock() - renewed)) > 0:
            log.warning("waiting for a lease", run=str(run_dir), host=lease.owner.host, at_most_s=round(left_s))
        while _renewed(run_dir) == renewed and _state(lease, run_dir, clock) == "alive":
            time.sleep(_POLL_S)


def is_unowned_remnant(run_dir: Path) -> bool:
    """Return whether a directory is empty, or holds only leftovers of a killed :meth:`RunLock.acquire`.

    False while a process acquires the directory.
    """
    try:
        found = set(os.listdir(run_dir))
        if not found <= {_GUARD, _PROBE, f".{RECORD}.partial"}:
            return False
        if found:
            with FileLock(run_dir / _GUARD, timeout=0):
                return True
    except (OSError, NotImplementedError):  # a Timeout is an OSError
        return False
    return True


class RunLock(Closing):
    """The ownership of a run directory; a context manager that acquires and releases it."""

    def __init__(self, run_dir: Path, *, renew_s: float = RENEW_S) -> None:
        """Store the settings; nothing is acquired yet.

        Args:
            run_dir: the run directory.
            renew_s: seconds between renewals of the lease.
        """
        self._run_dir, self._record = run_dir, run_dir / RECORD
        self._identity = OwnerIdentity.current()
        self._renew_s = renew_s
        self._released = threading.Event()
        self._renewing: threading.Thread | None = None
        self._on_lost: Callable[[], None] = lambda: None

    def acquire(self) -> None:
        """Acquire the directory, and renew the lease in a thread until :meth:`close`.

        Raises:
            RunLockedError: another live process owns the directory.
            LeaseLostError: another process acquired it at the same time.
            StorageError: the lease cannot be written.
        """
        with storage_errors(self._run_dir), _one_at_a_time(self._run_dir / _GUARD):
            lease = read_lease(self._run_dir)
            clock = partial(_file_system_time, self._run_dir)
            if lease is not None and _state(lease, self._run_dir, clock) == "alive":
                raise RunLockedError(self._refusal(lease.owner))
            found = os.stat(self._run_dir)
            value = attrs.asdict(self._identity) | {"directory": [found.st_dev, found.st_ino]}
            write_atomic(self._record, json_document(value))
        self.check()
        self._renewing = threading.Thread(target=self._renew, name="hyperruntime-lease", daemon=True)
        self._renewing.start()

    def on_lost(self, call: Callable[[], None]) -> None:
        """Set the function that is called, in the renewing thread, when the lease is lost."""
        self._on_lost = call

    def check(self) -> None:
        """Check that this process still owns the directory; call it before a write.

        Raises:
            LeaseLostError: it does not.
        """
        if not self.is_ours:
            raise LeaseLostError(
                f"run {str(self._run_dir)!r} was taken over by another process, because this one did not renew its "
                "lease in time; let the other process continue the run"
            )

    @property
    def is_ours(self) -> bool:
        """Whether this process holds the lease; also true if the lease file exists but cannot be read."""
        try:
            token = parse_json(self._record.read_bytes())["token"]
        except FileNotFoundError:
            return False
        except (OSError, ValueError, TypeError, KeyError):
            return True
        return bool(token == self._identity.token)

    def close(self) -> None:
        """Release the directory if this process owns it; may be called again."""
        self._released.set()
        if self._renewing is not None:
            self._renewing.join()
        if self._record.exists() and self.is_ours:
            self._record.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        """Acquire the directory."""
        self.acquire()
        return self

    def _renew(self) -> None:
        while not self._released.wait(self._renew_s):
            if not self.is_ours:
                log.error("lease lost", run=str(self._run_dir))
                self._on_lost()
                return
            try:
                os.utime(self._record)  # now, by the clock of the file system
            except OSError as error:
                log.warning("lease not renewed", run=str(self._run_dir), error=str(error))

    def _refusal(self, owner: OwnerIdentity) -> str:
        run = repr(str(self._run_dir))
        if owner.state() == "alive":
            return f"run {run} is owned by process {owner.pid}, which is alive; wait for it, or stop it with `kill`"
        return (
            f"run {run} is owned by process {owner.pid} on {owner.host!r}, which renewed its lease less than "
            f"{STALE_S:g} s ago; stop it there, or retry later if it is dead"
        )


@contextmanager
def _one_at_a_time(path: Path) -> Iterator[None]:
    """Hold the file lock while acquiring; on a file system without locks, the last process that writes wins."""
    lock = FileLock(path)
    try:
        lock.acquire()
    except (NotImplementedError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in _NO_LOCKS:
            raise
        log.warning("no locks on this file system", path=str(path))
        yield
        time.sleep(_SETTLE_S)
        return
    try:
        yield
    finally:
        lock.release()


def _state(lease: LockRecord, run_dir: Path, clock: Callable[[], float]) -> str:
    if (seen := _seen(lease.owner)) != "elsewhere":
        found = os.stat(run_dir)
        copied = lease.directory is not None and lease.directory != (found.st_dev, found.st_ino)
        return "dead" if copied else seen
    return "alive" if clock() - _renewed(run_dir) < STALE_S else "dead"


def _seen(owner: OwnerIdentity) -> str:
    # Several machines may have the same host name ("localhost"): for an owner of another boot, only the lease counts.
    return owner.state() if owner.boot_id == boot_id() else "elsewhere"


def _renewed(run_dir: Path) -> float:
    """Return when the lease was last renewed, in seconds since the epoch; 0 if it was released."""
    try:
        return os.stat(run_dir / RECORD).st_mtime
    except FileNotFoundError:
        return 0.0


def _file_system_time(folder: Path) -> float:
    """Return the current time of the file system's clock, in seconds since the epoch."""
    path = folder / _PROBE
    path.touch()
    try:
        return os.stat(path).st_mtime
    finally:
        path.unlink(missing_ok=True)
