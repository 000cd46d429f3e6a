"""Runs and studies with scores of the test's choice."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hyperruntime.gateway.log.budget import Spent
from hyperruntime.loop.run_files.layout import AGENT_OUTPUT, PATCH, Layout
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.run_files.record import GenerationRecord, record_to_json
from hyperruntime.loop.run_files.study import Study, write_study
from hyperruntime.option_fields import to_json


def write_run(
    folder: Path,
    scores: Sequence[float | None],
    *,
    parents: Sequence[int] | None = None,
    diffs: Mapping[int, str] | None = None,
    tokens: int | None = 10,
    metrics: Mapping[str, float] | None = None,
    **options: Any,
) -> Path:
    """Write a run with these scores; each generation takes a second and so many tokens.

    Args:
        folder: the run directory.
        scores: of the generations, in order; None: it failed.
        parents: places of the parents of all but the first; None: the one before.
        diffs: by place.
        tokens: of each generation; None: the run has no models.
        metrics: of each generation.
        options: of the run.
    """
    layout = Layout(folder)
    folder.mkdir(parents=True)
    chosen = GenerateOptions(
        **{"domains": "circle_packing", "max_generation": len(scores) - 1, "seed": 1, **options}
    )
    layout.run.write_text(json.dumps({"options": to_json(chosen), "seed": chosen.seed}))
    lines = []
    for place, score in enumerate(scores):
        parent = None if place == 0 else (parents[place - 1] if parents else place - 1)
        record = GenerationRecord(
            genid="initial" if place == 0 else place,
            parent="initial" if parent == 0 else parent,
            score=score,
            scores={} if score is None else {"circle_packing": {"val": score}},
            metrics={"circle_packing": {"val": metrics}} if metrics and score is not None else {},
            failure="agent" if score is None else None,
            durations={"meta agent": 1.0},
            usage=None if tokens is None else Spent(requests=1, input_tokens=tokens),
        )
        lines.append(json.dumps(record_to_json(record)) + "\n")
        if diffs and place in diffs:
            output = layout.generation(record.genid) / AGENT_OUTPUT
            output.mkdir(parents=True)
            (output / PATCH).write_text(diffs[place])
    layout.journal.write_text("".join(lines))
    return folder


def study(root: Path, *runs: Sequence[float | None], **options: Any) -> Path:
    """Write a study of runs with these scores."""
    names = tuple(f"generate_{root.name}_{number}" for number in range(len(runs)))
    for number, (name, scores) in enumerate(zip(names, runs, strict=True)):
        write_run(root / name, scores, **{"seed": number, **options})
    write_study(Study(root=root, names=names))
    return root
