"""The pages of the benchmarks: tables in Markdown, of rows that were measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from tests.bench.measure import Row, machine


def report(title: str, rows: Sequence[Row], path: str | None) -> int:
    """Print the table of a measurement and write its report for a page; return an exit code: 1 if a
    promise is broken.

    Args:
        title: of the table.
        rows: what was measured.
        path: of the report, JSON; None for none.
    """
    return finish(facts(title, title, rows), path)


def facts(title: str, short: str, rows: Sequence[Row]) -> dict[str, Any]:
    """Return a report as JSON values."""
    values = [attrs.asdict(row) for row in rows]
    return {"title": title, "short": short, "machine": machine(), "rows": values}


def finish(made: dict[str, Any], path: str | None) -> int:
    """Print a report and write it for a page; return an exit code: 1 if a promise is broken."""
    print(document(made))
    if path:
        Path(path).write_text(json.dumps(made))
    return 0 if all(row["holds"] is not False for row in made["rows"]) else 1


def write(page: str, head: str, names: Sequence[str], *, with_overview: bool = False) -> int:
    """Write a page from the files of reports; return the exit code."""
    reports = [json.loads(Path(name).read_text()) for name in names]
    parts = [head, overview(reports) if with_overview else "", *map(document, reports)]
    Path(page).write_text("".join(parts))
    return 0


def overview(reports: list[dict[str, Any]]) -> str:
    """Return one table of all engines: each measurement, with its ratio to the comparison."""
    names = dict.fromkeys(row["what"] for report in reports for row in report["rows"])
    tables = [{row["what"]: row for row in report["rows"]} for report in reports]
    lines = [
        "\n## All engines\n",
        "| what | " + " | ".join(report["short"] for report in reports) + " |",
    ]
    lines.append("|---" * (len(reports) + 1) + "|")
    for name in names:
        cells = [_short_cell(table[name]) if name in table else "" for table in tables]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def document(report: dict[str, Any]) -> str:
    lines = [f"\n## {report['title']}\n", f"{report['machine']}\n"]
    lines += [f"{report['note']}\n"] if report.get("note") else []
    lines += ["| what | ours | beside | ratio | promise | holds |", "|---|---|---|---|---|---|"]
    for row in report["rows"]:
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
        holds = {True: "yes", False: "**no**", None: ""}[row["holds"]]
        lines.append(
            f"| {row['what']} | {_value(row)} | {row['compared_to']} | {ratio} | "
            f"{row['wanted']} | {holds} |"
        )
    return "\n".join(lines) + "\n"


def _short_cell(row: dict[str, Any]) -> str:
    ratio = "" if row["ratio"] is None else f" ({row['ratio']:.3g}x)"
    return f"{_value(row)}{ratio}{' **no**' if row['holds'] is False else ''}"


def _value(row: dict[str, Any]) -> str:
    digits = 2 if isinstance(row["value"], float) and row["value"] < 10 else 0
    return f"{row['value']:.{digits}f} {row['unit']}"
