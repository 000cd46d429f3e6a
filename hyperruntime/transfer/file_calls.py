"""The execs behind reading and writing single files: their commands, and what their results mean.
Pure, no I/O.

Design: docs/design/exec.md#files-and-ports.
"""

from __future__ import annotations

import errno
import functools
import os
import posixpath
import re
import secrets
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import resources
from typing import Generic, Literal, TypeVar

import attrs

from hyperruntime.errors import SpecError, TransferTimeoutError
from hyperruntime.exec.exec_script import ShellText
from hyperruntime.spec import ExecResult, check_inside_path
from hyperruntime.transfer.file_errors import (
    FileError,
    FileTooLargeError,
    error_of_text,
    file_error,
)
from hyperruntime.units import format_duration

T = TypeVar("T")
Kind = Literal[
    "file", "directory", "symlink", "fifo", "socket", "character device", "block device", "unknown"
]
OnError = Callable[[FileError], None] | None

READ_LIMIT_BYTES = 100 * 1024**2
FILE_TIMEOUT_S = 60.0
_NOTES_BYTES = 64 * 1024  # of the standard error of programs, and of lists of codes
_LIST_BYTES = 256 * 1024**2
_ARGUMENT_BYTES = 512 * 1024  # of the paths of one exec; a quarter of what Linux allows by default
_SHORT_BYTES = 16 * 1024
# source: limits.h of Linux; PATH_MAX counts the NUL at the end
_MAX_PATH = 4095
_MAX_NAME = 255
_MAX_MODE = 0o7777
_REASONS = {82: errno.ENOENT, 83: errno.EISDIR, 85: errno.EACCES, 90: errno.ENOTDIR}
_NO_PROGRAM = 91
_KINDS: dict[int, Kind] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symlink",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "character device",
    stat.S_IFBLK: "block device",
}


@attrs.frozen(kw_only=True)
class FileStat:
    """The facts of a path in a container.

    Attributes:
        kind: its type.
        size_bytes: its size.
        mode: its permission bits, such as 0o644.
        uid: its owner.
        gid: its group.
        links: number of its hard links.
        modified_s: time of its last change of content, in whole seconds since 1970.
    """

    kind: Kind
    size_bytes: int
    mode: int
    uid: int
    gid: int
    links: int
    modified_s: int


@attrs.define(kw_only=True, eq=False)
class FileCall(Generic[T]):
    """One exec, and what its result means.

    Attributes:
        args: the command.
        parse: returns the value for its result, or raises a FileError.
        input: its standard input, or None.
        output_limit_bytes: how much of its output is needed.
        env: variables for it.
        undo: removes what it leaves if it does not end by itself, or None.
    """

    args: tuple[bytes, ...] = attrs.field(repr=False)
    parse: Callable[[ExecResult], T]
    input: bytes | None = attrs.field(default=None, repr=False)
    output_limit_bytes: int = _NOTES_BYTES
    env: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    undo: FileCall[object] | None = None


def read_call(path: str, limit_bytes: int, timeout_s: float | None) -> FileCall[bytes]:
    """Return the exec that reads a file.

    Args:
        path: absolute path in the container.
        limit_bytes: most bytes that the file may have.
        timeout_s: its deadline, for the error.

    Raises:
        SpecError: the path or the limit is invalid.
        FileError: the path is too long.
    """
    _check_limit(limit_bytes)

    def parse(result: ExecResult) -> bytes:
        _check(result, path, timeout_s)
        if len(result.stdout) > limit_bytes or result.truncated:
            raise _too_large(path, limit_bytes)
        return result.stdout

    args = _command("read", "one", str(limit_bytes + 1), _checked(path))
    return FileCall(args=args, parse=parse, output_limit_bytes=max(limit_bytes + 1, _NOTES_BYTES))


def read_calls(
    paths: Iterable[str], limit_bytes: int, timeout_s: float | None, on_error: OnError
) -> list[FileCall[dict[str, bytes]]]:
    """Return the execs that read many files; it is one, unless the paths are very many.

    Args:
        paths: absolute paths in the container.
        limit_bytes: most bytes that all files together may have.
        timeout_s: the deadline of each exec, for the error.
        on_error: called with the error of each file that cannot be read; None raises the first one.

    Raises:
        SpecError: a path or the limit is invalid.
        FileError: a path is too long, and ``on_error`` is None.
    """
    _check_limit(limit_bytes)
    usable = _usable(dict.fromkeys(paths), on_error)
    return [_read_many(batch, limit_bytes, timeout_s, on_error) for batch in _batches(usable)]


def _read_many(
    paths: Sequence[str], limit_bytes: int, timeout_s: float | None, on_error: OnError
) -> FileCall[dict[str, bytes]]:
    boundary = secrets.token_hex(16)

    def parse(result: ExecResult) -> dict[str, bytes]:
        _check_end(result, paths[0], timeout_s)
        if result.truncated:
            raise _too_large(f"{len(paths)} files from {paths[0]}", limit_bytes)
        found: dict[str, bytes] = {}
        parts = result.stdout.split(b"\n%s " % boundary.encode())
        notes = [*result.stderr.split(b"\0"), *[b""] * len(paths)]
        if len(parts) <= len(paths):
            raise _failure(
                result.exit_code, paths[min(len(parts) - 1, len(paths) - 1)], result.stderr
            )
        content = parts[0]
        for path, note, part in zip(paths, notes, parts[1:], strict=False):
            code, _, rest = part.partition(b"\n")
            try:
                _check_code(_code(code), path, note)
                found[path] = content
            except FileError as error:
                _report(error, on_error)
            content = rest
        if sum(map(len, found.values())) > limit_bytes:
            raise _too_large(f"{len(paths)} files from {paths[0]}", limit_bytes)
        return found

    return FileCall(
        args=_command("read", "many", str(limit_bytes + 1), *map(_checked, paths)),
        parse=parse,
        output_limit_bytes=limit_bytes + len(paths) * 64 + _NOTES_BYTES,
        env={"boundary": boundary},
    )


def write_call(
    files: Mapping[str, bytes],
    *,
    mode: int | None,
    parents: bool,
    timeout_s: float | None,
    on_error: OnError,
) -> FileCall[None] | None:
    """Return the exec that writes files; None if there is nothing to write.

    Args:
        files: the content of each absolute path in the container.
        mode: permission bits of all files; None keeps those of an existing file.
        parents: whether missing directories are made.
        timeout_s: its deadline, for the error.
        on_error: called with the error of each file that cannot be written; None raises the first
            one.

    Raises:
        SpecError: a path or the mode is invalid, or a content is not bytes.
        FileError: a path is too long, and ``on_error`` is None.
    """
    _check_write(mode, files)
    paths = _usable(files, on_error)
    if not paths:
        return None
    temporary = f".hyperruntime-{secrets.token_hex(8)}"
    bits = "-" if mode is None else f"{mode:o}"

    def parse(result: ExecResult) -> None:
        _check_end(result, paths[0], timeout_s)
        codes = result.stdout.split()
        notes = [*result.stderr.split(b"\0"), *[b""] * len(paths)]
        for path, code, note in zip(paths, codes, notes, strict=False):
            try:
                _check_code(_code(code), path, note)
            except FileError as error:
                _report(error, on_error)
        for path in paths[len(codes) :]:  # the program could not go on
            _report(_failure(result.exit_code, path, notes[len(codes)]), on_error)

    args = _command("write", temporary, "1" if parents else "")
    given = env = None
    if len(paths) == 1 and (short := _format(files[paths[0]])) is not None:
        args += (bits.encode(), os.fsencode(paths[0]))
        env = {"hyperruntime_content": short}
    else:
        entries = (
            (_entry(path, str(memoryview(files[path]).nbytes), bits), files[path], b"end\n")
            for path in paths
        )
        given = b"".join(part for entry in entries for part in entry)
    return FileCall(
        args=args,
        parse=parse,
        input=given,
        output_limit_bytes=len(paths) * 1024 + _NOTES_BYTES,
        env=env or {},
        undo=FileCall(
            args=_command("write", temporary, ""),
            parse=lambda result: None,
            input=b"".join(_entry(path, "-", bits) for path in paths),
        ),
    )


def _format(data: bytes) -> str | None:
    """Return a format that makes `printf` write the data, None if it is too long; it is passed in
    a variable, which only this user's processes can read.
    """
    if memoryview(data).nbytes > _SHORT_BYTES:
        return None
    text = os.fsdecode(bytes(data)).replace("\\", "\\\\").replace("%", "%%").replace("\0", "\\000")
    return f"\\055{text[1:]}" if text.startswith("-") else text


def _entry(path: str, size: str, bits: str) -> bytes:
    name = os.fsencode(path)
    return b"%d %s %s\n%s\n" % (name.count(b"\n") + 1, size.encode(), bits.encode(), name)


def stat_call(path: str, *, follow_symlinks: bool, timeout_s: float | None) -> FileCall[FileStat]:
    """Return the exec that finds the facts of a path.

    Args:
        path: absolute path in the container.
        follow_symlinks: whether the facts are those of the file that a link leads to.
        timeout_s: its deadline, for the error.

    Raises:
        SpecError: the path is invalid.
        FileError: the path is too long.
    """

    def parse(result: ExecResult) -> FileStat:
        _check(result, path, timeout_s)
        try:
            bits, links, uid, gid, size, modified = result.stdout.split()
            raw = int(bits, 16)
            return FileStat(
                kind=_KINDS.get(stat.S_IFMT(raw), "unknown"),
                mode=stat.S_IMODE(raw),
                size_bytes=int(size),
                uid=int(uid),
                gid=int(gid),
                links=int(links),
                modified_s=int(modified),
            )
        except ValueError:
            odd = (
                f"the image's `stat` printed {result.stdout[:100]!r}; use an image with that of "
                "GNU or BusyBox"
            )
            raise FileError(path, odd) from None

    return FileCall(
        args=_command("stat", "-L" if follow_symlinks else "", _checked(path)), parse=parse
    )


def list_call(path: str, timeout_s: float | None) -> FileCall[list[str]]:
    """Return the exec that lists the names in a directory.

    Args:
        path: absolute path in the container.
        timeout_s: its deadline, for the error.

    Raises:
        SpecError: the path is invalid.
        FileError: the path is too long.
    """

    def parse(result: ExecResult) -> list[str]:
        _check(result, path, timeout_s)
        if result.truncated:
            raise _too_large(path, _LIST_BYTES)
        return sorted(os.fsdecode(name) for name in result.stdout.split(b"\0") if name)

    return FileCall(
        args=_command("list", _checked(path)), parse=parse, output_limit_bytes=_LIST_BYTES
    )


def inside(workspace: str, path: str) -> str:
    """Return the absolute path of a path that may be relative to a workspace."""
    return posixpath.join(workspace, path)


def _command(name: str, *words: str | bytes) -> tuple[bytes, ...]:
    return (b"/bin/sh", b"-c", _program(name), b"files", *map(os.fsencode, words))


@functools.cache
def _program(name: str) -> bytes:
    folder = resources.files("hyperruntime.transfer").joinpath("sh")
    parts = (folder.joinpath(f"{part}.sh").read_bytes() for part in ("common", name))
    # the shell reads it for each call, so without comments
    return ShellText(re.sub(rb"(?m)^ *(#.*\n)?", b"", b"".join(parts)))


def _checked(path: str) -> bytes:
    check_inside_path("path", path)
    raw = os.fsencode(path)
    if len(raw) > _MAX_PATH or any(len(part) > _MAX_NAME for part in raw.split(b"/")):
        raise file_error(path, errno.ENAMETOOLONG)
    return raw


def _usable(paths: Iterable[str], on_error: OnError) -> list[str]:
    """Return the paths that are not too long; report the others."""
    usable = []
    for path in paths:
        try:
            _checked(path)
            usable.append(path)
        except FileError as error:
            _report(error, on_error)
    return usable


def _batches(paths: Sequence[str]) -> list[list[str]]:
    """Return the paths in groups that fit on a command line."""
    batches: list[list[str]] = []
    room = 0
    for path in paths:
        size = len(os.fsencode(path)) + 16
        if size > room:
            batches.append([])
            room = _ARGUMENT_BYTES
        batches[-1].append(path)
        room -= size
    return batches


def _check_write(mode: object, files: Mapping[str, object]) -> None:
    if mode is not None and (
        not isinstance(mode, int) or isinstance(mode, bool) or not 0 <= mode <= _MAX_MODE
    ):
        raise SpecError("mode", mode, "permission bits such as 0o644, or None")
    for path, data in files.items():
        if not isinstance(data, bytes | bytearray | memoryview):
            raise SpecError("data", type(data).__name__, f"bytes for {path!r}; encode text first")


def _check_limit(limit_bytes: object) -> None:
    if not isinstance(limit_bytes, int) or isinstance(limit_bytes, bool) or limit_bytes < 0:
        raise SpecError("limit_bytes", limit_bytes, "a number of bytes, 0 or more")


def _check_end(result: ExecResult, path: str, timeout_s: float | None) -> None:
    if result.timed_out:
        raise TransferTimeoutError(
            f"{path!r} in the container was not finished within "
            f"{format_duration(timeout_s or 0)} (is it a pipe or a device?); raise timeout_s if "
            "it only needs more time"
        )


def _check(result: ExecResult, path: str, timeout_s: float | None) -> None:
    _check_end(result, path, timeout_s)
    _check_code(result.exit_code, path, result.stderr)


def _check_code(code: int, path: str, notes: bytes) -> None:
    if code != 0:
        raise _failure(code, path, notes)


def _code(word: bytes) -> int:
    return int(word) if word.isdigit() and len(word) < 4 else -1


def _failure(code: int, path: str, notes: bytes) -> FileError:
    text = notes.decode(errors="replace").strip()
    if code in _REASONS:
        return file_error(path, _REASONS[code])
    if code == _NO_PROGRAM:
        return FileError(path, f"the image has no {text}; use an image that has it")
    return error_of_text(path, text)


def _too_large(path: str, limit_bytes: int) -> FileTooLargeError:
    return FileTooLargeError(
        path, f"more than {limit_bytes} bytes; raise limit_bytes, or copy it with get()"
    )


def _report(error: FileError, on_error: OnError) -> None:
    if on_error is None:
        raise error
    on_error(error)
