"""Error messages and help without torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BLOCKED = (
    "import sys; sys.modules['torch'] = None; from hyperruntime.cli import main; "
    "sys.exit(main(sys.argv[1:]))"
)


def run(directory: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run ``hyperrun`` in a process that cannot import torch."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", BLOCKED, *args]
    return subprocess.run(
        command, cwd=directory, env=env, capture_output=True, text=True, timeout=60
    )


def test_training_without_torch_names_the_extra_and_creates_nothing(tmp_path: Path) -> None:
    """One sentence with the next step, before any file is made."""
    done = run(tmp_path, "rollout", "train")
    assert done.returncode == 2
    assert "hyperruntime[train]" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["train", "export", "submit"])
def test_help_needs_no_torch(tmp_path: Path, command: str) -> None:
    """The export and the submission of groups do not need torch either."""
    done = run(tmp_path, "rollout", command, "--help")
    assert done.returncode == 0, done.stderr
    assert "Examples:" in done.stdout or "Example:" in done.stdout
