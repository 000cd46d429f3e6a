"""What the scripts of `analysis/` of HyperAgents read of a run, written again from their
behaviour: which files, which keys, and what follows from them.

Its `plot_testevals` reads no run: its figures stand in it. Drawing is left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

Genid = int | str
Scores = Mapping[Genid, float | None]
_STARTS = ("initial", 0)
_PART = 0.1  # of the tasks that the first stage of paper_review asks


@attrs.frozen
class Progress:
    """What `plot_progress` draws and writes.

    Attributes:
        best: the best score so far, for each generation.
        mean: the mean so far.
        lineage: the generations that lead to the best one.
        patches: the paths of the diffs of the best one.
    """

    best: list[float]
    mean: list[float]
    lineage: list[Genid]
    patches: list[str]


@attrs.frozen
class Graph:
    """What `visualize_archive` draws; the first generation is called "0" there.

    Attributes:
        edges: from parents to children.
        scores: of each generation.
        no_parents: generations with a red border, which cannot be parents.
    """

    edges: set[tuple[str, str]]
    scores: dict[str, float | None]
    no_parents: set[str]


def entries(run: Path) -> list[dict[str, Any]]:
    """Return the entries of the archive; each must be whole, or nothing can be read."""
    parts = (run / "archive.jsonl").read_text().strip().split("\n{")
    return [json.loads(part if part.startswith("{") else "{" + part) for part in parts]


def metadata(run: Path, genid: Genid) -> dict[str, Any]:
    """Return the metadata of a generation; empty if there are none."""
    path = run / f"gen_{genid}" / "metadata.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def saved_score(run: Path, domain: str, genid: Genid, split: str, kind: str) -> float | None:
    """Return the score of the agent or the ensemble, or the greater one; that of a first stage is
    scaled.
    """
    folder = run / f"gen_{genid}"
    evaluation = f"{domain}_eval" + ("" if split == "train" else f"_{split}")
    both = {
        "agent": _report(folder / evaluation / "report.json"),
        "ensemble": _report(folder / f"report_ensemble_{domain}_{split}.json"),
    }
    found = [one for name, one in both.items() if one is not None and kind in (name, "max")]
    full = genid != "initial" and metadata(run, genid).get("run_full_eval")
    return max(found) * (1 if full else _PART) if found else None


def _report(path: Path) -> float | None:
    try:
        value = json.loads(path.read_text())["overall_accuracy"]
    except (OSError, ValueError, KeyError):
        return None
    return None if math.isnan(value) else value


def _all(run: Path) -> list[Genid]:
    return list(dict.fromkeys(genid for entry in entries(run) for genid in entry["archive"]))


def plot_progress(run: Path, domain: str, split: str, kind: str = "agent") -> Progress:
    """Return the figures of a run's progress."""
    known: list[float] = []
    best: list[float] = []
    mean: list[float] = []
    top: Genid | None = None
    for genid in _all(run):
        score = saved_score(run, domain, genid, split, kind)
        if score is not None:
            known.append(score)
            if not best or score > best[-1]:
                top = genid
        best.append(max(known, default=0.0))
        mean.append(sum(known) / len(known) if known else 0.0)
    lineage: list[Genid] = []
    while top is not None and top not in _STARTS:
        lineage.insert(0, top)
        top = metadata(run, top)["parent_genid"]
    lineage = [top, *lineage] if top is not None else lineage
    last = metadata(run, lineage[-1]) if lineage else {}
    patches = [*last.get("prev_patch_files", []), *last.get("curr_patch_files", [])]
    return Progress(best, mean, lineage, patches)


def visualize_archive(run: Path, domain: str, split: str, kind: str = "agent") -> Graph:
    """Return the graph of a run's generations."""
    genids = _all(run)
    parents = {genid: metadata(run, genid).get("parent_genid") for genid in genids}
    named = {genid: "0" if genid == "initial" else str(genid) for genid in genids}
    return Graph(
        {(named[p], named[genid]) for genid, p in parents.items() if p is not None},
        {named[genid]: saved_score(run, domain, genid, split, kind) for genid in genids},
        {
            named[genid]
            for genid in genids
            if genid not in _STARTS and metadata(run, genid).get("valid_parent") is False
        },
    )


def plot_comparison(run: Path, domains: Sequence[str]) -> list[float]:
    """Return the best score so far by the last entry of the archive; all domains must have one."""
    best, found = 0.0, []
    for genid in entries(run)[-1]["archive"]:
        scores = [saved_score(run, domain, genid, "val", "max") for domain in domains]
        known = [score for score in scores if score is not None]
        if len(known) == len(scores):
            best = max(best, sum(known) / len(known))
        found.append(best)
    return found


def transfer_utils(run: Path, domain: str, top: int = 3) -> dict[Genid, list[str]]:
    """Return the best generations on `val`, each with the paths of its diffs."""
    scores = {
        genid: score
        for genid in entries(run)[-1]["archive"]
        if (score := saved_score(run, domain, genid, "val", "agent")) is not None
    }
    chosen = sorted(scores, key=lambda genid: scores[genid], reverse=True)[:top]
    known = {genid: metadata(run, genid) for genid in chosen}
    return {
        genid: [*one.get("prev_patch_files", []), *one.get("curr_patch_files", [])]
        for genid, one in known.items()
    }
