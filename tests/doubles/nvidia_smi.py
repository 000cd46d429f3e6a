"""A program ``nvidia-smi`` that prints what a test wants."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def install_smi(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    """Put a shell script on PATH, in ``bin`` below a folder; another call replaces it."""
    program = folder / "bin" / "nvidia-smi"
    if not program.exists():
        program.parent.mkdir(exist_ok=True)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def listing(*memory_mib: int) -> str:
    """Return a script that lists a GPU for each of these amounts of memory in use."""
    rows = [f"{n}, GPU-fake{n}, {used}, 1000, 0, 1.0, Fake" for n, used in enumerate(memory_mib)]
    return "cat <<'EOF'\n" + "\n".join(rows) + "\nEOF"
