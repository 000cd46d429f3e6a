"""The command line of this checkout in a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path


def program() -> str:
    """Return the path of the installed console script."""
    beside = Path(sysconfig.get_path("scripts"), "hyperrun")
    found = str(beside) if beside.is_file() else shutil.which("hyperrun")
    assert found, "hyperrun is not installed beside this Python"
    return found


def cli(*words: str) -> list[str]:
    """Return the arguments that run a command of ``hyperrun`` with this Python."""
    return [sys.executable, "-m", "hyperruntime.cli", *words]


def hyperrun(
    *words: str,
    data: bytes | None = b"",
    cwd: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 180,
) -> subprocess.CompletedProcess[bytes]:
    """Run ``hyperrun`` until it exits; ``data`` is its standard input, ``env`` more variables."""
    return subprocess.run(
        [program(), *words],
        input=data,
        capture_output=True,
        timeout=timeout_s,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        check=False,
    )
