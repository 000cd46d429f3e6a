"""Run the meta agent and keep the state that its diff makes."""

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

    Raises:
        GenerationFailedError: it failed, or took too long.
        ContainerLostError: its container ended meanwhile.
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
    """Keep the state that the agent's diff makes, or, where it wrote none, the tree as it left it.

    Args:
        context: of the run. plan: of the generation. place: whose container is gone. folder: takes the diff.

    Raises:
        GenerationFailedError: the diff does not apply, or tries to leave the repository.
    """
    try:
        snapshot = _snapshot(context, plan, place, folder)
    except PatchError as error:
        named = "".join(f"; {path!r}: {reason}" for path, reason in error.refused[:_NAMED])
        raise GenerationFailedError("refused-patch", f"{error}{named}") from error
    write_file(folder / AGENT_OUTPUT / PATCH, snapshot.patch)
    return snapshot


def shorten(dropped: Notes) -> Notes:
    """Return as many of the changes that were left out as a record holds; of the rest it tells the number."""
    if len(dropped) <= _MAX_DROPPED:
        return dropped
    return (*dropped[:_MAX_DROPPED], ("...", f"{len(dropped) - _MAX_DROPPED} more changes were left out"))


def check_changed(snapshot: Snapshot) -> None:
    """Refuse a state that is the parent's.

    Raises:
        GenerationFailedError: nothing changed, or all that changed was left out.
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
        # A diff that was not made with --binary names binary files and does not hold them.
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
