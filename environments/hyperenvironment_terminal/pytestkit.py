"""Copy the host's pytest for images without one; only pure Python files are copied."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

from hyperruntime.errors import ExtraMissingError

_NEEDED = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "py")
# The parts of pygments that pytest imports without colours; the rest is ten times larger.
_FEW = {"lexers": ("__init__.py", "_mapping.py", "diff.py", "python.py"), "styles": ("__init__.py", "_mapping.py")}


def copy_pytest(folder: Path) -> None:
    """Create a directory from which Python on any machine can import pytest.

    Raises:
        ExtraMissingError: pytest or one of its dependencies is not installed.
    """
    folder.mkdir()
    for name in _NEEDED:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise ExtraMissingError("tests of images without pytest", name, "terminal")
        if spec.submodule_search_locations:
            shutil.copytree(Path(spec.origin).parent, folder / name, ignore=_left_out)
        else:
            shutil.copy2(spec.origin, folder)


def _left_out(directory: str, names: list[str]) -> set[str]:
    few = _FEW.get(Path(directory).name) if Path(directory).parent.name == "pygments" else None
    return {
        name for name in names if name == "__pycache__" or name.endswith(".so") or (few is not None and name not in few)
    }
