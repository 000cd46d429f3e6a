"""The code blocks of the pages, and the notes that stand as HTML comments before them.

``<!-- fragment: REASON -->``: the block cannot run here. ``<!-- slow -->``: it runs only in
``make test-all``. ``<!-- images -->``: it needs an engine that can have several images, so not
bubblewrap. ``<!-- file: NAME -->``: it is this file. ``<!-- continues -->``: it continues the
page's previous Python block. ``<!-- part: PATH -->``: it is a part of this file of the repository,
which another test runs.

Only a parser of Markdown comes from outside. Sybil and the plugins of pytest for code blocks run
Python in the process of the tests, and leave out what is not run; here options and configuration
files of fragments are checked too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import attrs
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[1]
PAGES = sorted((*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))
SHELLS, DATA, PLAIN = ("console", "bash", "sh"), ("toml", "yaml", "json"), ("text",)
NOTES = ("fragment", "slow", "images", "file", "continues", "part")
_NOTE = re.compile(r"<!-- ([a-z]+)(?:: (.*?))? -->")
_PROMPT = re.compile(r"^\$ ", re.MULTILINE)


@attrs.frozen(kw_only=True)
class Block:
    """A code block.

    Attributes:
        page: its page.
        line: number of its first line.
        language: what follows the fence; "" for an indented block.
        text: its text; that of a block that continues another begins with the other's.
        notes: values of the notes before it, by name.
    """

    page: Path
    line: int
    language: str
    text: str
    notes: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def commands(self) -> list[tuple[str, str]]:
        """Return the commands of a shell block, each with the output that the block shows after
        it.
        """
        if self.language != "console":
            return [(self.text, "")]
        parts = (
            re.match(r"((?:[^\n]*\\\n)*[^\n]*\n?)(.*)", part, re.DOTALL)
            for part in _PROMPT.split(self.text)[1:]
        )
        return [(found[1], found[2]) for found in parts if found]


@cache
def blocks(page: Path) -> list[Block]:
    """Return the code blocks of a page, in order; indented ones too."""
    found: list[Block] = []
    notes: dict[str, str] = {}
    previous = ""
    for token in MarkdownIt("commonmark").parse(page.read_text()):
        if token.type == "html_block":
            notes.update(_NOTE.findall(token.content))
            continue
        if token.type in ("fence", "code_block"):
            text = f"{previous}\n\n{token.content}" if "continues" in notes else token.content
            line = token.map[0] + 1 if token.map else 0
            found.append(
                Block(page=page, line=line, language=token.info.strip(), text=text, notes=notes)
            )
            previous = text if token.info.strip() == "python" else previous
        notes = {}
    return found
