"""Copy trees in and out of a container through an exec of its ``tar``. Imports tarball, errors, spec."""

from __future__ import annotations

import os
import posixpath
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, cast

from hyperruntime.errors import TransferError
from hyperruntime.spec import ExecResult, check_inside_path
from hyperruntime.tarball import ExtractLimits, ExtractReport, extract_tree
from hyperruntime.tarwriter import write_tree

Exec = Callable[..., ExecResult]

_NO_PROGRAM = 5
# Whatever PATH the container's environment has, its tar is looked for where images have it.
_PREPARE = """PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
for program in $needed; do
    command -v $program >/dev/null || { echo "the image has no $program; use an image that has it" >&2; exit 5; }
done
if tar -b 1024 -cf /dev/null -C / -T /dev/null 2>/dev/null; then b="-b 1024"; else b=; fi
"""  # Large records spare system calls where tar knows -b (GNU, bsdtar); busybox does not, and needs it less.
_PUT = f'needed="tar mkdir"\n{_PREPARE}mkdir -p -- "$1" && exec tar $b -xpof - -C "$1"'
_GET = (
    f"needed=tar\n{_PREPARE}"
    """
[ -e "$1/$2" ] || [ -L "$1/$2" ] || { echo "no such file or directory" >&2; exit 3; }
if [ -L "$1/$2" ] && real=$(readlink -f "$1/$2") && [ -e "$real" ]; then set -- "${real%/*}/" "${real##*/}"; fi
exec tar $b -cf - -C "$1" -- "./$2"
"""
)
_PIPE_BYTES = 1 << 20
_QUEUE_BYTES = 8 << 20
DEFAULT_LIMITS = ExtractLimits(max_bytes=8 * 1024**3, max_members=1_000_000)


def put(run: Exec, source: str | os.PathLike[str], target: str) -> None:
    """Copy ``source`` of the host to ``target`` inside; see :meth:`Container.put`."""
    check_inside_path("target", target)
    if not os.path.lexists(source):
        raise TransferError(f"cannot copy {os.fspath(source)!r} into the container: no such file or directory")
    parent, name = posixpath.split(posixpath.normpath(target))
    feeder = _Feeder(lambda pipe: write_tree(Path(os.fsdecode(source)), pipe, name or "."))
    with feeder:
        result = run(["/bin/sh", "-c", _PUT, "put", parent], input=feeder.reader, workdir="/")
    if result.exit_code != 0:
        raise TransferError(f"cannot copy {os.fspath(source)!r} to {target!r} in the container: {_why(result)}")
    if feeder.error is not None:
        raise TransferError(f"cannot read {os.fspath(source)!r}: {feeder.error}") from feeder.error


def get(run: Exec, source: str, target: str | os.PathLike[str], limits: ExtractLimits | None = None) -> ExtractReport:
    """Copy ``source`` inside to ``target`` of the host; see :meth:`Container.get`."""
    check_inside_path("source", source)
    parent, name = posixpath.split(posixpath.normpath(source))
    receiver = _Receiver(target, limits or DEFAULT_LIMITS)
    with receiver:
        result = run(
            ["/bin/sh", "-c", _GET, "get", parent, name or "."],
            on_output=receiver.take,
            output_limit_bytes=65536,
            workdir="/",
        )
    if result.exit_code == 3:
        raise TransferError(f"cannot copy {source!r} out of the container: no such file or directory")
    if receiver.error is not None and result.exit_code != _NO_PROGRAM:
        raise receiver.error
    if receiver.report is None or result.exit_code > 1:  # GNU tar: 1 says that a file changed while it was read
        raise TransferError(f"{source!r} was not, or not wholly, copied out of the container: {_why(result)}")
    return receiver.report


def _why(result: ExecResult) -> str:
    text = result.stderr.decode(errors="replace").strip().splitlines()
    return text[0] if text else f"tar ended with exit code {result.exit_code}"


class _Feeder:
    """Writes an archive into a pipe in a thread, while an exec reads the other end."""

    def __init__(self, write: Callable[[BinaryIO], object]) -> None:
        self.error: Exception | None = None
        self._write = write
        read_fd, write_fd = os.pipe()
        self.reader: BinaryIO = os.fdopen(read_fd, "rb", buffering=0)
        self._writer: BinaryIO = os.fdopen(write_fd, "wb", buffering=0)
        _widen(write_fd)
        self._thread = threading.Thread(target=self._feed, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self.reader.close()
        self._thread.join()

    def _feed(self) -> None:
        try:
            with self._writer:
                self._write(self._writer)
        except BrokenPipeError:
            pass
        except Exception as error:  # noqa: BLE001 - handed to the calling thread
            self.error = error


class _Receiver:
    """Extracts an archive in a thread, while an exec hands it over chunk by chunk."""

    def __init__(self, target: str | os.PathLike[str], limits: ExtractLimits) -> None:
        self.error: Exception | None = None
        self.report: ExtractReport | None = None
        self._target, self._limits = target, limits
        self._chunks = _Chunks()
        self._thread = threading.Thread(target=self._extract, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._chunks.end()
        self._thread.join()

    def take(self, stream: str, chunk: bytes) -> None:
        """Hand over a chunk; what comes after the extraction stopped is dropped."""
        if stream == "stdout":
            self._chunks.put(chunk)

    def _extract(self) -> None:
        try:
            source = cast(BinaryIO, self._chunks)
            self.report = extract_tree(source, Path(os.fsdecode(self._target)), limits=self._limits)
        except Exception as error:  # noqa: BLE001 - handed to the calling thread
            self.error = error
        finally:
            self._chunks.drop()


class _Chunks:
    """A bounded hand-over of bytes between two threads, read like an unbuffered file; a pipe would copy them twice."""

    def __init__(self) -> None:
        self._queue: deque[memoryview] = deque()
        self._bytes = 0
        self._ended = self._dropping = False
        self._changed = threading.Condition()

    def put(self, chunk: bytes) -> None:
        """Add a chunk; waits while too much is waiting to be read."""
        with self._changed:
            while self._bytes > _QUEUE_BYTES and not self._dropping:
                self._changed.wait()
            if not self._dropping:
                self._queue.append(memoryview(chunk))
                self._bytes += len(chunk)
                self._changed.notify()

    def end(self) -> None:
        """Nothing more comes."""
        with self._changed:
            self._ended = True
            self._changed.notify()

    def drop(self) -> None:
        """Nothing more is wanted."""
        with self._changed:
            self._dropping = True
            self._queue.clear()
            self._changed.notify()

    def readinto(self, buffer: memoryview) -> int:
        """Fill a buffer with what is there, at least a byte; 0 at the end."""
        with self._changed:
            while not self._queue and not self._ended:
                self._changed.wait()
            if not self._queue:
                return 0
            chunk = self._queue.popleft()
            size = min(len(chunk), len(buffer))
            if size < len(chunk):
                self._queue.appendleft(chunk[size:])
            self._bytes -= size
            self._changed.notify()
        buffer[:size] = chunk[:size]
        return size


def _widen(descriptor: int) -> None:
    import fcntl

    try:
        fcntl.fcntl(descriptor, 1031, _PIPE_BYTES)  # F_SETPIPE_SZ
    except OSError:
        pass
