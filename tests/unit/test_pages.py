"""The pages: links lead somewhere, and the tour stays short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))
_LINK = re.compile(r"\]\((?!\w+:)([^)#]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_files_lead_somewhere(page: Path) -> None:
    targets = _LINK.findall(page.read_text())
    assert not [target for target in targets if not (page.parent / target).exists()]


def test_the_tour_is_read_in_one_sitting() -> None:
    assert len((ROOT / "docs/tour.md").read_text().splitlines()) <= 150
