"""Added lines of a run's diffs that come back unchanged after an earlier diff removed them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import attrs

from hyperruntime.errors import PatchError
from hyperruntime.git.patch import changed_lines, parse_patch
from hyperruntime.loop.run_files.archive import RunView
from hyperruntime.loop.run_files.layout import AGENT_OUTPUT, PATCH, Layout
from hyperruntime.loop.run_files.parent_rules import GenId
from hyperruntime.loop.run_files.record import GenerationRecord
from hyperruntime.storage.run_files import read_run_file

_Line = tuple[bytes, bytes]  # file and text


@attrs.frozen(kw_only=True)
class Lines:
    """The lines of a generation's diff.

    Attributes:
        added: number of added lines.
        removed: number of removed lines.
        returned: how many of the added lines had been in the same file of an ancestor, and were
            removed by a diff between it and this generation.
        judged: how many of the added lines have a letter or a digit; others, such as a bracket,
            come back by chance and count in neither number.
    """

    added: int = 0
    removed: int = 0
    returned: int = 0
    judged: int = 0

    def __add__(self, other: Lines) -> Lines:
        """Return the sums."""
        return Lines(
            added=self.added + other.added,
            removed=self.removed + other.removed,
            returned=self.returned + other.returned,
            judged=self.judged + other.judged,
        )

    @property
    def share(self) -> float | None:
        """Share of the judged lines that come back; None without any."""
        return self.returned / self.judged if self.judged else None


def lines_of(view: RunView) -> dict[GenId, Lines]:
    """Return the lines of each generation's diff; a diff that cannot be read has none.

    A line that an ancestor's diff removed can come back once. Each generation is looked at after
    its ancestors, with the lines that these removed.
    """
    children: dict[GenId | None, list[GenerationRecord]] = {}
    for one in view.generations:
        children.setdefault(one.parent, []).append(one)
    found: dict[GenId, Lines] = {}
    gone: Counter[_Line] = Counter()  # lines that the ancestors of the current generation removed
    undo: list[Counter[_Line]] = []
    todo: list[GenerationRecord | None] = list(children.get(None, ()))  # None: one is left
    while todo:
        record = todo.pop()
        if record is None:
            gone.subtract(undo.pop())
            continue
        added, removed = _changes(view, record)
        change: Counter[_Line] = Counter()
        judged = [line for line in added if _is_judged(line[1])]
        for line in judged:
            if gone[line] > 0:
                gone[line] -= 1
                change[line] -= 1
        returned = -sum(change.values())
        for line in removed:
            gone[line] += 1
            change[line] += 1
        found[record.genid] = Lines(
            added=len(added), removed=len(removed), returned=returned, judged=len(judged)
        )
        undo.append(change)
        todo += [None, *children.get(record.genid, ())]
    return found


def _is_judged(text: bytes) -> bool:
    return any(chr(byte).isalnum() or byte >= 0x80 for byte in text)


def _changes(view: RunView, record: GenerationRecord) -> tuple[list[_Line], list[_Line]]:
    root = Path(view.run_dir)
    path = Layout(root).generation(record.genid) / AGENT_OUTPUT / PATCH
    try:
        parts = parse_patch(read_run_file(path, below=root))
    except (OSError, PatchError):
        return [], []
    added: list[_Line] = []
    removed: list[_Line] = []
    for part in parts:
        name = part.names[-1] if part.names else b""
        plus, minus = changed_lines(part.text)
        added += [(name, text) for text in plus]
        removed += [(name, text) for text in minus]
    return added, removed


def total_lines(parts: Sequence[Lines]) -> Lines:
    """Return the sum of several diffs."""
    return sum(parts, Lines())
