"""Classes of the requests and answers about files, from which the OpenAPI document is made."""

from __future__ import annotations

from typing import Literal

import attrs

from hyperruntime.serve.models import ContainerName
from hyperruntime.transfer.copy import DEFAULT_TIMEOUT_S
from hyperruntime.transfer.file_calls import FILE_TIMEOUT_S


@attrs.frozen(kw_only=True)
class FilePath(ContainerName):
    """A path in a container.

    Attributes:
        path: absolute path; percent-encoded bytes that are not UTF-8 are allowed.
        user: as for a command.
        timeout_s: seconds after which the request is ended, as for a pipe into which nothing is
            written; null means 60, and 600 for an archive.
    """

    path: str
    user: str | None = None
    timeout_s: float | None = None

    @property
    def deadline_s(self) -> float:
        """Seconds for a request about one path."""
        return FILE_TIMEOUT_S if self.timeout_s is None else self.timeout_s

    @property
    def archive_deadline_s(self) -> float:
        """Seconds for an archive."""
        return DEFAULT_TIMEOUT_S if self.timeout_s is None else self.timeout_s


@attrs.frozen(kw_only=True)
class FileToRead(FilePath):
    """A file to read.

    Attributes:
        limit_bytes: most bytes that it may have.
    """

    limit_bytes: int | None = None


@attrs.frozen(kw_only=True)
class FileToWrite(FilePath):
    """A file to write.

    Attributes:
        mode: permission bits as octal digits, such as `0644`; null keeps those of an existing file.
        parents: whether missing directories are made.
    """

    mode: str | None = None
    parents: bool = True


@attrs.frozen(kw_only=True)
class PathToLookAt(FilePath):
    """A path whose facts are wanted.

    Attributes:
        follow_symlinks: whether the facts are those of the file that a link leads to.
    """

    follow_symlinks: bool = True


@attrs.frozen(kw_only=True)
class FileFacts:
    """The facts of a path.

    Attributes:
        kind: what it is.
        size_bytes: its size.
        mode: its permission bits as octal digits.
        uid: its owner.
        gid: its group.
        links: number of its hard links.
        modified_s: time of its last change of content, in whole seconds since 1970.
    """

    kind: Literal[
        "file",
        "directory",
        "symlink",
        "fifo",
        "socket",
        "character device",
        "block device",
        "unknown",
    ]
    size_bytes: int
    mode: str
    uid: int
    gid: int
    links: int
    modified_s: int


@attrs.frozen(kw_only=True)
class DirectoryNames:
    """The names in a directory.

    Attributes:
        names: sorted; bytes that are not UTF-8 are lone surrogates, as Python's `os.fsdecode` makes
            them.
    """

    names: tuple[str, ...]
