"""Results of a pool's methods: a slot, the pool's status, the result of a tool call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs


@attrs.frozen(kw_only=True)
class Slot:
    """The handle of one lease, valid until it is released or expires; a pool refuses a stale
    handle.

    Attributes:
        slot_id: the slot's name, unique on this machine.
        generation: how often the slot was leased before; with ``slot_id`` it identifies this lease.
        task_id: the task that it was acquired for.
        profile: name of the pool.
        workspace: absolute path of the slot's directory inside the container.
        container: the container's name.

    Example:
        >>> with hr.open_pool(hr.PoolConfig(spec=spec), runtime) as pool:
        ...     slot = pool.acquire("task-1")
        ...     pool.release(slot)
        >>> slot.task_id, slot.workspace, slot.generation
        ('task-1', '/workspace', 0)
    """

    slot_id: str
    generation: int
    task_id: str
    profile: str
    workspace: str
    container: str

    @property
    def workspace_dir(self) -> str:
        """The workspace, under the name that other systems use."""
        return self.workspace


@attrs.frozen(kw_only=True)
class PoolStatus:
    """The state of a pool at one moment.

    Attributes:
        name: the profile's name.
        state: ``new``, ``open`` or ``stopped``.
        isolation: how slots are isolated: ``uid``, ``container`` or ``directory``.
        reset: ``clean``, ``rollback`` or ``replace``.
        containers: number of containers that have started and not ended.
        draining: number of those containers that get no more leases.
        starting: number of containers that are starting.
        max_containers: how many containers may be in use.
        slots_per_container: number of slots in each container.
        total_slots: slots of the containers that take leases.
        free: slots that can be leased now.
        available: slots that can be leased now or after a reset, of the containers that take
            leases: all but leased and quarantined ones.
        leased: slots that are leased.
        kept: slots that were released without a reset.
        cleaning: released slots that are being reset.
        quarantined: slots that could not be made clean, or whose container is being replaced.
        waiting: acquires that wait.
        lost: containers that ended by themselves since the start.
        error: why containers do not start now, or "".
    """

    name: str
    state: str
    isolation: str = ""
    reset: str = ""
    containers: int = 0
    draining: int = 0
    starting: int = 0
    max_containers: int = 0
    slots_per_container: int = 0
    total_slots: int = 0
    free: int = 0
    available: int = 0
    leased: int = 0
    kept: int = 0
    cleaning: int = 0
    quarantined: int = 0
    waiting: int = 0
    lost: int = 0
    error: str = ""

    @property
    def is_unused(self) -> bool:
        """Whether the pool has containers, but no leased slot and no waiting acquire."""
        return self.containers > 0 and not self.leased and not self.waiting


@attrs.frozen(kw_only=True)
class ExecutionResult:
    """The result of one tool call in a slot.

    Attributes:
        success: whether the tool succeeded; for a command, whether its exit code is 0.
        output: the text for the model: standard output, then standard error after a line
            ``[stderr]``.
        error: one sentence if the call failed, else "".
        execution_id: unique id of this call.
        slot_id: the slot that it ran in.
        exit_code: exit code of the command; None if no command ran to its end.
        stdout: standard output as text; bytes that are not valid UTF-8 become U+FFFD.
        stderr: standard error, decoded in the same way.
        timed_out: whether the call ended at its deadline.
        truncated: whether output was dropped.
        duration_s: seconds from the call to its end.
        metadata: JSON values. ``returncode`` is always present: the exit code; 124 at a deadline; 0
            or 1 for tools that run no command; None if the call could not be carried out.

    Example:
        >>> with hr.open_pool(hr.PoolConfig(spec=spec), runtime) as pool, pool.lease() as lease:
        ...     result = pool.execute(lease.slot, "bash", {"command": "ls nothing"})
        >>> result.success, result.exit_code, result.stdout
        (False, 2, '')
    """

    success: bool
    output: str = ""
    error: str = ""
    execution_id: str = ""
    slot_id: str = ""
    exit_code: int | None = None
    stdout: str = ""
    stderr: str = ""
    timed_out: bool = False
    truncated: bool = False
    duration_s: float = 0.0
    metadata: Mapping[str, Any] = attrs.field(factory=dict, hash=False)

    def to_tool_result(self) -> dict[str, Any]:
        """Return the result as JSON values with the keys of a generic tool result."""
        return {
            "success": self.success,
            "output": self.output,
            "error": self.error,
            "metadata": dict(self.metadata),
            "uniq_id": self.execution_id,
        }


ToolResult = ExecutionResult
"""Alias for new code; both names stay."""


Request = tuple[Slot, str, Mapping[str, Any]]
"""A call of a tool in a batch: the slot, the tool's name, and its arguments."""
