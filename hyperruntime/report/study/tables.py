r"""Tables as CSV and as LaTeX. All texts are data: no cell is a formula, and none a command.

Source: RFC 4180 for CSV. A cell that a spreadsheet could take for a formula begins with ``'``
(OWASP, CSV Injection). LaTeX's special characters are escaped; the tables need ``\usepackage
{booktabs}`` and UTF-8.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import attrs

from hyperruntime.storage.atomic import make_directory, write_atomic

Cell = str | float | int | None
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\symbol{34}",  # some languages make it a command
    "-": "{-}",  # two of them are a dash
    "'": r"\textquotesingle{}",
    "`": r"\textasciigrave{}",  # after ? or ! it makes another letter
    "*": "{*}",  # else a part of the line break before it
    "[": "{[}",  # likewise, an argument
    "]": "{]}",
}


@attrs.frozen(kw_only=True)
class Table:
    """A table of figures.

    Attributes:
        name: of its files.
        caption: one sentence.
        columns: the headings.
        rows: one cell for each column.
    """

    name: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def write_tables(tables: Iterable[Table], folder: Path) -> Iterator[Path]:
    """Write each table as CSV and as LaTeX, and yield the paths.

    Raises:
        StorageError: a file cannot be written.
    """
    target = make_directory(folder)
    for table in tables:
        for ending, text in ((".csv", to_csv(table)), (".tex", to_latex(table))):
            path = target / f"{table.name}{ending}"
            write_atomic(path, text.encode())
            yield path


def to_csv(table: Table) -> str:
    """Return a table as CSV with a line of headings; numbers have all their digits."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\r\n")
    for row in (table.columns, *table.rows):
        writer.writerow([_csv_cell(cell) for cell in row])
    return file.getvalue()


def _csv_cell(cell: Cell) -> str:
    if isinstance(cell, str):
        text = one_line(cell)
        return f"'{text}" if text.startswith(_FORMULA) else text
    return "" if cell is None else repr(cell)


def to_latex(table: Table) -> str:
    """Return a table as a LaTeX float; numbers have four digits after the point."""
    sides = "".join("r" if _is_number(table, at) else "l" for at in range(len(table.columns)))
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{latex_text(table.caption)}}}",
        rf"\begin{{tabular}}{{{sides}}}",
        r"\toprule",
        _latex_row(table.columns),
        r"\midrule",
        *map(_latex_row, table.rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _is_number(table: Table, at: int) -> bool:
    cells = [row[at] for row in table.rows if row[at] is not None]
    return bool(cells) and not any(isinstance(cell, str) for cell in cells)


def _latex_row(row: Sequence[Cell]) -> str:
    return " & ".join(map(_latex_cell, row)) + r" \\"


def _latex_cell(cell: Cell) -> str:
    return latex_text(cell) if isinstance(cell, str) else shown(cell).replace("-", "$-$")


def latex_text(text: str) -> str:
    """Return a text that LaTeX prints as it is; control characters become spaces."""
    return "".join(_SPECIAL.get(letter, letter) for letter in one_line(text))


def shown(cell: Cell) -> str:
    """Return a cell for people: a number with at most four digits after the point."""
    if cell is None:
        return ""
    if isinstance(cell, float) and math.isfinite(cell):
        if cell == 0 or abs(cell) >= 1e-4:
            return f"{cell:.4f}"
        return f"{cell:.2e}"
    return str(cell)


def one_line(text: str) -> str:
    """Return a text without control characters and halves of characters, which no file may have."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
