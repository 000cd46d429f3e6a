"""Ownership: every container and temporary file has an owning process and is removed when that
process ends.

Three mechanisms ensure it, so that one may fail. A container's shell reads end-of-file when the
owner's descriptors close, and kills all processes. A guard (one ``sh`` per runtime, ``guard.sh``)
then ends the remaining containers and removes them and the temporary files. Labels name the owner,
so that ``prune`` can clean up even if the guard was killed. Design:
docs/design/containers.md#owners.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import socket
import threading
import uuid
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

import attrs

from hyperruntime.errors import StorageError, write_error
from hyperruntime.host.process import (
    DEVNULL,
    HostProcess,
    boot_id,
    is_alive,
    pid_namespace,
    process_start_ticks,
    reap,
    spawn,
)
from hyperruntime.host.removals import Removals
from hyperruntime.host.rmtree import remove_tree
from hyperruntime.host.temporary import (
    SCRATCH,
    STEP,
    scratch_directory,
    temporary_directory,
    why_unusable,
)
from hyperruntime.json_values import parse_json

LABEL = "io.hyperruntime.owner"
NODE_VARIABLE = "HYPERRUNTIME_NODE"
"""Environment variable of a node server: the node's name in its cluster."""
_RECORD = "owner.json"
_ALSO = "also"  # file with directories to remove with the private one, one per line
_PLAIN_PATH = re.compile(r"/[A-Za-z0-9/._+-]{1,40}")


class HoldsDescriptors(Protocol):
    """An object whose open descriptors show a container that its owner is alive."""

    def descriptors(self) -> tuple[int, ...]:
        """Return the descriptors."""
        ...


_held: weakref.WeakSet[HoldsDescriptors] = weakref.WeakSet()
_fork_hook = threading.Lock()
_fork_hooked = False


def release_on_fork(holder: HoldsDescriptors) -> None:
    """Redirect a holder's descriptors to /dev/null in forked children: they must not keep its
    containers alive.
    """
    global _fork_hooked  # noqa: PLW0603 - os.register_at_fork is per process and cannot be undone
    with _fork_hook:
        _held.add(holder)
        if not _fork_hooked:
            os.register_at_fork(after_in_child=_release_all)
            _fork_hooked = True


def _release_all() -> None:
    """Redirect the parent's descriptors to /dev/null. Lock-free: it runs in the child, which has
    only this thread.
    """
    global _fork_hook  # noqa: PLW0603 - another thread of the parent may have held the lock
    _fork_hook = threading.Lock()
    null = os.open(os.devnull, os.O_RDWR)
    for holder in tuple(_held):
        for descriptor in holder.descriptors():
            os.dup2(null, descriptor, inheritable=False)
    os.close(null)
    _held.clear()  # later descriptors with the same numbers are the child's own


@attrs.frozen(kw_only=True)
class OwnerIdentity:
    """Identifies one process uniquely, also after it has ended.

    Attributes:
        token: unique for each opened runtime.
        host: the machine's name.
        boot_id: the machine's boot; "" if unknown.
        pid_namespace: inode of the namespace of the pid; 0 if unknown.
        pid: the owning process.
        start_ticks: start of that process in clock ticks since boot, because pids are reused.
        node: the cluster's name of the node that the process serves; "" if it serves none.
    """

    token: str = attrs.field(converter=str)
    host: str = attrs.field(converter=str)
    boot_id: str = attrs.field(default="", converter=str)
    pid_namespace: int = attrs.field(default=0, converter=int)
    pid: int = attrs.field(converter=int)
    start_ticks: int = attrs.field(default=0, converter=int)
    node: str = attrs.field(default="", converter=str)

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
            node=os.environ.get(NODE_VARIABLE, ""),
        )

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> OwnerIdentity:
        """Return the owner that a stored record names; a record without a boot id has an unknown
        owner.

        Raises:
            ValueError, TypeError: it is not a valid record.
        """
        return cls(
            **{
                field.name: record[field.name]
                for field in attrs.fields(cls)
                if field.name in record
            }
        )

    @classmethod
    def from_labels(cls, labels: Mapping[str, str]) -> OwnerIdentity | None:
        """Return the owner that labels name, or None if they are not valid labels of this
        library.
        """
        if LABEL not in labels:
            return None
        prefix = f"{LABEL}."
        facts = {
            name.removeprefix(prefix): value
            for name, value in labels.items()
            if name.startswith(prefix)
        }
        try:
            return cls.from_record({"token": labels[LABEL], **facts})
        except (TypeError, ValueError):
            return None

    def to_labels(self) -> dict[str, str]:
        """Return the identity as container labels."""
        known = attrs.asdict(self, filter=lambda field, value: value != field.default)
        facts = {name: str(value) for name, value in known.items() if name != "token"}
        return {LABEL: self.token, **{f"{LABEL}.{name}": value for name, value in facts.items()}}

    def state(self) -> str:
        """Return ``alive``, ``dead``, or ``elsewhere`` if the owner is not visible from here.

        ``elsewhere`` means another machine, another pid namespace, or a record without a boot id.
        """
        if not self.boot_id:
            return "elsewhere"
        if self.boot_id != boot_id():
            return "dead" if self.host == socket.gethostname() else "elsewhere"
        if self.pid_namespace != pid_namespace():
            return "elsewhere"
        return "alive" if is_alive(self.pid, self.start_ticks) else "dead"


class Owner:
    """This process as the owner of everything that one runtime starts.

    Attributes:
        identity: the owner's identity, put in the labels of every container.
        private_dir: a directory that only this user can enter, removed with the owner.
        removals: the removals of its containers.
    """

    def __init__(self, cleanup_args: tuple[str, ...], identity: OwnerIdentity) -> None:
        """Make the private directory and start the guard.

        Args:
            cleanup_args: argv that removes this owner's containers from the engine.
            identity: identity of this process.

        Raises:
            StorageError: no temporary directory can be written, or the guard cannot be started.
        """
        self.identity = identity
        self.removals = Removals()
        self._pid = os.getpid()
        self.private_dir = _new_path(identity)
        _require_text(self.private_dir)
        try:  # before the directory exists, because a kill between the two steps would leave it
            self._guard = start_guard(self.private_dir, cleanup_args)
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
        """Whether this is the owning process and not a forked child."""
        return os.getpid() == self._pid

    def descriptors(self) -> tuple[int, ...]:
        """Return the descriptor of the guard's pipe, if it is open."""
        stdin = self._guard.stdin
        return () if stdin is None or stdin.closed else (stdin.fileno(),)

    def close(self) -> None:
        """Remove the private directory and end the guard; may be called again. Does nothing in a
        forked child.

        The guard ends last. If an interrupt, or a thread that still starts a container, prevents
        the removal, the guard removes the directory when the process ends. If containers are left,
        the guard removes them now, without a time limit, and then the directory; this process does
        not wait for it.
        """
        if not self.is_here:
            return
        if self.removals.pending:
            self._hand_over()
            return
        with suppress(OSError):
            for directory in Path(self.private_dir, _ALSO).read_text().splitlines():
                shutil.rmtree(directory, ignore_errors=True)
        remove_owned(self.private_dir)
        if os.path.exists(self.private_dir):
            return
        if self._guard.stdin is not None and not self._guard.stdin.closed:
            with suppress(OSError):
                self._guard.stdin.write(b"done\n")
                self._guard.stdin.close()
            reap(self._guard, 5)

    def _hand_over(self) -> None:
        """Let the guard do what it does after the owner's death."""
        if self._guard.stdin is not None and not self._guard.stdin.closed:
            with suppress(OSError):
                self._guard.stdin.close()
            threading.Thread(
                target=self._guard.wait, name="hyperruntime-guard", daemon=True
            ).start()


def start_guard(private_dir: str, cleanup_args: tuple[str, ...]) -> HostProcess:
    """Start a guard of this process, see ``guard.sh``; the line ``done`` on its standard input
    dismisses it.

    Args:
        private_dir: the owner's private directory, which need not exist yet.
        cleanup_args: argv that removes the owner's containers from the engine; called again until
            it exits with 0.

    Raises:
        OSError: no process can be started.
    """
    program = resources.files("hyperruntime.host").joinpath("guard.sh").read_text()
    args = ["/bin/sh", "-c", program, "hyperruntime-guard", private_dir, *cleanup_args]
    return spawn(args, stdout=DEVNULL, stderr=DEVNULL, cwd="/")


def make_short_directory(private_dir: str | None) -> str:
    """Make a directory for sockets, with a short path of plain characters.

    The path of a Unix socket has at most 107 bytes, and some clients reject special characters in
    it. Source: unix(7).

    Args:
        private_dir: private directory of an owner, with which it is removed; None leaves the
            removal to the caller, or to ``prune`` after the caller's death.

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
            raise write_error(
                f"{private_dir} cannot be written: {error}; free space there", error
            ) from error
    _make_owned(directory, identity)
    return directory


@contextmanager
def owned_directory(*, short: bool = False, root: Path | None = None) -> Iterator[str]:
    """Yield a private directory and remove it afterwards; ``prune`` removes those of killed
    processes.

    Args:
        short: whether its path must be short and of plain characters, as sockets need it.
        root: where it is made; None means the directory for temporary files, or a short one.
            ``prune`` does not look in
            another one: see :func:`stale_directories`.

    Raises:
        StorageError: it cannot be made.
    """
    identity = OwnerIdentity.current()
    where = _short_root() if short else None if root is None else str(root)
    directory = _new_path(identity, where)
    _make_owned(directory, identity)
    try:
        yield directory
    finally:
        remove_owned(directory)


def remove_owned(directory: str | os.PathLike[str]) -> None:
    """Remove an owner's directory; skip what cannot be removed.

    The owner's record goes last, and only with everything else: if this process is killed
    meanwhile, ``prune`` still finds the rest.
    """
    with suppress(OSError):
        with os.scandir(directory) as entries:
            found = [entry for entry in entries if entry.name != _RECORD]
        for entry in found:
            if entry.is_dir(follow_symlinks=False):
                remove_tree(entry.path)
            else:
                with suppress(OSError):
                    os.unlink(entry.path)
        if set(os.listdir(directory)) <= {_RECORD}:
            remove_tree(directory)


def stale_directories(*more_roots: Path) -> Iterator[Path]:
    """Yield this user's private directories whose owner is dead.

    Args:
        more_roots: directories to search, besides those for temporary files, large ones included,
            and sockets.
    """
    roots = {
        os.path.realpath(root)
        for root in (
            temporary_directory(),
            scratch_directory(),
            *_short_roots(),
            *map(str, more_roots),
        )
    }
    for path in (path for root in sorted(roots) for path in Path(root).glob(f"{_prefix()}*")):
        try:
            if path.is_symlink() or path.stat().st_uid != os.getuid():
                continue
            identity = OwnerIdentity.from_record(parse_json((path / _RECORD).read_text()))
        except (OSError, ValueError, TypeError):
            continue
        if identity.state() == "dead":
            yield path


def _new_path(identity: OwnerIdentity, root: str | None = None) -> str:
    """Return the path of a new directory in ``root``; None means the directory for temporary
    files.
    """
    try:
        return os.path.join(
            root or temporary_directory(), f"{_prefix()}{identity.token}-{secrets.token_hex(4)}"
        )
    except FileNotFoundError as error:
        raise write_error(f"{error}; free space there, or {STEP}", error) from error


def _make_owned(directory: str, identity: OwnerIdentity) -> None:
    """Make a directory that only this user can enter, with a record of its owner for ``prune``."""
    try:
        os.mkdir(directory, 0o700)
        try:
            Path(directory, _RECORD).write_text(json.dumps(attrs.asdict(identity)))
        except OSError:
            shutil.rmtree(directory, ignore_errors=True)
            raise
    except OSError as error:
        where = os.path.dirname(directory)
        step = f"free space there, or {STEP}"
        raise write_error(
            f"no temporary directory can be written in {where}: {error}; {step}", error
        ) from error


def _require_text(directory: str) -> None:
    """Check that a path is UTF-8, because engines store it as JSON."""
    try:
        os.fsencode(directory).decode()
    except UnicodeDecodeError:
        raise StorageError(f"the temporary directory {directory!r} is not UTF-8; {STEP}") from None


def _short_roots() -> Iterator[str]:
    environ = os.environ
    for root in (environ.get("XDG_RUNTIME_DIR", ""), "/tmp", "/var/tmp", environ.get(SCRATCH, "")):  # noqa: S108 - the directories made there are private
        if _PLAIN_PATH.fullmatch(root) and not why_unusable(root, for_programs=False):
            yield root


def _short_root() -> str:
    for root in _short_roots():
        return root
    raise StorageError(
        f"neither XDG_RUNTIME_DIR, /tmp nor /var/tmp can hold sockets; {STEP}, with a short path"
    )


def _prefix() -> str:
    return f"hyperruntime-{os.getuid()}-"
