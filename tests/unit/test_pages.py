"""The documentation pages: their links, the length of sentences, and the length of the tour."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from hyperruntime.testing.conformance import CHECKS

ROOT = Path(__file__).parents[2]
PAGES = sorted((*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))
MOST_WORDS = 38
_LINK = re.compile(r"\]\((?!\w+:)([^)#]+)(?:#[^)]*)?\)")
_LIST_OF_PAGES = re.compile(r"^:::\{toctree\}.*?^:::$", re.DOTALL | re.MULTILINE)
_END_OF_SENTENCE = re.compile(r"(?<=[.!?])[)\"']*\s+")


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


def sentences(page: Path) -> Iterator[tuple[int, str]]:
    """Yield the sentences of a page, each with the line of its paragraph, item or cell. Code is one
    word; a list of pages is none.
    """
    text = _LIST_OF_PAGES.sub(lambda found: "\n" * found[0].count("\n"), page.read_text())
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        words = (
            {"code_inline": "CODE", "softbreak": " "}.get(child.type, child.content)
            for child in token.children or ()
        )
        for sentence in _END_OF_SENTENCE.split("".join(words)):
            yield (token.map or [0])[0] + 1, sentence


def test_no_sentence_is_longer_than_a_reader_can_follow() -> None:
    long = [
        f"{page.relative_to(ROOT)}:{line}: {len(sentence.split())} words: {sentence}"
        for page in PAGES
        for line, sentence in sentences(page)
        if len(sentence.split()) > MOST_WORDS
    ]
    assert long == [], "split them: one thought for each sentence"


def test_pages_that_sources_name_exist() -> None:
    named = {
        (str(path.relative_to(ROOT)), page)
        for folder in ("hyperruntime", "runtimes", "environments", "trainers", "tests")
        for path in ROOT.glob(f"{folder}/**/*.py")
        for page in re.findall(r"docs/design/[\w.#-]+[\w]", path.read_text())
    }
    assert len(named) > 30
    assert [(path, page) for path, page in named if not has_heading(page)] == []


def has_heading(page: str) -> bool:
    """Return whether a page exists and, if an anchor is named, a heading of this anchor."""
    path, _, anchor = page.partition("#")
    if not (ROOT / path).is_file():
        return False
    heads = re.findall(r"^#+ (.*)$", (ROOT / path).read_text(), re.MULTILINE)
    return anchor in {
        "",
        *(re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads),
    }
