"""Own a run directory, so that only one process at a time works on it.

The directory holds a lease: the machine, boot, pid, start time and batch job of its owner, and the
inode of the directory, so that a copy of the directory has no owner. The owner renews the lease
every few seconds. If the owner's process is visible from here, it is checked. Otherwise the owner
is dead if it did not renew the lease for two minutes, or for some seconds if the batch system says
that its job is over. Before a takeover or a removal, all times come from the directory's file
system, so the clocks of the machines may differ. An owner that lost its lease, because it was
frozen for too long, detects this before it writes, and ends its run.

Locks of the file system are not used, because they may not work between machines. Two steps decide
between processes that want a directory at once, and are atomic on NFS too. A new lease is linked to
its name, which fails if the name exists. The successor of a dead owner is linked to the one
successor name of that owner's lease.
"""

from __future__ import annotations

import errno
import json
import os
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Self

import attrs

from hyperruntime.concurrency.closing import Closing
from hyperruntime.errors import LeaseLostError, RunLockedError
from hyperruntime.host.batch_job import BatchJob
from hyperruntime.host.owner import OwnerIdentity
from hyperruntime.host.process import boot_id, wait_until
from hyperruntime.json_values import parse_json
from hyperruntime.logs import get_logger
from hyperruntime.storage.atomic import json_document, storage_errors, sync_directory, write_atomic
from hyperruntime.storage.run_files import read_run_file, refuse_links

log = get_logger(__name__)

RECORD = "owner.json"
RENEW_S = 5.0
STALE_S = 120.0
# without a renewal, before the batch system is asked; a process may outlive its job
JOB_OVER_S = 15.0
_PREFIX = ".owner."
_NEXT = ".next"
_NEW = ".new"
_PROBE = ".owner.clock"
_MOST_BYTES = 1 << 20
_POLL_S = 1.0
_POLL_JOB_S = 5.0
_WRITTEN_S = 5.0  # between the creation of a file and its content; later, the process was killed
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


@attrs.frozen(kw_only=True)
class LockRecord:
    """The lease in a run directory.

    Attributes:
        owner: the process that owns the directory.
        directory: device and inode of the owned directory; other numbers mean that this directory
            is a copy.
        job: the batch job of the owner, or None.
    """

    owner: OwnerIdentity
    directory: tuple[int, ...] | None
    job: BatchJob | None = None


def read_lease(run_dir: Path) -> LockRecord | None:
    """Return the lease in a run directory, which may be stale; None if it does not exist or is
    invalid.
    """
    return _read(run_dir / RECORD)


def _read_written(path: Path) -> LockRecord | None:
    """Return a lease; wait for its content if a process without hard links has just made its
    file.
    """
    wait_until(lambda: not _is_empty(path), _WRITTEN_S)
    return _read(path)


def _is_empty(path: Path) -> bool:
    try:
        return os.stat(path).st_size == 0
    except FileNotFoundError:
        return False


def _content(path: Path) -> bytes:
    return read_run_file(path, below=path.parent, most_bytes=_MOST_BYTES)


def _read(path: Path) -> LockRecord | None:
    try:
        value = json.loads(_content(path))
        directory = tuple(value["directory"]) if "directory" in value else None
        return LockRecord(
            owner=OwnerIdentity.from_record(value),
            directory=directory,
            job=BatchJob.from_record(value),
        )
    except (OSError, ValueError, TypeError, OverflowError, RecursionError):
        return None


def owner_state(run_dir: Path) -> str:
    """Return the state of the owner: ``alive``, ``dead``, or ``none`` without a lease; write
    nothing.

    An owner that cannot be checked from here is alive as long as it renews its lease, by the clock
    of this machine.
    """
    lease = read_lease(run_dir)
    return "none" if lease is None else _state(lease, run_dir / RECORD, time.time)


def is_abandoned(run_dir: Path) -> bool:
    """Return whether the owner is dead, by the clock of the file system; False also if nothing can
    be written there.
    """
    with suppress(OSError):
        lease = read_lease(run_dir)
        return (
            lease is not None
            and _state(lease, run_dir / RECORD, partial(_file_system_time, run_dir)) == "dead"
        )
    return False


def wait_for_lease(run_dir: Path) -> None:
    """Wait, at most two minutes, while the owner may be a dead process of another machine; write no
    lease.

    Returns as soon as the lease is stale or released, or its owner renews it or can be checked from
    here.

    Raises:
        StorageError: the directory cannot be written.
    """
    lease = read_lease(run_dir)
    if lease is None or _seen(lease.owner) != "elsewhere":
        return
    clock = partial(_file_system_time, run_dir)
    record = run_dir / RECORD
    with storage_errors(run_dir):
        renewed = _renewed(record)
        if (left_s := STALE_S - (clock() - renewed)) > 0:
            log.warning(
                "waiting for a lease",
                run=str(run_dir),
                host=lease.owner.host,
                at_most_s=round(left_s),
            )
        while _renewed(record) == renewed and _state(lease, record, clock) == "alive":
            time.sleep(_POLL_S if lease.job is None else _POLL_JOB_S)


def is_unowned_remnant(run_dir: Path) -> bool:
    """Return whether a directory is empty, or holds only leftovers of a killed
    :meth:`RunLock.lock`.

    False while a process acquires the directory.
    """
    try:
        found = [run_dir / name for name in os.listdir(run_dir)]
    except OSError:
        return False
    if not all(path.name.startswith((_PREFIX, f".{_PREFIX}")) for path in found):
        return False
    leases = [(lease, path) for path in found if (lease := _read(path)) is not None]
    clock = partial(_file_system_time, run_dir)
    with suppress(OSError):
        return not any(_state(lease, path, clock) == "alive" for lease, path in leases)
    return False


class RunLock(Closing):
    """The ownership of a run directory; a context manager that acquires and releases it."""

    def __init__(self, run_dir: Path, *, renew_s: float = RENEW_S) -> None:
        """Store the settings; nothing is acquired yet.

        Args:
            run_dir: the run directory.
            renew_s: seconds between renewals of the lease.
        """
        self._run_dir = run_dir
        self._record = run_dir / RECORD
        self._identity = OwnerIdentity.current()
        self._renew_s = renew_s
        self._released = threading.Event()
        self._renewing: threading.Thread | None = None
        self._on_lost: Callable[[], None] = lambda: None

    def lock(self) -> None:
        """Acquire the directory, and renew the lease in a thread until :meth:`close`.

        Raises:
            ArchiveError: an entry of the directory is a symbolic link, through which a run would
                write elsewhere.
            RunLockedError: another live process owns the directory.
            LeaseLostError: another process acquired it at the same time.
            StorageError: the lease cannot be written.
        """
        refuse_links(self._run_dir)
        new = self._run_dir / f"{_PREFIX}{self._identity.token}{_NEW}"
        with storage_errors(self._run_dir):
            try:
                self._write(new)
                while not self._take(new):
                    pass
            finally:
                new.unlink(missing_ok=True)
            sync_directory(self._run_dir)
        self.check()
        self._renewing = threading.Thread(
            target=self._renew, name="hyperruntime-lease", daemon=True
        )
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
                f"run {str(self._run_dir)!r} was taken over by another process, because this "
                "one did not renew its lease in time; let the other process continue the run"
            )

    @property
    def is_ours(self) -> bool:
        """Whether this process holds the lease; also true if the lease file exists but cannot be
        read.
        """
        try:
            token = parse_json(_content(self._record))["token"]
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
            for name in os.listdir(self._run_dir):
                if name.startswith(_PREFIX) and name.endswith(_NEXT):
                    (self._run_dir / name).unlink(missing_ok=True)

    def __enter__(self) -> Self:
        """Acquire the directory."""
        self.lock()
        return self

    def _write(self, path: Path) -> None:
        found = os.stat(self._run_dir)
        job = BatchJob.current()
        value = attrs.asdict(self._identity) | {"directory": [found.st_dev, found.st_ino]}
        write_atomic(path, json_document(value | ({} if job is None else attrs.asdict(job))))

    def _take(self, new: Path) -> bool:
        """Try to become the owner with the lease ``new``; return False if the owner changed
        meanwhile.
        """
        first = name = _name_of(self._record)
        if not first:
            return _link(new, self._record)
        at = self._record
        clock = partial(_file_system_time, self._run_dir)
        while True:
            lease = _read_written(at)
            if lease is not None and _state(lease, at, clock) == "alive":
                raise RunLockedError(self._refusal(lease.owner))
            successor = self._run_dir / f"{_PREFIX}{name}{_NEXT}"
            if _link(new, successor):
                break
            # it may have been killed before it became the owner
            at = successor
            name = _name_of(successor)
        if _name_of(self._record) != first:
            successor.unlink(missing_ok=True)
            return False
        os.rename(new, self._record)
        return True

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
            return (
                f"run {run} is owned by process {owner.pid}, which is alive; wait for it, or "
                "stop it with `kill`"
            )
        return (
            f"run {run} is owned by process {owner.pid} on {owner.host!r}, which renewed its "
            f"lease less than {STALE_S:g} s ago; stop it there, or retry later if it is dead"
        )


def _name_of(record: Path) -> str:
    """Return a name for a lease that no other lease has; "" if it does not exist."""
    try:
        if (lease := _read_written(record)) is not None and lease.owner.token.isalnum():
            return lease.owner.token
        found = os.stat(record)
        return f"damaged-{found.st_ino}-{found.st_mtime_ns}"
    except FileNotFoundError:
        return ""


def _link(source: Path, target: Path) -> bool:
    """Give a file a second name; return False if another file has it. Source: open(2), O_EXCL, on
    NFS.
    """
    try:
        os.link(source, target)
    except FileExistsError:
        pass
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return _create(target, source.read_bytes())
    try:
        # also if the answer of a server was lost, and it was asked again
        return os.path.samefile(source, target)
    except FileNotFoundError:
        return False


def _create(path: Path, data: bytes) -> bool:
    """Make a file on a file system without hard links; return False if it exists."""
    try:
        with open(path, "xb", buffering=0) as file:
            file.write(data)
            os.fsync(file.fileno())
    except FileExistsError:
        return False
    return True


def _state(lease: LockRecord, record: Path, clock: Callable[[], float]) -> str:
    if (seen := _seen(lease.owner)) != "elsewhere":
        found = os.stat(record.parent)
        copied = lease.directory is not None and lease.directory != (found.st_dev, found.st_ino)
        return "dead" if copied else seen
    age_s = clock() - _renewed(record)
    job = lease.job
    if age_s >= STALE_S or (job is not None and job.was_requeued()):
        return "dead"
    return "dead" if job is not None and age_s >= JOB_OVER_S and job.is_over() else "alive"


def _seen(owner: OwnerIdentity) -> str:
    # Several machines may have the same host name ("localhost"): for an owner of another boot, only
    # the lease counts.
    return owner.state() if owner.boot_id == boot_id() else "elsewhere"


def _renewed(record: Path) -> float:
    """Return when a lease was last renewed, in seconds since the epoch; 0 if it was released."""
    try:
        return os.stat(record).st_mtime
    except FileNotFoundError:
        return 0.0


def _file_system_time(folder: Path) -> float:
    """Return the current time of the file system's clock, in seconds since the epoch."""
    path = folder / f"{_PROBE}.{uuid.uuid4().hex}"
    path.touch()
    try:
        return os.stat(path).st_mtime
    finally:
        path.unlink(missing_ok=True)
