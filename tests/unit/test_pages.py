"""The documentation pages: their links, and the length of the tour."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))
_LINK = re.compile(r"\]\((?!\w+:)([^)#]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_files_have_an_existing_target(page: Path) -> None:
    targets = _LINK.findall(page.read_text())
    assert not [target for target in targets if not (page.parent / target).exists()]


def test_the_tour_has_at_most_150_lines() -> None:
    assert len((ROOT / "docs/tour.md").read_text().splitlines()) <= 150
