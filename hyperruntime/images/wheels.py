"""Fetch Python wheels on the host for an image, whose build then needs neither index nor proxy nor settings.

pip of the host takes them from wherever it is told to take packages; nothing of that is written into the image.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable
from pathlib import Path

from hyperruntime.host.process import run_process, stream_process

# Oldest first: what a wheel for any glibc that Debian 12 can run may be called.
_GLIBC = ("manylinux2014", "manylinux_2_17", "manylinux_2_24", "manylinux_2_28", "manylinux_2_34")


def download_wheels(
    requirements: Path, target: Path, python: str, program: str, on_output: Callable[[str], None]
) -> bool:
    """Fetch wheels of what a file requires, and of pip, for an image's Python; return whether all are there.

    Without them, and without the directory, the build fetches packages itself; ``on_output`` hears why.

    Args:
        requirements: pip's file.
        target: the directory to make.
        python: the image's Python, as ``3.11``.
        program: a Python of the host that may have pip.
        on_output: called with each line that pip writes.
    """
    if run_process([program, "-m", "pip", "--version"]).exit_code != 0:
        on_output(f"{program} has no pip: the build fetches the Python packages itself")
        return False
    result = stream_process(pip_args(requirements, target, python, program), on_line=on_output)
    if result.exit_code == 0:
        return True
    shutil.rmtree(target, ignore_errors=True)
    on_output(f"pip could not fetch the wheels ({result.error_text}): the build fetches the Python packages itself")
    return False


def pip_args(requirements: Path, target: Path, python: str, program: str) -> list[str]:
    """Return the argv that fetches wheels for another Python than the host's: pure."""
    platforms = [word for glibc in _GLIBC for word in ("--platform", f"{glibc}_{platform.machine()}")]
    args = [program, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    args += ["--only-binary=:all:", "--implementation", "cp", "--python-version", python, *platforms]
    return [*args, "--dest", str(target), "--requirement", str(requirements), "pip"]
