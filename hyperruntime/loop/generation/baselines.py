"""Baselines: the loop without one of its features.

With ``no_selfimprove`` the first generation's meta agent edits all generations. With ``no_archive`` a meta agent sees
only its parent. A baseline's name may join several parts with ``+``.
"""

from __future__ import annotations

from pathlib import Path

from hyperruntime.loop.run_files.layout import generation_name
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.workbench.context import GenerationPlan, RunContext
from hyperruntime.spec import Mount
from hyperruntime.storage.atomic import make_directory


def baseline_parts(options: GenerateOptions) -> frozenset[str]:
    """Return the parts of the run's baseline; empty if it has none."""
    return frozenset((options.run_baseline or "").split("+")) - {""}


def view_mount(context: RunContext, plan: GenerationPlan) -> Mount:
    """Return the mount that shows earlier generations to a meta agent."""
    view, evals = context.layout.view, context.contract.evals
    if "no_archive" in baseline_parts(context.options) and plan.parent is not None:
        name = generation_name(plan.parent)
        return Mount(source=str(view / name), target=f"{evals}/{name}")
    return Mount(source=str(view), target=evals)


def frozen_mount(context: RunContext, plan: GenerationPlan, folder: Path) -> tuple[Mount, ...]:
    """Export the first generation's files and return their mount; empty unless the baseline is ``no_selfimprove``.

    Args:
        context: context of the run.
        plan: plan of the generation.
        folder: host directory for the files.

    Raises:
        StorageError: the directory cannot be made.
        RepositoryError: the files cannot be exported.
    """
    if "no_selfimprove" not in baseline_parts(context.options) or plan.parent is None:
        return ()
    context.store.export(context.first, make_directory(folder))
    return (Mount(source=str(folder), target=context.contract.frozen),)
