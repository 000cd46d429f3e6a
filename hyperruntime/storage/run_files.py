"""Read and write the files of a run directory as data, because another person may have made the
directory.

A file is opened component by component below the run directory. No component may be a symbolic
link, and only regular files are opened, so a read stays in the run directory and waits for no pipe.
Sizes are limited. The run directory itself may be named by a link, because the user chose it. See
docs/design/runs.md#run-directories-are-data.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO

from hyperruntime.concurrency.closing import closing_descriptor
from hyperruntime.errors import ArchiveError
from hyperruntime.json_values import json_object
from hyperruntime.units import MIB, format_size

MOST_BYTES = 256 * MIB  # of a file that is read as a whole; a log of the loop has at most 64 MiB
MOST_JSON_BYTES = 64 * MIB  # of a JSON document; its value in memory takes many times its size
MOST_LINE_BYTES = 128 * MIB  # of one line; a trajectory of a million tokens takes about 30 MB

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_APPEND = os.O_RDWR | os.O_APPEND | os.O_CREAT
_KINDS = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFREG: "a file",
}


class UnsafeFileError(OSError):
    """A path that is not a regular file below its directory, or that is too large; ``strerror``
    says which.
    """


def open_regular(
    name: str | bytes | os.PathLike[str],
    flags: int = os.O_RDONLY,
    *,
    directory: int | None = None,
    mode: int = 0o666,
    follows: bool = False,
) -> int:
    """Return a descriptor of a regular file; never wait for a pipe or a device.

    Args:
        name: the file.
        flags: as for :func:`os.open`.
        directory: descriptor of the directory that ``name`` is relative to; None: the current
            directory.
        mode: permissions of a new file.
        follows: whether the last component may be a symbolic link.

    Raises:
        UnsafeFileError: it is not a regular file.
        OSError: it cannot be opened.
    """
    how = flags | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follows else os.O_NOFOLLOW)
    try:
        descriptor = os.open(name, how, mode, dir_fd=directory)
    except OSError as error:
        raise _explained(error, name, directory, "a regular file", stat.S_IFREG) from error
    try:
        if not stat.S_ISREG(kind := os.fstat(descriptor).st_mode):
            raise UnsafeFileError(
                errno.EINVAL, f"it is {_kind(kind)}, not a regular file", os.fspath(name)
            )
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_below(directory: int, parts: Sequence[str | bytes], flags: int = os.O_RDONLY) -> int:
    """Return a descriptor of a regular file below an open directory; no component may be a symbolic
    link.

    Args:
        directory: descriptor of the directory, which stays open.
        parts: the components of the path.
        flags: as for :func:`os.open`.

    Raises:
        UnsafeFileError: a component is a symbolic link, or the last one is not a regular file.
        OSError: it cannot be opened.
    """
    with closing_descriptor(open_directory(directory, parts[:-1])) as parent:
        return open_regular(parts[-1], flags, directory=parent)


def open_run_file(path: Path, *, below: Path, flags: int = os.O_RDONLY) -> int:
    """Return a descriptor of a regular file of a run.

    Args:
        path: the file.
        below: the run directory, or another directory that ``path`` is below and that is known not
            to be a link.
        flags: as for :func:`os.open`.

    Raises:
        UnsafeFileError: it is not below this directory, a component is a symbolic link, or it is
            not a regular file.
        OSError: it cannot be opened.
    """
    parts = _parts(path, below)
    with _opened_root(below) as directory:
        return open_below(directory, parts, flags)


def read_run_file(path: Path, *, below: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file of a run.

    Args:
        path: the file.
        below: as for :func:`open_run_file`.
        most_bytes: largest size that is read.

    Raises:
        UnsafeFileError: as for :func:`open_run_file`, or the file has more than ``most_bytes``.
        OSError: it cannot be read.
    """
    with os.fdopen(open_run_file(path, below=below), "rb") as file:
        return read_at_most(file, most_bytes)


def read_at_most(file: BinaryIO, most_bytes: int) -> bytes:
    """Return the rest of an open regular file.

    Raises:
        UnsafeFileError: the file has more than ``most_bytes`` bytes.
    """
    size = os.fstat(file.fileno()).st_size
    data = b"" if size > most_bytes else file.read(most_bytes + 1)
    if (size := max(size, len(data))) > most_bytes:
        raise UnsafeFileError(
            errno.EFBIG, f"it has {format_size(size)}; at most {format_size(most_bytes)} are read"
        )
    return data


def read_run_json(path: Path, *, below: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file of a run; None if it cannot be read or holds anything else.

    Args:
        path: the file.
        below: as for :func:`open_run_file`.
    """
    try:
        return json_object(read_run_file(path, below=below, most_bytes=MOST_JSON_BYTES))
    except OSError:
        return None


def read_run_lines(
    path: Path, *, below: Path, most_bytes: int = MOST_LINE_BYTES
) -> Iterator[bytes]:
    """Yield the lines of a file of a run with their ends; only one is in memory.

    Args:
        path: the file.
        below: as for :func:`open_run_file`.
        most_bytes: largest size of a line.

    Raises:
        UnsafeFileError: as for :func:`open_run_file`, or a line has more than ``most_bytes``.
        OSError: it cannot be read.
    """
    with os.fdopen(open_run_file(path, below=below), "rb") as file:
        number = 0
        while line := read_line(file, number := number + 1, most_bytes):
            yield line


def read_line(file: BinaryIO, number: int, most_bytes: int = MOST_LINE_BYTES) -> bytes:
    """Return the next line of a file, which may be truncated; empty at the end.

    Args:
        file: the file.
        number: number of the line, for the error.
        most_bytes: largest size of a line.

    Raises:
        UnsafeFileError: the line is longer.
    """
    line = file.readline(most_bytes + 1)
    if len(line) > most_bytes:
        raise UnsafeFileError(errno.EFBIG, f"line {number} has more than {format_size(most_bytes)}")
    return line


def is_run_file(path: Path, *, below: Path) -> bool:
    """Return whether a path is a regular file below a directory, reached without a symbolic
    link.
    """
    try:
        os.close(open_run_file(path, below=below))
    except OSError:
        return False
    return True


def is_run_directory(path: Path, *, below: Path) -> bool:
    """Return whether a path is a directory below another one, reached without a symbolic link."""
    try:
        with (
            _opened_root(below) as root,
            closing_descriptor(open_directory(root, _parts(path, below))),
        ):
            return True
    except OSError:
        return False


def list_run_directory(path: Path, *, below: Path) -> list[str]:
    """Return the sorted names in a directory of a run; empty if it does not exist.

    Raises:
        UnsafeFileError: it is not below this directory, a component is a symbolic link, or it is
            not a directory.
        OSError: it cannot be read.
    """
    try:
        with (
            _opened_root(below) as root,
            closing_descriptor(open_directory(root, _parts(path, below))) as directory,
        ):
            return sorted(os.listdir(directory))
    except FileNotFoundError:
        return []


def make_run_directory(path: Path, *, below: Path) -> Path:
    """Create a directory of a run with missing parents, without following a symbolic link; return
    its path.

    Raises:
        UnsafeFileError: it is not below this directory, a component is a symbolic link, or it is
            not a directory.
        OSError: it cannot be created.
    """
    with _opened_root(below) as root:
        os.close(open_directory(root, _parts(path, below), makes=True))
    return path


def open_to_append(path: Path, mode: int = 0o666, *, buffering: int = -1) -> BinaryIO:
    """Return a regular file, which may be new, open for reading and for appending.

    Args:
        path: the file; its directory is not checked.
        mode: permissions of a new file.
        buffering: as for :func:`open`.

    Raises:
        UnsafeFileError: it is not a regular file.
        OSError: it cannot be opened.
    """
    return os.fdopen(open_regular(path, _APPEND, mode=mode), "ab+", buffering)


def refuse_links(*folders: Path) -> None:
    """Refuse directories that have a symbolic link as an entry; a missing directory has none.

    Call it before writing to a run directory: a write to a link would change a file outside of the
    run.

    Raises:
        ArchiveError: an entry is a symbolic link, or a directory cannot be listed.
    """
    for folder in folders:
        try:
            with os.scandir(folder) as entries:
                found = min((entry.path for entry in entries if entry.is_symlink()), default=None)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise ArchiveError(f"{str(folder)!r} cannot be read: {error.strerror}") from error
        if found is not None:
            raise ArchiveError(
                f"{found!r} is a symbolic link, which a run directory must not have; remove it"
            )


def _parts(path: Path, below: Path) -> tuple[str, ...]:
    parts = path.parts[len(below.parts) :] if path.is_relative_to(below) else ()
    if not parts or ".." in parts or any("\0" in part for part in parts):
        raise UnsafeFileError(errno.EINVAL, f"it is not below {str(below)!r}", str(path))
    return parts


def _opened_root(below: Path) -> AbstractContextManager[int]:
    """Return a context with a descriptor of a run directory, which may be named by a link."""
    return closing_descriptor(os.open(below, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))


def open_directory(directory: int, parts: Sequence[str | bytes], *, makes: bool = False) -> int:
    """Return a new descriptor of a directory below an open one, following no link; with ``makes``,
    create missing ones.
    """
    at = os.dup(directory)
    try:
        for part in parts:
            if makes:
                _make(part, at)
            try:
                deeper = os.open(part, _DIRECTORY, dir_fd=at)
            except OSError as error:
                raise _explained(error, part, at, "a directory", stat.S_IFDIR) from error
            os.close(at)
            at = deeper
    except BaseException:
        os.close(at)
        raise
    return at


def _make(name: str | bytes, directory: int) -> None:
    try:
        os.mkdir(name, dir_fd=directory)
    except FileExistsError:
        pass


def _explained(
    error: OSError,
    name: str | bytes | os.PathLike[str],
    directory: int | None,
    wanted: str,
    kind: int,
) -> OSError:
    """Return an error that names the kind of an entry that is not of the wanted kind; else the
    error itself.
    """
    try:
        found = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
    except OSError:
        return error
    if stat.S_IFMT(found) == kind:
        return error
    shown = "it" if wanted == "a regular file" else repr(os.fsdecode(name))
    why = f"{shown} is {_kind(found)}, not {wanted}"
    return UnsafeFileError(error.errno or errno.EINVAL, why, os.fspath(name))


def _kind(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "a special file")
