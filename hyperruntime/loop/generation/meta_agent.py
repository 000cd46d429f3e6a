"""Run the meta agent and store the state that its diff produces."""

from __future__ import annotations

from pathlib import Path

from hyperruntime.errors import PatchError
from hyperruntime.git.patch import Notes
from hyperruntime.git.store import Snapshot
from hyperruntime.loop.generation.adapter import GenerationAdapter
from hyperruntime.loop.run_files.layout import AGENT_OUTPUT, PATCH
from hyperruntime.loop.workbench.container import AgentContainer
from hyperruntime.loop.workbench.context import GenerationPlan, RunContext
from hyperruntime.loop.workbench.copy_out import PATCH_LIMIT, read_file
from hyperruntime.loop.workbench.failures import GenerationFailedError, last_line
from hyperruntime.loop.workbench.step_log import StepLog
from hyperruntime.storage.atomic import write_file

_BINARY_MARK = b"\nBinary files "
_NAMED = 5
_MAX_DROPPED = 200


def run_meta_agent(context: RunContext, adapter: GenerationAdapter, steps: StepLog) -> None:
    """Run the meta agent to its end.

    Args:
        context: context of the run.
        adapter: gives the container and the argv.
        steps: receives the output.

    Raises:
        GenerationFailedError: the meta agent failed, or the time limit passed.
        ContainerLostError: the container ended before the meta agent did.
    """
    timeout_s = context.options.timeout_meta_s
    args = adapter.meta_agent_args()
    result = adapter.agent.exec(args, timeout_s=timeout_s, on_output=lambda _, chunk: steps.write(chunk))
    if result.timed_out:
        raise GenerationFailedError("timeout", f"the meta agent took more than {timeout_s:g} s")
    if result.exit_code != 0:
        why = last_line(result.stderr, "it wrote nothing on standard error")
        raise GenerationFailedError("agent", f"the meta agent ended with exit code {result.exit_code}: {why}")


def keep_state(context: RunContext, plan: GenerationPlan, place: AgentContainer, folder: Path) -> Snapshot:
    """Store the state that the agent's diff produces, or its whole tree if it wrote no diff.

    Args:
        context: context of the run.
        plan: plan of the generation.
        place: the meta agent's container, already closed.
        folder: directory of the generation; receives the diff.

    Raises:
        GenerationFailedError: the diff does not apply, or names a path outside the repository.
    """
    try:
        snapshot = _snapshot(context, plan, place, folder)
    except PatchError as error:
        named = "".join(f"; {path!r}: {reason}" for path, reason in error.refused[:_NAMED])
        raise GenerationFailedError("refused-patch", f"{error}{named}") from error
    write_file(folder / AGENT_OUTPUT / PATCH, snapshot.patch)
    return snapshot


def shorten(dropped: Notes) -> Notes:
    """Return the first 200 omitted changes, and an entry with the number of the others."""
    if len(dropped) <= _MAX_DROPPED:
        return dropped
    return (*dropped[:_MAX_DROPPED], ("...", f"{len(dropped) - _MAX_DROPPED} more changes were left out"))


def check_changed(snapshot: Snapshot) -> None:
    """Raise if a state equals the parent's state.

    Raises:
        GenerationFailedError: nothing changed, or all changes were left out.
    """
    if not snapshot.patch:
        dropped = f"; all {len(snapshot.dropped)} changes were left out" if snapshot.dropped else ""
        raise GenerationFailedError("empty-diff", f"the meta agent changed nothing{dropped}")


def _snapshot(context: RunContext, plan: GenerationPlan, place: AgentContainer, folder: Path) -> Snapshot:
    patch = read_file(place.out, PATCH.encode(), PATCH_LIMIT)
    if patch is None:
        return _snapshot_of_tree(context, plan, place)
    try:
        return context.store.apply_patch(
            plan.commit,
            patch,
            plan.genid,
            protected=context.protected,
            max_file_bytes=context.options.max_file_bytes,
            fuzz=context.adapter.patch_fuzz,
        )
    except PatchError as error:
        # A diff made without --binary names binary files but does not contain them.
        if not error.refused and _BINARY_MARK in b"\n" + patch:
            return _snapshot_of_tree(context, plan, place)
        write_file(folder / AGENT_OUTPUT / f"refused_{PATCH}", patch)
        raise


def _snapshot_of_tree(context: RunContext, plan: GenerationPlan, place: AgentContainer) -> Snapshot:
    return context.store.snapshot(
        plan.commit,
        place.repo,
        plan.genid,
        protected=context.protected,
        max_file_bytes=context.options.max_file_bytes,
    )
