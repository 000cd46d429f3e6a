"""The host's own pytest, for images that have none: a few files of Python alone."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hyperruntime.errors import ExtraMissingError
from hyperruntime.owner import owned_directory

_NEEDED = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "py")


@contextmanager
def pytest_files() -> Iterator[Path]:
    """Yield a directory that a Python of any machine can import pytest from.

    Raises:
        ExtraMissingError: this Python has no pytest.
    """
    with owned_directory() as directory:
        folder = Path(directory) / "python"
        folder.mkdir()
        for name in _NEEDED:
            spec = importlib.util.find_spec(name)
            if spec is None or spec.origin is None:
                raise ExtraMissingError("tests of images without pytest", name, "terminal")
            if spec.submodule_search_locations:
                source = Path(spec.origin).parent
                shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
            else:
                shutil.copy2(spec.origin, folder)
        yield folder
