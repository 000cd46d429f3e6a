"""The layers of build steps, kept for later builds by the digest of all that they depend on."""

from __future__ import annotations

import errno
import os
import secrets
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hyperruntime.errors import write_error
from hyperruntime.host.process import run_process
from hyperruntime.layers.scratch import remove_tree
from hyperruntime.layers.snapshots.merging import FUSE

_KEPT_S = 7 * 24 * 3600.0
_LAYER = "u"
_KEY = "key"  # a file with the whole key
_DIGITS = 16  # paths of layers are short: those of one mount must fit into a page


class BuildCache:
    """The kept layers of one user. Safe to use from many processes."""

    def __init__(self, directory: Path, ids: Sequence[str], *, by_fuse: bool = False) -> None:
        """Read nothing.

        Args:
            directory: takes the layers.
            ids: options of ``unshare`` that map the ids of their files.
            by_fuse: whether they are those of ``fuse-overlayfs``.
        """
        self.directory = directory
        self._ids = tuple(ids)
        self._by_fuse = by_fuse

    def prepare(self) -> None:
        """Make the directory, which only this user can enter."""
        os.makedirs(self.directory, mode=0o700, exist_ok=True)
        if stat.S_IMODE(self.directory.stat().st_mode) != 0o700:
            self.directory.chmod(0o700)

    def find(self, key: str) -> str | None:
        """Return the newest layer of a key, which then stays for a week; None if there is none."""
        found = []
        for one in self.directory.glob(f"{key[:_DIGITS]}.*"):
            with suppress(OSError):  # it was removed meanwhile
                if (one / _KEY).read_text() == key:
                    found.append((one.stat().st_mtime, one))
        if not found:
            return None
        newest = max(found)[1]
        try:
            os.utime(newest)
        except OSError:
            return None
        return str(newest / _LAYER)

    def add(self, key: str, layer: str) -> str:
        """Move a layer, which nothing writes to, into the cache; return where it is then.

        Raises:
            StorageError: the cache cannot be written.
        """
        new = self.directory / f".new-{secrets.token_hex(8)}"
        kept = self.directory / f"{key[:_DIGITS]}.{secrets.token_hex(2)}"
        try:
            self.prepare()
            os.mkdir(new, mode=0o700)
            try:
                os.rename(layer, new / _LAYER)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                copy = ["unshare", *self._ids, "cp", "-a", layer, str(new / _LAYER)]
                copied = run_process(copy, cwd="/")
                if copied.exit_code != 0:
                    raise OSError(copied.error_text) from None
            (new / _KEY).write_text(key)
            if self._by_fuse:
                (new / FUSE).touch()
            os.rename(new, kept)
        except OSError as error:
            remove_tree(str(new))
            why = f"{self.directory} cannot be written: {error}; free space"
            raise write_error(why, error) from error
        return str(kept / _LAYER)

    def remove_old(self) -> None:
        """Remove what no build of the last week used."""
        for one in self.directory.glob("*"):
            with suppress(FileNotFoundError):
                if one.stat().st_mtime < time.time() - _KEPT_S:
                    old = one.with_name(f".old-{secrets.token_hex(8)}")
                    os.rename(one, old)  # nothing finds it while its files go
                    remove_tree(str(old))
