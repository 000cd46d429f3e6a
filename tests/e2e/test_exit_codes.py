"""Each command in the tables of docs/reference/exit-codes.md has the exit code that its row
names.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.command import program

pytestmark = pytest.mark.engine

PAGE = Path(__file__).parents[2] / "docs/reference/exit-codes.md"
ROWS = re.findall(r"^\| ([^|]+) \| [^|]+ \| `(.+)` \|$", PAGE.read_text(), re.MULTILINE)
CODES = {"that of the command": 7, "128 + N": 137}  # as the examples of these rows do


@pytest.mark.parametrize(("said", "line"), ROWS, ids=[line for _, line in ROWS])
def test_a_command_has_the_exit_code_of_its_row(
    tmp_path: Path, runtime_name: str, base_image: str, said: str, line: str
) -> None:
    (tmp_path / "broken-agent").mkdir()
    (tmp_path / "empty").mkdir()
    for name in ("broken.toml", "broken-agent/hyperrun.toml"):
        (tmp_path / name).write_text("[table\n")
    line = line.replace("\\|", "|").replace(
        "hyperrun ", f"{program()} --runtime {runtime_name} ", 1
    )
    done = subprocess.run(
        ["/bin/bash", "-o", "pipefail", "-c", line], cwd=tmp_path, env=dict(os.environ), capture_output=True,
        text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == CODES.get(said, int(said) if said.isdigit() else -1), done.stderr
    assert "Traceback" not in done.stderr
