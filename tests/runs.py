"""Runs of the generate loop, as many tests start them, and what the engine has of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hyperruntime import Runtime
from hyperruntime.host.process import wait_until
from hyperruntime.loop.run.plan import plan_run
from hyperruntime.loop.run.run import RunSummary, start_run
from hyperruntime.loop.run_files.archive import RunView
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.workbench.events import StepEvent
from hyperruntime.loop.workbench.open_containers import LoopRuntime


def run_name(folder: Path) -> str:
    """Return the run id of a test; other tests may use the engine at the same time."""
    return f"{folder.parent.name}.{folder.name}"


def options_below(folder: Path, **changes: Any) -> GenerateOptions:
    """Return the options of a run below a folder; it packs circles if no domain is named."""
    defaults = {"seed": 3, "run_id": run_name(folder), "output_dir_parent": str(folder / "out")}
    if "domains" not in changes:
        defaults |= {"domains": "circle_packing", "eval_samples": (1,)}
    return GenerateOptions(**{**defaults, **changes})


def start(
    runtime: LoopRuntime,
    folder: Path,
    on_event: Callable[[StepEvent], None] | None = None,
    **changes: Any,
) -> RunSummary:
    """Make a run with these options."""
    return start_run(runtime, plan_run(options_below(folder, **changes)), on_event)


def failures(summary: RunSummary | RunView) -> list[str | None]:
    return [record.failure for record in summary.generations]


def parents(summary: RunSummary) -> list[object]:
    return [record.parent for record in summary.generations]


def containers_of(runtime: Runtime, run_id: str) -> list[str]:
    """Return the ids of the containers that belong to a run."""
    found = (owned.record for owned in runtime.containers())
    return [one.id for one in found if one.labels.get("io.hyperruntime.run") == run_id]


def check_no_container_is_left(runtime: Runtime, run_id: str) -> None:
    """Check that the containers of a run end, at the latest after a minute."""
    assert wait_until(lambda: not containers_of(runtime, run_id), 60, 0.2), "containers are left"
