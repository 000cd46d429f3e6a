"""Who owns what a runtime starts, and the promise that nothing outlives its owner.

Three things keep it, so that each may fail: a container's shell reads end-of-file when the owner's
descriptors close and ends everything; a guard (one ``sh`` per runtime, blocked on a pipe of the owner's)
then removes what is left, containers and temporary files; labels name the owner, so that ``prune`` can
remove what a dead owner left on a machine where even the guard was killed. Design:
docs/decisions/0003-ownership.md.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import socket
import tempfile
import threading
import uuid
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import attrs

from hyperruntime.errors import StorageError
from hyperruntime.host.process import DEVNULL, boot_id, is_alive, pid_namespace, process_start_ticks, reap, spawn

LABEL = "io.hyperruntime.owner"
_RECORD = "owner.json"
_ALSO = "also"  # directories that go with the private one, one a line
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9/._+-]{1,40}")
_GUARD = """
read -r word && [ "$word" = done ] && exit 0
private=$1; shift
"$@" >/dev/null 2>&1
if [ -r "$private/also" ]; then
    while read -r directory; do rm -rf -- "$directory"; done <"$private/also"
fi
rm -rf -- "$private"
"""


class HoldsDescriptors(Protocol):
    """Something whose descriptors tell a container that its owner lives."""

    def descriptors(self) -> tuple[int, ...]:
        """Return them."""
        ...


_held: weakref.WeakSet[HoldsDescriptors] = weakref.WeakSet()
_fork_hook = threading.Lock()
_fork_hooked = False


def release_on_fork(holder: HoldsDescriptors) -> None:
    """See to it that a forked child does not keep a holder's containers alive: its copies become /dev/null."""
    global _fork_hooked  # noqa: PLW0603 - os.register_at_fork is per process, and has no undo
    with _fork_hook:
        _held.add(holder)
        if not _fork_hooked:
            os.register_at_fork(after_in_child=_release_all)
            _fork_hooked = True


def _release_all() -> None:
    """Make the parent's descriptors harmless; runs in the child, whose only thread this is, so it takes no lock."""
    global _fork_hook  # noqa: PLW0603 - another thread of the parent may have held it
    _fork_hook = threading.Lock()
    null = os.open(os.devnull, os.O_RDWR)
    for holder in tuple(_held):
        for descriptor in holder.descriptors():
            os.dup2(null, descriptor, inheritable=False)
    os.close(null)
    _held.clear()  # what has the same numbers later is the child's own


@attrs.frozen(kw_only=True)
class OwnerIdentity:
    """Names one process for ever.

    Attributes:
        token: unique for each runtime that was opened.
        host: the machine's name.
        boot_id: the boot of the machine; "" where it is not known.
        pid_namespace: in which the pid counts; 0 where it is not known.
        pid: the owning process.
        start_ticks: when that process started, clock ticks since boot (pids are used again).
    """

    token: str
    host: str
    boot_id: str
    pid_namespace: int
    pid: int
    start_ticks: int

    @classmethod
    def current(cls) -> OwnerIdentity:
        """Return a new identity of this process."""
        return cls(
            token=uuid.uuid4().hex[:16],
            host=socket.gethostname(),
            boot_id=boot_id(),
            pid_namespace=pid_namespace(),
            pid=os.getpid(),
            start_ticks=process_start_ticks(os.getpid()) or 0,
        )

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> OwnerIdentity:
        """Return whom a stored record names; one that does not name a boot is of nobody who can be looked at.

        Raises:
            ValueError, TypeError, KeyError: it is no record.
        """
        return cls(
            token=str(record["token"]),
            host=str(record["host"]),
            boot_id=str(record.get("boot_id", "")),
            pid_namespace=int(record.get("pid_namespace", 0)),
            pid=int(record["pid"]),
            start_ticks=int(record.get("start_ticks", 0)),
        )

    @classmethod
    def from_labels(cls, labels: Mapping[str, str]) -> OwnerIdentity | None:
        """Return whom labels name, or None when they are not ours."""
        if LABEL not in labels:
            return None
        prefix = f"{LABEL}."
        facts = {name.removeprefix(prefix): value for name, value in labels.items() if name.startswith(prefix)}
        try:
            return cls.from_record({"token": labels[LABEL], **facts})
        except (KeyError, ValueError):
            return None

    def to_labels(self) -> dict[str, str]:
        """Return it as container labels."""
        facts = {name: str(value) for name, value in attrs.asdict(self).items() if name != "token"}
        return {LABEL: self.token, **{f"{LABEL}.{name}": value for name, value in facts.items()}}

    def state(self) -> str:
        """Return ``alive``, ``dead``, or ``elsewhere`` (where nobody can look from here).

        Elsewhere is another machine, another pid namespace, and a record that does not say where.
        """
        if not self.boot_id:
            return "elsewhere"
        if self.boot_id != boot_id():
            return "dead" if self.host == socket.gethostname() else "elsewhere"
        if self.pid_namespace != pid_namespace():
            return "elsewhere"
        return "alive" if is_alive(self.pid, self.start_ticks) else "dead"


class Owner:
    """This process as the owner of what one runtime starts.

    Attributes:
        identity: in the labels of every container.
        private_dir: a directory only this user can enter, removed with the owner.
    """

    def __init__(self, cleanup_args: tuple[str, ...], identity: OwnerIdentity) -> None:
        """Make the private directory and start the guard.

        Args:
            cleanup_args: argv that removes what this owner left in the engine.
            identity: whose.

        Raises:
            StorageError: no temporary directory can be written, or no process started.
        """
        self.identity = identity
        self._pid = os.getpid()
        self.private_dir = _new_path(identity)
        _require_text(self.private_dir)
        args = ["/bin/sh", "-c", _GUARD, "hyperruntime-guard", self.private_dir, *cleanup_args]
        try:  # before there is a directory, which a kill between the two would leave
            self._guard = spawn(args, stdout=DEVNULL, stderr=DEVNULL, cwd="/")
        except OSError as error:
            raise StorageError(f"no guard can be started: {error}; end other processes") from error
        release_on_fork(self)
        try:
            _make_owned(self.private_dir, identity)
        except BaseException:
            self.close()
            raise

    @property
    def is_here(self) -> bool:
        """Whether this is the owning process, and no forked child of it."""
        return os.getpid() == self._pid

    def descriptors(self) -> tuple[int, ...]:
        """Return the guard's pipe."""
        stdin = self._guard.stdin
        return () if stdin is None or stdin.closed else (stdin.fileno(),)

    def close(self) -> None:
        """Remove the private directory and dismiss the guard; may be called again. Does nothing in a forked child.

        The guard goes last: what an interrupt keeps this from, or a thread that still starts a container, it does when
        the process ends.
        """
        if not self.is_here:
            return
        for directory in _also(self.private_dir):
            shutil.rmtree(directory, ignore_errors=True)
        shutil.rmtree(self.private_dir, ignore_errors=True)
        if os.path.exists(self.private_dir):
            return
        if self._guard.stdin is not None and not self._guard.stdin.closed:
            try:
                self._guard.stdin.write(b"done\n")
                self._guard.stdin.close()
            except OSError:
                pass
            reap(self._guard, 5)


def make_short_directory(private_dir: str | None) -> str:
    """Make a directory with a short and plain path, for sockets, that is removed with an owner's private directory.

    Without a private directory the caller removes it, or ``prune`` after the caller's death.

    The path of a Unix socket has at most 107 bytes (unix(7)), and not every client takes every character in it.

    Raises:
        StorageError: it cannot be made.
    """
    identity = OwnerIdentity.current()
    directory = _new_path(identity, _short_root())
    if private_dir is not None:
        try:
            with open(os.path.join(private_dir, _ALSO), "a") as file:
                file.write(f"{directory}\n")
        except OSError as error:
            raise StorageError(f"{private_dir} cannot be written: {error}; free space there") from error
    _make_owned(directory, identity)
    return directory


@contextmanager
def owned_directory(*, short: bool = False) -> Iterator[str]:
    """Yield a private directory that is gone afterwards; what a killed process left ``prune`` removes.

    Args:
        short: whether its path must be short and plain.

    Raises:
        StorageError: it cannot be made.
    """
    identity = OwnerIdentity.current()
    directory = _new_path(identity, _short_root() if short else None)
    _make_owned(directory, identity)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def stale_directories() -> Iterator[Path]:
    """Yield this user's private directories whose owner is dead."""
    roots = {os.path.realpath(root) for root in (tempfile.gettempdir(), *_short_roots())}
    for path in (path for root in sorted(roots) for path in Path(root).glob(f"{_prefix()}*")):
        try:
            if path.is_symlink() or path.stat().st_uid != os.getuid():
                continue
            identity = OwnerIdentity.from_record(json.loads((path / _RECORD).read_text()))
        except (OSError, ValueError, TypeError, KeyError):
            continue
        if identity.state() == "dead":
            yield path


def _new_path(identity: OwnerIdentity, root: str | None = None) -> str:
    """Return the path of a directory that is not there yet, in the directory for temporary files or another one."""
    try:
        return os.path.join(root or tempfile.gettempdir(), f"{_prefix()}{identity.token}-{secrets.token_hex(4)}")
    except FileNotFoundError as error:
        raise StorageError(f"{error}; free space there, or set TMPDIR to another disk") from error


def _make_owned(directory: str, identity: OwnerIdentity) -> None:
    """Make a directory that only this user can enter, with a record of its owner, by which ``prune`` knows it."""
    try:
        os.mkdir(directory, 0o700)
        try:
            Path(directory, _RECORD).write_text(json.dumps(attrs.asdict(identity)))
        except OSError:
            shutil.rmtree(directory, ignore_errors=True)
            raise
    except OSError as error:
        where = os.path.dirname(directory)
        step = "free space there, or set TMPDIR to another disk"
        raise StorageError(f"no temporary directory can be written in {where}: {error}; {step}") from error


def _also(private_dir: str) -> list[str]:
    try:
        return Path(private_dir, _ALSO).read_text().splitlines()
    except OSError:
        return []


def _require_text(directory: str) -> None:
    """Refuse a name that engines, which keep it as JSON, would change."""
    try:
        os.fsencode(directory).decode()
    except UnicodeDecodeError:
        raise StorageError(f"the temporary directory {directory!r} is not UTF-8; set TMPDIR to one that is") from None


def _short_roots() -> Iterator[str]:
    for root in (os.environ.get("XDG_RUNTIME_DIR", ""), "/tmp", "/var/tmp"):  # noqa: S108 - what is made there is private
        if _PLAIN_PATH.fullmatch(root) and os.access(root, os.W_OK | os.X_OK):
            yield root


def _short_root() -> str:
    for root in _short_roots():
        return root
    raise StorageError("neither XDG_RUNTIME_DIR nor /tmp can be written, where a socket must lie; make one writable")


def _prefix() -> str:
    return f"hyperruntime-{os.getuid()}-"
