"""The library's cache: one directory of the user; its content can be removed at any time."""

from __future__ import annotations

from pathlib import Path

from platformdirs import user_cache_path

from hyperruntime.errors import StorageError


def cache_directory() -> Path:
    """Return the library's cache directory of this user; it may not exist yet.

    Raises:
        StorageError: the user has no home directory.
    """
    try:
        return user_cache_path("hyperruntime")
    except RuntimeError as error:
        raise StorageError(
            f"the user has no cache directory: {error}; set HOME or XDG_CACHE_HOME"
        ) from error
