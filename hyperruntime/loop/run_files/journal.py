"""``journal.jsonl``: what became of every generation, one line each, only ever appended.

A line is a generation's record, or a *mark* that says something of a generation that is there already: that it may not
be a parent any more, or that its own way to choose parents does not work. So nothing that was written is written again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args

import attrs

from hyperruntime.errors import ArchiveError
from hyperruntime.loop.run_files.parent_rules import GenId
from hyperruntime.loop.run_files.record import SCHEMA, GenerationRecord, genid_from_json, record_from_json

MarkKind = Literal["no-parent", "no-selection"]
_KINDS: tuple[str, ...] = get_args(MarkKind)


@attrs.frozen(kw_only=True)
class GenerationMark:
    """What became known of a generation after it was finished.

    Attributes:
        kind: ``no-parent``: it may not become a parent any more; ``no-selection``: its way to choose parents failed.
        genid: which one.
        by: the generation whose making showed it, or None.
        detail: one sentence for people, or "".
    """

    kind: MarkKind
    genid: GenId
    by: GenId | None = None
    detail: str = ""


def mark_to_json(mark: GenerationMark) -> dict[str, Any]:
    """Return a mark as a line of the journal."""
    return {"schema": SCHEMA, "mark": mark.kind, "genid": mark.genid, "by": mark.by, "detail": mark.detail}


def mark_from_json(value: dict[str, Any]) -> GenerationMark:
    """Return the mark of a line.

    Raises:
        ValueError: it is none.
    """
    kind, by, detail = value.get("mark"), value.get("by"), value.get("detail")
    if kind not in _KINDS:
        raise ValueError(f"unknown mark {kind!r}")
    return GenerationMark(
        kind=kind,
        genid=genid_from_json(value.get("genid")),
        by=None if by is None else genid_from_json(by),
        detail=detail if isinstance(detail, str) else "",
    )


def read_journal(path: Path, problems: list[str]) -> Iterator[tuple[int, GenerationRecord | GenerationMark]]:
    """Yield the number and the content of each line that can be read; of the others a sentence goes to ``problems``.

    Raises:
        ArchiveError: the file cannot be read.
    """
    for number, line in enumerate(_lines(path), 1):
        try:
            value = json.loads(line)
            yield (
                number,
                mark_from_json(value) if isinstance(value, dict) and "mark" in value else record_from_json(value),
            )
        except (ValueError, OverflowError, RecursionError) as error:
            problems.append(f"line {number} of {path.name} is damaged and was skipped: {error}")


def _lines(path: Path) -> list[bytes]:
    try:
        return [line for line in path.read_bytes().split(b"\n") if line.strip()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ArchiveError(f"{str(path)!r} cannot be read: {error.strerror}") from error
