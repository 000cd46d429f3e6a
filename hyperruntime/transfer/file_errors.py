"""Errors about one file of a container; each is also the built-in error of the same reason."""

from __future__ import annotations

import errno
import os

from hyperruntime.errors import TransferError


class FileError(TransferError, OSError):
    """A file of a container cannot be read or written; subclasses give the usual reasons.

    Attributes:
        path: the path in the container.
        errno: the number of the reason, or None if it is unknown.
    """

    errno: int | None = None

    def __init__(self, path: str, why: str, number: int | None = None) -> None:
        """Make the message from the path and the reason.

        Args:
            path: the path in the container.
            why: the reason, and the next step if there is one.
            number: the number of the reason; None leaves that of the class.
        """
        self.path = path
        if number is not None:
            self.errno = number
        super().__init__(f"{path!r} in the container: {why}")


class PathNotFoundError(FileError, FileNotFoundError):
    """The path does not exist in the container."""

    errno = errno.ENOENT


class PathPermissionError(FileError, PermissionError):
    """The user may not read, write or reach the path in the container."""

    errno = errno.EACCES


class PathIsDirectoryError(FileError, IsADirectoryError):
    """The path is a directory of the container, and a file was asked for."""

    errno = errno.EISDIR


class PathNotDirectoryError(FileError, NotADirectoryError):
    """The path, or a part of it, is not a directory of the container."""

    errno = errno.ENOTDIR


class FileTooLargeError(FileError):
    """The file is larger than ``limit_bytes``."""

    errno = errno.EFBIG


_CLASSES: dict[int, type[FileError]] = {
    errno.ENOENT: PathNotFoundError,
    errno.EACCES: PathPermissionError,
    errno.EPERM: PathPermissionError,
    errno.EISDIR: PathIsDirectoryError,
    errno.ENOTDIR: PathNotDirectoryError,
}
_SENTENCES = {
    errno.ENOENT: "no such file or directory",
    errno.EACCES: "permission denied",
    errno.EISDIR: "it is a directory",
    errno.ENOTDIR: "it, or a part of its path, is not a directory",
    errno.ENAMETOOLONG: "the name is too long",
}
# Source: strerror.h of musl, where its words are not those of glibc; errmsg() of dash.
_OTHER_WORDS = {
    "Symbolic link loop": errno.ELOOP,
    "Filename too long": errno.ENAMETOOLONG,
    "Resource busy": errno.EBUSY,
    "I/O error": errno.EIO,
    "Quota exceeded": errno.EDQUOT,
    "Directory nonexistent": errno.ENOENT,
    "No such file": errno.ENOENT,
}


def file_error(path: str, number: int, why: str = "") -> FileError:
    """Return the error for the number of a reason.

    Args:
        path: the path in the container.
        number: the reason, as in ``errno``.
        why: the reason in words; "" for the usual ones.
    """
    kind = _CLASSES.get(number, FileError)
    return kind(path, why or _SENTENCES.get(number) or os.strerror(number), number)


def error_of_text(path: str, text: str) -> FileError:
    """Return the error for what a program of the container said last.

    Args:
        path: the path in the container.
        text: the standard error of the program, which ran with ``LC_ALL=C``.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    known = {os.strerror(number): number for number in errno.errorcode} | _OTHER_WORDS
    for line in lines:
        for words, number in known.items():
            if line.endswith(words):
                return file_error(path, number, words[0].lower() + words[1:])
    return FileError(
        path, lines[-1][:300] if lines else "a program in the container failed and gave no reason"
    )
