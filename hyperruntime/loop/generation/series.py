"""The progress of a run: the parent and one score of each generation, for pictures and as text.
Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import attrs

from hyperruntime.loop.evaluation.evaluator import mean_score
from hyperruntime.loop.run_files.parent_rules import GenId, number_of
from hyperruntime.loop.run_files.record import GenerationRecord


@attrs.frozen(kw_only=True)
class Node:
    """A generation in a picture.

    Attributes:
        genid: its id.
        parent: its parent's id, or None.
        score: the score to show; None if it has none.
    """

    genid: GenId
    parent: GenId | None
    score: float | None


@attrs.frozen(kw_only=True)
class Series:
    """The generations of a run with their scores in one domain and split, or the mean scores of
    several domains.

    Attributes:
        name: part of the names of the files: domain, split, and source of the scores.
        title: title of the pictures.
        nodes: the generations by number.
    """

    name: str
    title: str
    nodes: tuple[Node, ...]


def whole_run(records: Sequence[GenerationRecord]) -> tuple[Node, ...]:
    """Return the generations with the scores that select parents; failed generations have no
    score.
    """
    return tuple(
        _node(record, None if record.failure else record.score) for record in _ordered(records)
    )


def whose_scores(optimize_option: str) -> str:
    """Return the source of a run's scores, for file names: ``max`` (the better of agent and
    ensemble) or ``agent``.
    """
    return "max" if "ensemble" in optimize_option else "agent"


def every_series(
    records: Sequence[GenerationRecord], whose: str = "agent", *, only: str = ""
) -> tuple[Series, ...]:
    """Return a series for each domain and split with scores; if there are several domains, also for
    all together.

    Args:
        records: the generations of a run.
        whose: source of the scores, see :func:`whose_scores`.
        only: name of the only split; "" for all splits.
    """
    ordered = _ordered(records)
    found_in = (
        (domain, split) for r in ordered for domain, splits in r.scores.items() for split in splits
    )
    pairs = dict.fromkeys(pair for pair in found_in if only in ("", pair[1]))
    found = [
        _series(ordered, (domain,), f"{domain}_{split}_{whose}", split) for domain, split in pairs
    ]
    domains = tuple(dict.fromkeys(domain for domain, _ in pairs))
    if len(domains) > 1:
        together = f"together_{'_'.join(domains)}"
        splits = dict.fromkeys(split for _, split in pairs)
        found += [
            _series(ordered, domains, f"{together}_{split}_{whose}", split) for split in splits
        ]
    return tuple(found)


def best_path(nodes: Sequence[Node]) -> tuple[GenId, ...]:
    """Return the ids from the first generation to the best one; of equal scores, the earlier one is
    the best.
    """
    known = {node.genid: node for node in nodes}
    scored = [node for node in nodes if node.score is not None]
    at = max(scored, key=lambda node: node.score or 0.0, default=None)
    path: dict[GenId, None] = {}
    while at is not None and at.genid not in path:
        path[at.genid] = None
        at = None if at.parent is None else known.get(at.parent)
    return tuple(reversed(path))


def best_so_far(nodes: Sequence[Node]) -> tuple[float | None, ...]:
    """Return, for each generation, the highest score up to it; None while there is no score."""
    best: list[float | None] = []
    for node in nodes:
        before = best[-1] if best else None
        known = [score for score in (before, node.score) if score is not None]
        best.append(max(known, default=None))
    return tuple(best)


def steps_up(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Return the generations that were better than all before them."""
    best = best_so_far(nodes)
    risen = (now != before for before, now in pairwise((None, *best)))
    return tuple(node for node, up in zip(nodes, risen, strict=True) if up)


def progress_info(series: Series) -> str:
    """Return a run's progress as text: the generations that improved the best score, and the
    lineage of the best.
    """
    lines = [series.title, f"generations: {len(series.nodes)}"]
    lines.append(f"without a score: {sum(node.score is None for node in series.nodes)}")
    lines += [
        f"best from generation {node.genid}: {node.score:.6f}" for node in steps_up(series.nodes)
    ]
    lines.append(f"lineage of the best: {' -> '.join(map(str, best_path(series.nodes)))}")
    return "\n".join(lines) + "\n"


def _series(
    records: Sequence[GenerationRecord], domains: Sequence[str], name: str, split: str
) -> Series:
    nodes = tuple(
        _node(record, mean_score([record.scores.get(domain, {}).get(split) for domain in domains]))
        for record in records
    )
    return Series(name=name, title=f"{', '.join(domains)}: {split}", nodes=nodes)


def _node(record: GenerationRecord, score: float | None) -> Node:
    return Node(genid=record.genid, parent=record.parent, score=score)


def _ordered(records: Sequence[GenerationRecord]) -> list[GenerationRecord]:
    return sorted(records, key=lambda record: number_of(record.genid))
