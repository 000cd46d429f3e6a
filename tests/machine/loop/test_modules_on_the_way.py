"""The number of modules that a run enters on the way to its first container stays small, so that a
reader can follow it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
MOST = 83
MOST_OF_THE_LOOP = 17


def test_a_run_enters_few_modules_before_its_first_container() -> None:
    command = [sys.executable, str(ROOT / "tests/bench/modules.py")]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=120)
    names = [line.split()[1] for line in done.stdout.splitlines() if line[:4].strip().isdigit()]
    assert "loop/generation/generation.py" in names
    assert len(names) <= MOST, names
    assert len([name for name in names if name.startswith("loop/")]) <= MOST_OF_THE_LOOP, names
