"""Where the library keeps what it may lose: one directory of the user's."""

from __future__ import annotations

from pathlib import Path

from platformdirs import user_cache_path

from hyperruntime.errors import StorageError


def cache_directory() -> Path:
    """Return the user's cache directory of this library, which may not exist yet.

    Raises:
        StorageError: the user has no home.
    """
    try:
        return user_cache_path("hyperruntime")
    except RuntimeError as error:
        raise StorageError(f"there is no cache directory: {error}") from error
