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
import shutil
import socket
import tempfile
import threading
import uuid
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import attrs

from hyperruntime.errors import StorageError
from hyperruntime.process import DEVNULL, is_alive, process_start_time, reap, spawn

LABEL = "io.hyperruntime.owner"
_RECORD = "owner.json"
_GUARD = """
read -r word && [ "$word" = done ] && exit 0
private=$1; shift
"$@" >/dev/null 2>&1
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
    null = os.open(os.devnull, os.O_RDWR)
    for holder in tuple(_held):
        for descriptor in holder.descriptors():
            os.dup2(null, descriptor, inheritable=False)
    os.close(null)


@attrs.frozen(kw_only=True)
class OwnerIdentity:
    """Names one process on one host for ever.

    Attributes:
        token: unique for each runtime that was opened.
        host: the machine's name.
        pid: the owning process.
        start_time: when that process started, seconds since the epoch (pids are used again).
    """

    token: str
    host: str
    pid: int
    start_time: float

    @classmethod
    def current(cls) -> OwnerIdentity:
        """Return a new identity of this process."""
        start = process_start_time(os.getpid()) or 0.0
        return cls(token=uuid.uuid4().hex[:16], host=socket.gethostname(), pid=os.getpid(), start_time=start)

    @classmethod
    def from_labels(cls, labels: Mapping[str, str]) -> OwnerIdentity | None:
        """Return whom labels name, or None when they are not ours."""
        try:
            return cls(
                token=labels[LABEL],
                host=labels[f"{LABEL}.host"],
                pid=int(labels[f"{LABEL}.pid"]),
                start_time=float(labels[f"{LABEL}.start"]),
            )
        except (KeyError, ValueError):
            return None

    def to_labels(self) -> dict[str, str]:
        """Return it as container labels."""
        return {
            LABEL: self.token,
            f"{LABEL}.host": self.host,
            f"{LABEL}.pid": str(self.pid),
            f"{LABEL}.start": repr(self.start_time),
        }

    def state(self) -> str:
        """Return ``alive``, ``dead``, or ``elsewhere`` (on another machine, where nobody can look)."""
        if self.host != socket.gethostname():
            return "elsewhere"
        return "alive" if is_alive(self.pid, self.start_time) else "dead"


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
            StorageError: no temporary directory can be written.
        """
        self.identity = identity
        try:
            self.private_dir = tempfile.mkdtemp(prefix=f"{_prefix()}{identity.token}-")
            Path(self.private_dir, _RECORD).write_text(json.dumps(attrs.asdict(identity)))
        except OSError as error:
            raise StorageError(
                f"no temporary directory can be written in {tempfile.gettempdir()}: {error}; "
                "free space there, or set TMPDIR to another disk"
            ) from error
        args = ["/bin/sh", "-c", _GUARD, "hyperruntime-guard", self.private_dir, *cleanup_args]
        self._guard = spawn(args, stdout=DEVNULL, stderr=DEVNULL, cwd="/")
        release_on_fork(self)

    def descriptors(self) -> tuple[int, ...]:
        """Return the guard's pipe."""
        stdin = self._guard.stdin
        return () if stdin is None or stdin.closed else (stdin.fileno(),)

    def close(self) -> None:
        """Dismiss the guard and remove the private directory; may be called again."""
        if self._guard.stdin is not None and not self._guard.stdin.closed:
            try:
                self._guard.stdin.write(b"done\n")
                self._guard.stdin.close()
            except OSError:
                pass
            reap(self._guard, 5)
        shutil.rmtree(self.private_dir, ignore_errors=True)


def stale_directories() -> Iterator[Path]:
    """Yield this user's private directories whose owner is dead."""
    for path in Path(tempfile.gettempdir()).glob(f"{_prefix()}*"):
        try:
            if path.is_symlink() or path.stat().st_uid != os.getuid():
                continue
            identity = OwnerIdentity(**json.loads((path / _RECORD).read_text()))
        except (OSError, ValueError, TypeError):
            continue
        if identity.state() == "dead":
            yield path


def _prefix() -> str:
    return f"hyperruntime-{os.getuid()}-"
