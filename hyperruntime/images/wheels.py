"""Download Python wheels on the host for an image, so that its build needs no package index and no proxy.

pip of the host uses its own settings; none of them is written into the image.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable
from pathlib import Path

from hyperruntime.host.process import run_process, stream_process

# Platform tags, oldest first, of wheels that work with the glibc of Debian 12.
_GLIBC = ("manylinux2014", "manylinux_2_17", "manylinux_2_24", "manylinux_2_28", "manylinux_2_34")


def download_wheels(
    requirements: Path, target: Path, python: str, program: str, on_output: Callable[[str], None]
) -> bool:
    """Download the wheels of a requirements file, and of pip; return True if all were downloaded.

    Otherwise the directory is removed, ``on_output`` receives the reason, and the build downloads the packages itself.

    Args:
        requirements: a requirements file of pip.
        target: the directory to create.
        python: the image's Python version, such as ``3.11``.
        program: a Python of the host; it may lack pip.
        on_output: called with each line that pip writes.
    """
    if run_process([program, "-m", "pip", "--version"]).exit_code != 0:
        on_output(f"{program} has no pip; the build downloads the packages itself")
        return False
    result = stream_process(pip_args(requirements, target, python, program), on_line=on_output)
    if result.exit_code == 0:
        return True
    shutil.rmtree(target, ignore_errors=True)
    on_output(f"pip could not download the wheels ({result.error_text}); the build downloads the packages itself")
    return False


def pip_args(requirements: Path, target: Path, python: str, program: str) -> list[str]:
    """Return the argv that downloads wheels for another Python than the host's.

    Args:
        requirements: a requirements file of pip.
        target: the directory for the wheels.
        python: the image's Python version, such as ``3.11``.
        program: a Python of the host with pip.
    """
    platforms = [word for glibc in _GLIBC for word in ("--platform", f"{glibc}_{platform.machine()}")]
    args = [program, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    args += ["--only-binary=:all:", "--implementation", "cp", "--python-version", python, *platforms]
    return [*args, "--dest", str(target), "--requirement", str(requirements), "pip"]
