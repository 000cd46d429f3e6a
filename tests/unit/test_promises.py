"""The table of promises in CONTRIBUTING.md: where each is tested."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_contract_test_is_in_the_table_of_promises() -> None:
    table = [
        line for line in (ROOT / "CONTRIBUTING.md").read_text().splitlines() if line.startswith("|")
    ]
    named = set(re.findall(r"`(test_\w+\*?)`", "\n".join(table)))
    modules = {path.stem for path in (ROOT / "tests/contract").glob("test_*.py")}
    assert {
        module for module in modules if not any(fnmatch(module, name) for name in named)
    } == set()
    assert {name for name in named if not any(fnmatch(module, name) for module in modules)} == set()
