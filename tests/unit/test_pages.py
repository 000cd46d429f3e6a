"""The documentation pages: their links, and the length of the tour."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hyperruntime.testing.conformance import CHECKS

ROOT = Path(__file__).parents[2]
PAGES = sorted((*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))
_LINK = re.compile(r"\]\((?!\w+:)([^)#]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_files_have_an_existing_target(page: Path) -> None:
    targets = _LINK.findall(page.read_text())
    assert not [target for target in targets if not (page.parent / target).exists()]


def test_each_attempt_in_the_table_of_hostile_agents_has_a_test_that_exists() -> None:
    rows = [
        line
        for line in (ROOT / "docs/security.md").read_text().splitlines()
        if line.startswith("| ")
    ]
    named = [
        re.findall(r"`([^`]+)`", row.rsplit("|", 2)[1])
        for row in rows
        if not row.startswith("| attempt")
    ]
    assert all(named)
    checks = {name for names in named for name in names if "::" not in name}
    assert checks <= CHECKS.keys(), checks - CHECKS.keys()
    places = {tuple(name.split("::")) for names in named for name in names if "::" in name}
    assert [
        place for place in places if f"def {place[1]}(" not in (ROOT / place[0]).read_text()
    ] == []


def test_the_tour_has_at_most_150_lines() -> None:
    assert len((ROOT / "docs/tour.md").read_text().splitlines()) <= 150
