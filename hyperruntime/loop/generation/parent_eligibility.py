"""Who may become a parent: the two meanings that ``valid_parent`` may have; pure.

``strict``: a generation that has a score; nothing that happens later changes it. ``hyperagents``: a generation that was
made and evaluated without a failure, until the meta agent of one of its children fails. The first generation stays
one always. Neither blames a generation for what the infrastructure, or a budget, did to its child.
Source: HYPERAGENTS 1.4, 1.7; 3.1 no. 4.
"""

from __future__ import annotations

from hyperruntime.loop.run_files.archive import Archive
from hyperruntime.loop.run_files.journal import GenerationMark
from hyperruntime.loop.run_files.record import GenerationRecord

_AFTER_THE_META_AGENT = "diff"
_BLAMED = ("agent", "timeout")


def is_valid_parent(rule: str, *, failure: str | None, score: float | None) -> bool:
    """Tell whether a generation that was just made may become a parent, by one of ``VALID_PARENT_RULES``."""
    return failure is None and (rule == "hyperagents" or score is not None)


def parent_mark(rule: str, archive: Archive, record: GenerationRecord) -> GenerationMark | None:
    """Return what a finished generation shows of its parent, or None where that is nothing new."""
    if rule != "hyperagents" or record.parent is None or record.parent not in archive:
        return None
    parent = archive[record.parent]
    meta_agent_failed = record.failure in _BLAMED and _AFTER_THE_META_AGENT not in record.durations
    if not meta_agent_failed or parent.parent is None or not parent.valid_parent:
        return None
    return GenerationMark(kind="no-parent", genid=parent.genid, by=record.genid, detail=record.detail)
