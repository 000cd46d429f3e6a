"""Make the build context of an image of this machine's files: its programs, its libraries, and the
Python that runs this, with its torch. For a machine that reaches no registry.
"""

from __future__ import annotations

import os
import shlex
import shutil
import site
import sys
from collections.abc import Iterator
from pathlib import Path

# Of /usr: what neither a shell nor torch needs.
_UNNEEDED = {"share", "src", "include", "games", "local"}
# Packages beside torch that are large; none of them is imported by it.
_LARGE = ("jax", "cupy", "tensorstore", "orbax", "opencv", "cv2", "vtk", "pyarrow", "onnx", "ray")
_LINKS = ("bin", "sbin", "lib", "lib32", "lib64")
_FILES = ("passwd", "group", "ld.so.cache", "nsswitch.conf")


def write_context(context: Path) -> int:
    """Write a Dockerfile and the files that it copies; return their bytes.

    Files are hard links where that works, so nothing is copied twice.

    Args:
        context: a new directory.
    """
    root = context / "root"
    root.mkdir(parents=True)
    for name in _LINKS:
        path = Path("/", name)
        if path.is_symlink():
            (root / name).symlink_to(os.readlink(path))
        elif path.is_dir():
            _copy(path, root)
    for path in sorted(Path("/usr").iterdir()):
        if path.name not in _UNNEEDED:
            _copy(path, root)
    (root / "etc").mkdir()
    for name in _FILES:
        if Path("/etc", name).is_file():
            shutil.copy2(Path("/etc", name), root / "etc" / name)
    for path in _python():
        _copy(path, root)
    for name in ("tmp", "proc", "sys", "dev", "root", "usr/local/bin"):
        (root / name).mkdir(parents=True, exist_ok=True)
    python = root / "usr/local/bin/python3"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    (context / "Dockerfile").write_text("FROM scratch\nCOPY root /\n")
    return sum(path.lstat().st_size for path in root.rglob("*"))


def _python() -> Iterator[Path]:
    """Yield the directories of this Python and of its packages, the outermost ones."""
    wanted = {Path(sys.prefix), Path(sys.base_prefix), *map(Path, site.getsitepackages())}
    wanted |= {path.resolve() for path in wanted}
    for path in sorted(wanted):
        inside = any(other != path and path.is_relative_to(other) for other in wanted)
        if path.is_dir() and path != Path("/usr") and not inside:
            yield path


def _copy(source: Path, root: Path) -> None:
    target = root / source.relative_to("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink() or source.is_file():
        _link(str(source), str(target))
    elif source.is_dir() and not target.exists():
        shutil.copytree(
            source, target, symlinks=True, ignore=_ignored, copy_function=_link,
            ignore_dangling_symlinks=True,
        )  # fmt: skip


def _ignored(_: str, names: list[str]) -> list[str]:
    return [name for name in names if name == "__pycache__" or name.startswith(_LARGE)]


def _link(source: str, target: str) -> str:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)
    return target
