"""What a baseline takes away from the loop: who edits, and what is seen.

``no_selfimprove`` has the first generation's meta agent edit all others; ``no_archive`` shows a meta agent its parent
and nobody else. Both may be part of a longer name, joined by ``+``.
"""

from __future__ import annotations

from pathlib import Path

from hyperruntime.loop.run_files.layout import generation_name
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.workbench.context import GenerationPlan, RunContext
from hyperruntime.spec import Mount
from hyperruntime.storage.atomic import make_directory


def baseline_parts(options: GenerateOptions) -> frozenset[str]:
    """Return the baselines of a run."""
    return frozenset((options.run_baseline or "").split("+")) - {""}


def view_mount(context: RunContext, plan: GenerationPlan) -> Mount:
    """Return the earlier generations that a meta agent sees."""
    view, evals = context.layout.view, context.contract.evals
    if "no_archive" in baseline_parts(context.options) and plan.parent is not None:
        name = generation_name(plan.parent)
        return Mount(source=str(view / name), target=f"{evals}/{name}")
    return Mount(source=str(view), target=evals)


def frozen_mount(context: RunContext, plan: GenerationPlan, folder: Path) -> tuple[Mount, ...]:
    """Return the first generation's files where a meta agent that stays as it is runs from; none where it evolves.

    Raises:
        StorageError, RepositoryError: they cannot be written.
    """
    if "no_selfimprove" not in baseline_parts(context.options) or plan.parent is None:
        return ()
    context.store.export(context.first, make_directory(folder))
    return (Mount(source=str(folder), target=context.contract.frozen),)
