"""The page of sites, in Markdown, from the results of `scripts/sites`. Standard library only.

Usage: python3 -m tests.sites.page RESULTS >docs/sites.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HEAD = """# Sites

Clusters offer containers in different ways. `make test-sites` makes such systems on one machine with Debian and
root, uses `hyperrun` on each as an ordinary user, and writes this page. *Real* rows are the system itself: a root
file system of Debian whose programs run on this machine's kernel, or a virtual machine. In *simulated* rows a program
stands in for that of a site.

On each engine, a row runs `hyperrun doctor`, `hyperrun selfcheck`, `selfcheck` again under the conditions of a
cluster job (`scripts/under-weather combined`), two generations of `hyperrun demo`, and six rollouts with a scripted
model. Counts are checks that passed, that the driver refused by name, and that failed. The number behind FAILED is
the exit code.
A row of `scripts/sites --list` that is not here has not run to its end.
"""

REFUSALS = """
## What is refused

Each refusal names what this machine or engine cannot do, and the next step, which is left out here. It comes before
anything runs; no option is ignored.

| refusal | where |
|---|---|
"""

OTHERS = """
## What is not here

| of a site | what stands in for it |
|---|---|
| a file system of many machines (Lustre, GPFS) | tests of late files and of locks that fail ([cluster](cluster.md)) |
| GPUs and their libraries | tests with the files of a GPU driver, without the hardware |
| queues with other users | a Slurm on one machine, whose jobs are cancelled and preempted |
| SELinux and AppArmor | nothing |
"""

STEPS = ("doctor", "selfcheck", "weather", "run", "rollout")


def page(places: Sequence[Path]) -> str:
    """Return the page about the rows, each with a directory of results."""
    places = [place for place in places if (place / "steps").exists()]
    rows = [line for place in places for line in _lines(place)]
    head = ["engine", "doctor", "selfcheck", "under the weather", "run", "rollouts"]
    table = ["", f"| row | system | {' | '.join(head)} |", "|---" * (len(head) + 2) + "|", *rows]
    extras = [line for place in places for line in _extras(place)]
    if extras:
        table += ["", "| row | also | result |", "|---|---|---|", *extras]
    refused = [f"| {text} | {', '.join(where)} |" for text, where in _refusals(places).items()]
    return HEAD + "\n".join(table) + "\n" + REFUSALS + "\n".join(refused) + "\n" + OTHERS


def _lines(place: Path) -> Iterator[str]:
    """Yield a line of the table for each engine of a row."""
    kind, about = (place / "about").read_text().rstrip("\n").split("\t")
    for engine, steps in _steps(place).items():
        if engine == "-":
            continue
        checked = _read(place, engine, "selfcheck")
        cells = [
            _counts(_read(place, engine, name)) or steps.get(name, "not run")
            if name in ("selfcheck", "weather")
            else steps.get(name, "not run")
            for name in STEPS
        ]
        version = f"{engine} {checked.get('version', '')}".strip()
        yield f"| {place.name} | {about} ({kind}) | {version} | {' | '.join(cells)} |"


def _extras(place: Path) -> Iterator[str]:
    """Yield a line for each step that belongs to no engine."""
    words = {"suite": "`make test`", "slurm": "generations and the check of a node on Slurm"}
    for name, result in _steps(place).get("-", {}).items():
        yield f"| {place.name} | {words.get(name, name)} | {result} |"


def _steps(place: Path) -> dict[str, dict[str, str]]:
    """Return by engine how each step ended; one that did not run is absent there."""
    steps: dict[str, dict[str, str]] = {}
    for line in (place / "steps").read_text().splitlines():
        engine, name, result, _ = line.split("\t")
        steps.setdefault(engine, {})[name] = result
    return steps


def _read(place: Path, engine: str, name: str) -> dict[str, Any]:
    """Return the report of a step; empty if it wrote none."""
    try:
        value: dict[str, Any] = json.loads((place / f"{engine}-{name}.out").read_text())
    except (OSError, ValueError):
        return {}
    return value


def _counts(report: dict[str, Any]) -> str:
    counts = report.get("counts", {})
    return " / ".join(str(counts[word]) for word in ("pass", "refused", "fail") if counts)


def _refusals(places: Sequence[Path]) -> dict[str, list[str]]:
    """Return, for each refusal without its next step, the rows in which it appears."""
    found: dict[str, list[str]] = {}
    for place in places:
        for engine in _steps(place):
            for check in _read(place, engine, "selfcheck").get("checks", []):
                if check["outcome"] == "refused":
                    text = check["detail"].partition(";")[0].replace("|", "\\|")
                    where = found.setdefault(text, [])
                    if place.name not in where:
                        where.append(place.name)
    return found


if __name__ == "__main__":
    print(page([Path(name) for name in sys.argv[1:]]), end="")
