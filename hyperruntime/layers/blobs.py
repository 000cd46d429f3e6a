"""The files of an image archive, in a tar or a directory, and their decompression."""

from __future__ import annotations

import bz2
import errno
import gzip
import hashlib
import io
import lzma
import os
import posixpath
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from hyperruntime.concurrency.closing import Closing
from hyperruntime.errors import HyperRuntimeError, ImageError, TransferError, write_error
from hyperruntime.host.process import PIPE, kill_group, spawn
from hyperruntime.storage.tar_reader import TarReader

MOST_JSON = 16 * 1024**2
# Where a program that reads the compressed data of others gives up: errors of the archive.
DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError)
# What the system says of a name, a link or a place of a file that a layer cannot have.
_UNFIT = (
    errno.ENAMETOOLONG, errno.EMLINK, errno.EINVAL, errno.EPERM, errno.ENOENT, errno.EEXIST,
    errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY, errno.ELOOP,
)  # fmt: skip
_MOST_MEMBERS = 100_000
_MOST_LINKS = 8
_CHUNK = 1024 * 1024
_GZIP = b"\x1f\x8b"
_BZIP2 = b"BZh"
_XZ = b"\xfd7zXZ\0"
_ZSTD = b"\x28\xb5\x2f\xfd"


class NoProgramError(ImageError):
    """No program here can decompress a file."""


class _EnoughRead(Exception):  # noqa: N818 - no error
    """A file need not be read to its end."""


class Files(Protocol):
    """The files of an archive by name."""

    def open(self, name: str) -> BinaryIO:
        """Open a file.

        Raises:
            KeyError: there is none of this name.
        """
        ...


class Folder:
    """The files of a directory of our own."""

    def __init__(self, path: Path) -> None:
        """Use an existing directory."""
        self._path = path

    def open(self, name: str) -> BinaryIO:
        """Open a file below the directory, which no link leaves; see :class:`Files`."""
        if ".." in name.split("/"):
            raise KeyError(name)
        try:
            return open(self._path / name.lstrip("/"), "rb")
        except OSError as error:
            raise KeyError(name) from error


class TarFiles(Closing):
    """The members of a tar, which is read once and then from the middle."""

    def __init__(self, path: Path) -> None:
        """Read the headers.

        Raises:
            TransferError: the file is not a tar, or is damaged.
        """
        self._file = io.FileIO(path)
        self._found: dict[str, tuple[int, int] | str] = {}
        try:
            reader = TarReader(cast(BinaryIO, self._file))
            for number, member in enumerate(reader):
                if number == _MOST_MEMBERS:
                    raise TransferError(f"the archive has more than {_MOST_MEMBERS} files")
                name = _normal(os.fsdecode(member.name))
                link = os.fsdecode(member.link)
                if member.kind == "file":
                    self._found[name] = (self._file.tell(), member.size)
                elif member.kind == "symlink":
                    self._found[name] = _normal(posixpath.join(posixpath.dirname(name), link))
                elif member.kind == "hardlink":
                    self._found[name] = _normal(link)
                reader.skip()
        except BaseException:
            self._file.close()
            raise

    def open(self, name: str) -> BinaryIO:
        """Open a member, or the one to which a link leads; see :class:`Files`."""
        place = self._found[_normal(name)]
        for _ in range(_MOST_LINKS):
            if not isinstance(place, str):
                return cast(BinaryIO, io.BufferedReader(_Section(self._file.fileno(), *place)))
            place = self._found[place]
        raise KeyError(name)

    def close(self) -> None:
        """Close the tar."""
        self._file.close()


class _Section(io.RawIOBase):
    """A part of a file."""

    def __init__(self, file: int, offset: int, size: int) -> None:
        super().__init__()
        self._file = file
        self._at = offset
        self._end = offset + size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        part = memoryview(buffer)[: self._end - self._at]
        read = os.preadv(self._file, [part], self._at) if part else 0
        self._at += read
        return read


class _Hashed(io.RawIOBase):
    """A stream that computes the digest of what was read."""

    def __init__(self, file: BinaryIO, algorithm: str) -> None:
        super().__init__()
        self._file = cast(io.BufferedIOBase, file)
        self.hash = hashlib.new(algorithm)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        read = self._file.readinto(buffer)
        self.hash.update(memoryview(buffer)[:read])
        return read


@contextmanager
def checked(file: BinaryIO, digest: str) -> Iterator[BinaryIO]:
    """Yield a stream; raise at its end if what was read has another digest (``""``: not checked).

    Raises:
        ImageError: the digest is another one, or of an unknown algorithm.
    """
    algorithm, _, wanted = digest.partition(":")
    if not digest:
        yield file
        return
    if algorithm not in ("sha256", "sha512"):
        raise ImageError(f"its digest {digest[:100]!r} is of an unknown kind")
    hashed = _Hashed(file, algorithm)
    yield cast(BinaryIO, hashed)
    if hashed.hash.hexdigest() != wanted:
        raise ImageError(f"its part {digest} is damaged: it has another digest; copy it again")


@contextmanager
def decompressed(file: BinaryIO, scratch: Path) -> Iterator[BinaryIO]:
    """Yield the decompressed content of a file, by its first bytes; a file of another kind as it
    is.

    Args:
        file: the file, which is closed at the end.
        scratch: an existing directory for a copy of data for a program.

    Raises:
        ImageError: no program here can decompress it.
    """
    with file:
        buffered = cast(io.BufferedReader, file)
        head = buffered.peek(8)[:8]
        if head.startswith(_ZSTD):
            with _by_program(["zstd", "-dc"], file, scratch) as output:
                yield output
        elif head.startswith(_GZIP):
            with gzip.GzipFile(fileobj=file) as output:
                yield cast(BinaryIO, output)
        elif head.startswith(_BZIP2):
            with bz2.BZ2File(file) as output:
                yield cast(BinaryIO, output)
        elif head.startswith(_XZ):
            with lzma.LZMAFile(file) as output:
                yield cast(BinaryIO, output)
        else:
            yield file


def is_compressed(path: Path) -> bool:
    """Return whether a file is compressed, by its first bytes."""
    with open(path, "rb") as file:
        return file.read(8).startswith((_GZIP, _BZIP2, _XZ, _ZSTD))


def is_archive(path: Path, scratch: Path) -> bool:
    """Return whether a file is a tar, which may be compressed.

    Args:
        path: the file.
        scratch: see :func:`decompressed`.

    Raises:
        NoProgramError: no program here can decompress it.
    """
    try:
        with opened(path, scratch) as content:
            if next(iter(TarReader(content)), None) is not None:
                raise _EnoughRead  # else all that a program decompresses would be read
            return False
    except _EnoughRead:
        return True
    except NoProgramError:
        raise
    except (TransferError, ImageError, *DAMAGED, OSError):
        return False


@contextmanager
def opened(path: Path, scratch: Path) -> Iterator[BinaryIO]:
    """Yield the decompressed content of a file; the rest as for :func:`decompressed`."""
    with open(path, "rb") as file, decompressed(file, scratch) as content:
        yield content


@contextmanager
def _by_program(args: list[str], file: BinaryIO, scratch: Path) -> Iterator[BinaryIO]:
    copy = scratch / "compressed"
    try:
        with open(copy, "wb") as target:
            while chunk := file.read(_CHUNK):
                target.write(chunk)
        with open(copy, "rb") as source:
            try:
                process = spawn(args, stdin=source, stdout=PIPE, stderr=PIPE, cwd="/")
            except FileNotFoundError:
                raise NoProgramError(
                    f"it is compressed by {args[0]}, and no `{args[0]}` is on PATH; install it"
                ) from None
        with process:
            try:
                yield cast(BinaryIO, process.stdout)
                said = process.communicate()[1].decode(errors="replace").strip()
            except BaseException:
                kill_group(process)
                raise
        if process.returncode:
            raise ImageError(f"it cannot be decompressed: {said}; copy it again")
    finally:
        with suppress(FileNotFoundError):
            copy.unlink()


@contextmanager
def archive_errors(path: Path, place: Path) -> Iterator[None]:
    """Turn errors of reading an archive and of writing its files into ones that name both.

    Args:
        path: the archive.
        place: where its files are written.

    Raises:
        ImageError: the archive is hostile, damaged, or no image.
        StorageError: the files cannot be written.
    """
    start = f"{path} cannot be loaded as an image:"
    try:
        yield
    except (TransferError, ImageError) as error:
        raise ImageError(f"{start} {error}") from error
    except HyperRuntimeError:
        raise
    except DAMAGED as error:
        raise ImageError(f"{start} it is damaged ({error}); copy it again") from error
    except OSError as error:
        if error.errno in (None, *_UNFIT):
            why = f"it holds a file that cannot be made here ({error.strerror or error})"
            raise ImageError(f"{start} {why}") from error
        text = f"{start} {place} cannot be written: {error.strerror}"
        raise write_error(f"{text}; free space there", error) from error


def read_json_file(files: Files, name: str) -> bytes:
    """Return a file of limited size.

    Raises:
        KeyError: there is none of this name.
        ImageError: it is larger.
    """
    with files.open(name) as file:
        content = file.read(MOST_JSON + 1)
    if len(content) > MOST_JSON:
        raise ImageError(f"its {name} has more than {MOST_JSON} bytes")
    return content


def _normal(name: str) -> str:
    return posixpath.normpath(f"/{name}").lstrip("/")
