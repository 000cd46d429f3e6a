"""The files of a build context that a build may read, and their digests."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from hyperruntime.errors import SpecError
from hyperruntime.images.building.ignore import Ignored, ignore_file, kept_files
from hyperruntime.images.building.sources import Found, find


class Context:
    """The files of a context, without those that its ignore file leaves out.

    Attributes:
        path: the directory, without links.
        is_whole: whether nothing is left out.
    """

    def __init__(self, path: Path, containerfile: Path) -> None:
        """Read the ignore file.

        Raises:
            SpecError: one of its patterns is malformed.
        """
        self.path = path.resolve()
        file = ignore_file(self.path, containerfile)
        self.is_whole = file is None
        self._ignored = Ignored.of(file)

    @cached_property
    def kept(self) -> Mapping[str, os.stat_result]:
        """The paths of the files, directories and links, with the facts about them."""
        return kept_files(self.path, self._ignored)

    def find(self, source: str) -> list[Found]:
        """Return the files and directories that a source of ``COPY`` means.

        Raises:
            OSError: links have no end.
            SpecError: there is none, or the pattern is malformed.
        """
        found = find(str(self.path), source, self.kept)
        if not found:
            why = f"the source does not exist in {self.path}"
            raise SpecError("Containerfile", f"COPY {source}", why)
        return found

    def copy(self, found: Found, directory: Path) -> None:
        """Copy a file, or the contents of a directory, into a directory; links stay links.

        Raises:
            OSError: a file cannot be read.
        """

        def left_out(folder: str, names: list[str]) -> list[str]:
            below = os.path.relpath(folder, self.path)
            return [one for one in names if os.path.normpath(f"{below}/{one}") not in self.kept]

        source = self.path / found.path
        if source.is_dir():
            shutil.copytree(source, directory, symlinks=True, dirs_exist_ok=True, ignore=left_out)
        else:
            shutil.copy2(source, directory / found.name)

    def digest(self, sources: Sequence[str]) -> str:
        """Return a digest of what sources mean: names, kinds, modes and contents.

        Raises:
            SpecError: a file cannot be read, or a pattern is malformed.
        """
        found = hashlib.sha256()
        try:
            for source in sources:
                for one in find(str(self.path), source, self.kept):
                    found.update(f"{one.name}\0".encode(errors="surrogateescape"))
                    below = f"{one.path}/" if one.path else ""
                    for path, status in self.kept.items():
                        if path == one.path or path.startswith(below):
                            self._add(found, path[len(below) :], path, status)
        except OSError as error:
            raise SpecError("context", str(self.path), f"it must be readable ({error})") from error
        return found.hexdigest()

    def _add(self, found: hashlib._Hash, name: str, path: str, status: os.stat_result) -> None:
        facts = f"{name}\0{status.st_mode}\0"
        found.update(facts.encode(errors="surrogateescape"))
        if stat.S_ISLNK(status.st_mode):
            found.update(os.fsencode(os.readlink(self.path / path)) + b"\0")
        elif stat.S_ISREG(status.st_mode):
            with open(self.path / path, "rb") as file:
                found.update(hashlib.file_digest(file, "sha256").digest())
