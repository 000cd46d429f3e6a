"""Write files so that a kill at any instant leaves the old ones or the new ones.

Every failure is a :class:`StorageError` of one sentence that names the path, the cause and what to do.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from hyperruntime.errors import StorageError

_PROBE_BYTES = 256 * 1024
_PRIVATE = 0o700
_NEXT_STEP = {
    errno.ENOSPC: "no space is left there: free some, or use another disk",
    errno.EDQUOT: "the quota is used up: free some space, or use another disk",
    errno.EACCES: "it may not be written by this user: choose another directory",
    errno.EPERM: "it may not be written by this user: choose another directory",
    errno.EROFS: "it is on a read-only file system: choose another directory",
    errno.ENOTDIR: "part of the path is a file: choose another directory",
    errno.EEXIST: "it exists already: choose another name",
    errno.EMFILE: "too many files are open: raise `ulimit -n`",
}


@contextmanager
def storage_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn what the file system refuses into one sentence.

    Raises:
        StorageError: an operation on ``path`` failed.
    """
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        step = _NEXT_STEP.get(error.errno or 0, f"{error.strerror or error}: choose another directory")
        raise StorageError(f"{os.fspath(path)!r} cannot be written; {step}") from error


def make_directory(path: Path, *, fresh: bool = False) -> Path:
    """Make a directory and what is missing above it; ``fresh`` refuses one that exists.

    Raises:
        StorageError: it cannot be made.
    """
    with storage_errors(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise NotADirectoryError(errno.ENOTDIR, "a file is in the way", str(path)) from error
        path.mkdir(exist_ok=not fresh)
    return path


def make_private_directory(path: Path) -> Path:
    """Make a directory that only this user may enter, from its first moment; one that is there becomes so.

    What containers write lies below such a directory: a container owns the directory that it mounts, and can open that
    to everyone, but not the one that holds it.

    Raises:
        StorageError: it cannot be made, or is another user's.
    """
    make_directory(path.parent)
    with storage_errors(path):
        with suppress(FileExistsError):
            os.mkdir(path, _PRIVATE)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            os.fchmod(descriptor, _PRIVATE)  # the umask may have taken more
        finally:
            os.close(descriptor)
    return path


def open_private(path: Path) -> BinaryIO:
    """Open a file to append to that only this user may read, and make it where there is none.

    Raises:
        StorageError: it cannot be written.
    """
    with storage_errors(path):
        return open(path, "ab", opener=lambda name, flags: os.open(name, flags, 0o600))


def write_atomic(path: Path, data: bytes) -> None:
    """Write a whole file durably under a temporary name, then give it its own.

    Raises:
        StorageError: it cannot be written; what was there before is still there.
    """
    partial = path.with_name(f".{path.name}.partial")
    with storage_errors(path):
        with open(partial, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        sync_directory(path.parent)


def check_writable(folder: Path) -> None:
    """Write a small file in a directory and remove it.

    Raises:
        StorageError: that cannot be done.
    """
    probe = folder / ".probe"
    with storage_errors(folder):
        try:
            with open(probe, "wb") as file:
                file.write(bytes(_PROBE_BYTES))
                file.flush()
                os.fsync(file.fileno())
        finally:
            probe.unlink(missing_ok=True)


def write_file(path: Path, data: bytes) -> None:
    """Write a file of a directory that is not finished yet; see :func:`finish_directory`.

    Raises:
        StorageError: it cannot be written.
    """
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def finish_directory(partial: Path, final: Path) -> None:
    """Make all files of a directory durable and give it its final name in one step.

    Raises:
        StorageError: it cannot be done; the final name does not exist then.
    """
    with storage_errors(final):
        sync_tree(partial)
        os.rename(partial, final)
        sync_directory(final.parent)


def sync_tree(root: Path) -> None:
    """Make all files below a directory durable."""
    for folder, _, names in os.walk(root):
        for name in names:
            _sync_path(os.path.join(folder, name))
        sync_directory(Path(folder))


def append_line(path: Path, value: Any) -> None:  # noqa: ANN401 - any JSON value
    """Append a JSON value as one line, durably; a torn line before it is closed off first.

    Raises:
        StorageError: it cannot be written.
    """
    data = json_line(value)
    with storage_errors(path), open(path, "ab+") as file:
        if file.tell() > 0:
            file.seek(-1, os.SEEK_END)
            data = data if file.read(1) == b"\n" else b"\n" + data
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def json_line(value: Any) -> bytes:  # noqa: ANN401 - any JSON value
    """Return a JSON value as one line."""
    return json.dumps(value, allow_nan=False).encode() + b"\n"


def json_document(value: Any) -> bytes:  # noqa: ANN401 - any JSON value
    """Return a JSON value as a file for people."""
    return json.dumps(value, indent=4, allow_nan=False).encode() + b"\n"


def sync_directory(path: Path) -> None:
    """Make a directory's names durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems have no such call
            raise
    finally:
        os.close(descriptor)


def _sync_path(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
