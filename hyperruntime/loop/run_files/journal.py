"""``journal.jsonl``: the append-only journal of the finished generations.

A line is the record of a generation, or a *mark*: a fact about an earlier generation, for example that it may no longer
become a parent. So written lines never change.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import attrs

from hyperruntime.errors import ArchiveError
from hyperruntime.loop.run_files.parent_rules import GenId
from hyperruntime.loop.run_files.record import SCHEMA, GenerationRecord, record_from_json, structured

MarkKind = Literal["no-parent", "no-selection"]


@attrs.frozen(kw_only=True)
class GenerationMark:
    """A fact about a generation that was learned after it had finished.

    Attributes:
        kind: ``no-parent``: it may no longer become a parent; ``no-selection``: its own parent selection failed.
        genid: the generation.
        by: the later generation that showed the fact, or None.
        detail: one sentence for people, or "".
    """

    kind: MarkKind
    genid: GenId
    by: GenId | None = None
    detail: str = ""


def mark_to_json(mark: GenerationMark) -> dict[str, Any]:
    """Return a mark as a line of the journal."""
    value = attrs.asdict(mark)
    return {"schema": SCHEMA, "mark": value.pop("kind"), **value}


def read_journal(path: Path, problems: list[str]) -> Iterator[tuple[int, GenerationRecord | GenerationMark]]:
    """Yield the number and the content of each readable line.

    Args:
        path: the journal; it may be missing.
        problems: receives one sentence for each line that cannot be read.

    Raises:
        ArchiveError: the file cannot be read.
    """
    for number, line in enumerate(_lines(path), 1):
        try:
            value = json.loads(line)
            if isinstance(value, dict) and "mark" in value:
                yield number, structured(GenerationMark, {**value, "kind": value["mark"]})
            else:
                yield number, record_from_json(value)
        except (ValueError, OverflowError, RecursionError) as error:
            problems.append(f"line {number} of {path.name} is damaged and was skipped: {error}")


def _lines(path: Path) -> list[bytes]:
    try:
        return [line for line in path.read_bytes().split(b"\n") if line.strip()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ArchiveError(f"{str(path)!r} cannot be read: {error.strerror}") from error
