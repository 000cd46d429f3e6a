"""The table of requirements and faults is complete; every test that it, a page or a script names
exists.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import attrs

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "requirements-slots.md"
NUMBERS = [
    *(f"R{n}" for n in range(1, 23)),
    *(f"T{n}" for n in range(1, 5)),
    *(f"W{n}" for n in range(1, 28)),
]
NOT_DONE = "not done: "
_ROW = re.compile(r"\| ([RTW]\d+) \| ([^|]+) \| ([^|]+) \|")
_TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")
_OURS = re.compile(
    r"\b(tests/(?:contract|e2e|integrations|machine|slurm|training|unit)/[\w/]+\.py)(?:::(\w+))?"
)


@attrs.frozen
class Line:
    """One line of the table.

    Attributes:
        number: of the requirement or fault, such as R1.
        wanted: the requirement.
        shown: the tests that show it.
    """

    number: str
    wanted: str
    shown: str


def lines() -> list[Line]:
    found = [_ROW.fullmatch(line) for line in TABLE.read_text().splitlines()]
    return [Line(*match.groups()) for match in found if match]


@cache
def functions(path: Path) -> set[str]:
    return set(re.findall(r"^ *(?:async )?def (\w+)\(", path.read_text(), re.MULTILINE))


def test_every_number_has_exactly_one_line() -> None:
    assert [line.number for line in lines()] == NUMBERS
    rows = [text for text in TABLE.read_text().splitlines() if re.match(r"\| [RTW]\d", text)]
    assert len(rows) == len(NUMBERS)


def test_every_line_names_a_test_or_states_that_it_is_not_done() -> None:
    silent = [
        line.number
        for line in lines()
        if not _TEST.search(line.shown) and NOT_DONE not in line.shown
    ]
    assert silent == []


def test_every_named_test_exists() -> None:
    named = {test for line in lines() for test in _TEST.findall(line.shown)}
    missing = [
        f"{path}::{name}"
        for path, name in sorted(named)
        if not (ROOT / path).is_file()
        or name not in functions(ROOT / path)
        or not _is_run(path, name)
    ]
    assert missing == []
    assert len(named) > len(NUMBERS) // 2


def test_pages_and_scripts_name_only_tests_that_exist() -> None:
    pages = [
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "CONTRIBUTING.md",
        ROOT / "README.md",
        ROOT / "scripts/test",
    ]
    named = {found for page in pages for found in _OURS.findall(page.read_text())}
    missing = [
        f"{path}::{name}"
        for path, name in sorted(named)
        if not (ROOT / path).is_file() or (name and name not in functions(ROOT / path))
    ]
    assert missing == []
    assert len(named) > 100


def _is_run(path: str, name: str) -> bool:
    """Tell whether pytest or the conformance suite runs a function."""
    return name.startswith("test_") or path.startswith("hyperruntime/testing/conformance/")
