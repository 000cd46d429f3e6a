"""Write files so that a kill at any time leaves either the old content or the new one.

Each failure of a write is a :class:`StorageError`; its one sentence has the path, the cause and the
next step.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from hyperruntime.concurrency.closing import closing_descriptor
from hyperruntime.errors import StorageError, write_error
from hyperruntime.storage.run_files import UnsafeFileError, open_regular, open_to_append

_PROBE_BYTES = 256 * 1024
_PRIVATE = 0o700
_NEXT_STEP = {
    errno.ENOSPC: "no space is left on the disk; free some, or use another disk",
    errno.EDQUOT: "the quota is used up; free some space, or use another disk",
    errno.EACCES: "this user has no permission; choose another directory",
    errno.EPERM: "this user has no permission; choose another directory",
    errno.EROFS: "it is on a read-only file system; choose another directory",
    errno.ENOTDIR: "part of the path is a file; choose another directory",
    errno.EEXIST: "it exists already; choose another name",
    errno.EMFILE: "too many files are open; raise `ulimit -n`",
}


@contextmanager
def storage_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    """Translate every OSError of the block into a StorageError about ``path``.

    Raises:
        StorageError: the block raised an OSError.
    """
    try:
        yield
    except StorageError:
        raise
    except UnsafeFileError as error:
        raise StorageError(
            f"{os.fspath(path)!r} cannot be used: {error.strerror}; remove it"
        ) from error
    except OSError as error:
        step = _NEXT_STEP.get(
            error.errno or 0, f"{error.strerror or error}; choose another directory"
        )
        raise write_error(f"{os.fspath(path)!r} cannot be written: {step}", error) from error


def make_directory(path: Path, *, fresh: bool = False) -> Path:
    """Create a directory with missing parents, and return its path.

    Args:
        path: the directory.
        fresh: fail if the directory exists.

    Raises:
        StorageError: the directory cannot be created.
    """
    with storage_errors(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise NotADirectoryError(
                errno.ENOTDIR, "part of the path is a file", str(path)
            ) from error
        path.mkdir(exist_ok=not fresh)
    return path


def make_new_directory(wanted: Path) -> Path:
    """Create a directory that did not exist, and return its path: `wanted`, else with the suffix
    ``_2``, ``_3``, ...

    Of several processes that want the same directory at once, each gets its own.

    Raises:
        StorageError: the directory cannot be created.
    """
    path = wanted
    number = 1
    while True:
        try:
            return make_directory(path, fresh=True)
        except StorageError as error:
            if not isinstance(error.__cause__, FileExistsError):
                raise
        number += 1
        path = wanted.with_name(f"{wanted.name}_{number}")


def make_private_directory(path: Path) -> Path:
    """Create a directory that only this user may enter, or set an existing one to mode 0700; return
    its path.

    Files of containers are kept below such a directory. A container owns the directory that it
    mounts and can open it to everyone, but it cannot change the directory above.

    Raises:
        StorageError: the directory cannot be created, is a symbolic link, or belongs to another
            user.
    """
    make_directory(path.parent)
    with storage_errors(path):
        with suppress(FileExistsError):
            os.mkdir(path, _PRIVATE)
        with closing_descriptor(
            os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        ) as descriptor:
            os.fchmod(descriptor, _PRIVATE)  # the umask may have removed bits
    return path


def open_private(path: Path) -> BinaryIO:
    """Open a file for appending; a new file gets mode 0600.

    Raises:
        StorageError: the file cannot be opened, or is not a regular file.
    """
    with storage_errors(path):
        return open_to_append(path, 0o600)


def write_atomic(path: Path, data: bytes) -> None:
    """Replace a file atomically: write ``data`` to a temporary file, sync it, and rename it to
    ``path``.

    Args:
        path: the file.
        data: its new content.

    Raises:
        StorageError: the file cannot be written or synced; it then has its old or its new content,
            never a part.
    """
    partial = path.with_name(f".{path.name}.partial")
    with storage_errors(path):
        with open(partial, "wb", opener=open_regular) as file:
            file.write(data)
        _sync_path(partial, os.O_NOFOLLOW)
        os.replace(partial, path)
        sync_directory(path.parent)


def check_writable(folder: Path) -> None:
    """Check that a directory is writable: write a file of 256 KiB in it, and remove it.

    Raises:
        StorageError: the file cannot be written.
    """
    probe = folder / ".probe"
    with storage_errors(folder):
        try:
            with open(probe, "wb", opener=open_regular) as file:
                file.write(bytes(_PROBE_BYTES))
            _sync_path(probe, os.O_NOFOLLOW)
        finally:
            probe.unlink(missing_ok=True)


def write_file(path: Path, data: bytes) -> None:
    """Write a file, with missing parents, without syncing it; :func:`finish_directory` syncs it
    later.

    Raises:
        StorageError: the file cannot be written.
    """
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb", opener=open_regular) as file:
            file.write(data)


def finish_directory(partial: Path, final: Path) -> None:
    """Sync all files of a directory, then rename it.

    Args:
        partial: current path of the directory.
        final: new path.

    Raises:
        StorageError: a file cannot be synced, or the directory cannot be renamed.
    """
    with storage_errors(final):
        sync_tree(partial)
        os.rename(partial, final)
        sync_directory(final.parent)


def sync_tree(root: Path) -> None:
    """Sync all files and directories below a directory, and the directory itself, to disk."""
    for folder, _, names in os.walk(root):
        for name in names:
            _sync_path(os.path.join(folder, name), os.O_NOFOLLOW)
        sync_directory(Path(folder))


def append_line(path: Path, value: Any) -> None:  # noqa: ANN401 - any JSON value
    """Append a JSON value as one line and sync the file; a truncated last line is ended first.

    Raises:
        StorageError: the line cannot be written.
    """
    data = json_line(value)
    append_lines(path, data)


def append_lines(path: Path, data: bytes) -> None:
    """Append whole lines and sync the file; a truncated last line is ended first.

    Raises:
        StorageError: the lines cannot be written, or the file is not a regular file.
    """
    with storage_errors(path), open_to_append(path) as file:
        if file.seek(0, os.SEEK_END) > 0:
            file.seek(-1, os.SEEK_END)
            data = data if file.read(1) == b"\n" else b"\n" + data
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def json_line(value: Any) -> bytes:  # noqa: ANN401 - any JSON value
    """Return a JSON value as one line."""
    return json.dumps(value, allow_nan=False).encode() + b"\n"


def json_document(value: Any) -> bytes:  # noqa: ANN401 - any JSON value
    """Return a JSON value as an indented document."""
    return json.dumps(value, indent=4, allow_nan=False).encode() + b"\n"


def sync_directory(path: Path) -> None:
    """Sync the entries of a directory to disk, if the file system supports it."""
    try:
        _sync_path(path, os.O_DIRECTORY)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems cannot sync a directory
            raise


def _sync_path(path: str | os.PathLike[str], flag: int) -> None:
    with closing_descriptor(os.open(path, os.O_RDONLY | flag)) as descriptor:
        os.fsync(descriptor)
