"""The code of docs/tour.md runs unchanged."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine

_PAGE = (Path(__file__).parents[2] / "docs/tour.md").read_text()
_BIN = os.path.dirname(sys.executable)


@pytest.mark.parametrize("number", range(2))
def test_the_python_of_the_tour_runs(number: int, runtime_name: str, tmp_path: Path) -> None:
    code = re.findall(r"```python\n(.*?)```", _PAGE, re.DOTALL)[number]
    code = code.replace("open_runtime()", f"open_runtime({runtime_name!r})")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "hello" in done.stdout


def test_the_command_of_the_tour_runs(runtime_name: str, tmp_path: Path) -> None:
    (command,) = re.findall(r"```bash\n(.*?)```", _PAGE, re.DOTALL)
    env = {**os.environ, "PATH": f"{_BIN}:{os.environ['PATH']}"}
    command = command.replace("hyperrun ", f"hyperrun --runtime {runtime_name} ")
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
