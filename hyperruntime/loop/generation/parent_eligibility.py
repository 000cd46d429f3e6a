"""The two rules for ``valid_parent``, which decide whether a generation may become a parent; pure functions.

``strict``: a generation with a score may always become a parent. ``hyperagents``: a generation without a failure may
become a parent until the meta agent of one of its children fails; the first generation always may. A child's failure
because of the infrastructure or a budget has no effect. Source: HYPERAGENTS 1.4, 1.7; 3.1 no. 4.
"""

from __future__ import annotations

from hyperruntime.loop.run_files.archive import Archive
from hyperruntime.loop.run_files.journal import GenerationMark
from hyperruntime.loop.run_files.record import GenerationRecord

_AFTER_THE_META_AGENT = "diff"
_BLAMED = ("agent", "timeout")


def is_valid_parent(rule: str, *, failure: str | None, score: float | None) -> bool:
    """Return whether a new generation may become a parent.

    Args:
        rule: one of ``VALID_PARENT_RULES``.
        failure: class of its failure, or None.
        score: its score, or None.
    """
    return failure is None and (rule == "hyperagents" or score is not None)


def parent_mark(rule: str, archive: Archive, record: GenerationRecord) -> GenerationMark | None:
    """Return the mark that a finished generation causes for its parent, or None.

    Args:
        rule: one of ``VALID_PARENT_RULES``.
        archive: the finished generations.
        record: the finished generation.
    """
    if rule != "hyperagents" or record.parent is None or record.parent not in archive:
        return None
    parent = archive[record.parent]
    meta_agent_failed = record.failure in _BLAMED and _AFTER_THE_META_AGENT not in record.durations
    if not meta_agent_failed or parent.parent is None or not parent.valid_parent:
        return None
    return GenerationMark(kind="no-parent", genid=parent.genid, by=record.genid, detail=record.detail)
