"""Figures in the tables that ``make bench`` and ``make bench-slots`` write."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[1]
_COMPARED = re.compile(r"(?:^|: )([\d.,]+) ?(?:ms|/h)\b")
_FIGURE = re.compile(r"^([\d.,]+) ?(ms|s|MiB/s|execs/s|/s|an hour|/min)\b")


def figures(page: str, row: str) -> dict[str, float]:
    """Return the figures of a row of the first table of a page of benchmarks, by engine.

    Args:
        page: name of the page in ``docs``.
        row: the row's first cell.

    Raises:
        LookupError: the page has no such row.
    """
    lines = [
        line.split("|")[1:-1]
        for line in (DOCS / page).read_text().splitlines()
        if line.startswith("| ")
    ]
    heads, *rows = ([cell.strip() for cell in line] for line in lines)
    for cells in rows:
        if cells[0] == row:
            found = {
                head: _FIGURE.match(cell) for head, cell in zip(heads[1:], cells[1:], strict=False)
            }
            return {
                head: float(match[1].replace(",", "")) for head, match in found.items() if match
            }
    raise LookupError(f"{page} has no row {row!r}; `make bench` may have renamed it")


def beside(page: str, row: str) -> dict[str, tuple[float, float]]:
    """Return our figure and the one beside it, in milliseconds or by the hour.

    The key is what a row is compared "in turn with"; of other rows, the heading of its section,
    from its first comma on. Of several rows with one key, the first counts.

    Args:
        page: name of the page in ``docs``.
        row: a pattern that the row's first cell matches.
    """
    found: dict[str, tuple[float, float]] = {}
    heads: list[str] = []
    section = ""
    for line in (DOCS / page).read_text().splitlines():
        if line.startswith("## "):
            section = line[3:].partition(", ")[2] or line[3:]
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if not cells or cells[0] == "what":
            heads = cells
        elif heads[1:3] == ["ours", "beside"] and re.fullmatch(row, cells[0]):
            ours, theirs = (_COMPARED.search(cell) for cell in cells[1:3])
            if ours and theirs:
                _, named, name = cells[0].rpartition("in turn with ")
                pair = float(ours[1].replace(",", "")), float(theirs[1].replace(",", ""))
                found.setdefault(name if named else section, pair)
    return found
