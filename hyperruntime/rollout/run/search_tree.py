"""The tree of one item: each node is a conversation, with the files of its container as a snapshot.

A step starts a slot from the files of its parent, lets the agent act for one turn, asks the
environment for the value, and keeps the files. Design: docs/design/rollouts.md#searches.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from hyperruntime.concurrency.blocking import check_cancelled
from hyperruntime.errors import UnsupportedOptionError
from hyperruntime.logs import get_logger
from hyperruntime.pool.lease import Lease
from hyperruntime.rollout.agent.agent import (
    TIME_LIMIT,
    TOKEN_LIMIT,
    TURN_LIMIT,
    AgentResult,
    AgentTask,
)
from hyperruntime.rollout.agent.recorder import RecordedModel, Stopwatch, recorded_handler
from hyperruntime.rollout.agent.replay import Replay
from hyperruntime.rollout.environment import Item, Outcome
from hyperruntime.rollout.run.episode import EpisodeContext, limits_of, sampling_of
from hyperruntime.rollout.run.set_ups import has_files_in_memory
from hyperruntime.rollout.run_files.turn_journal import TurnJournal

if TYPE_CHECKING:
    from hyperruntime.layers.snapshots.snapshot import Snapshot
    from hyperruntime.sandbox import Sandbox
    from hyperruntime.spec import ContainerSpec

log = get_logger(__name__)

NODE_LIMIT = "node_limit"
BEST = "best"


@attrs.define(kw_only=True, eq=False)
class Node:
    """A conversation in a container.

    Attributes:
        path: which child of its parent each node on the way to it is.
        result: the conversation so far; its stop reason is "" while it may go on.
        files: the files of its container.
        value: what the environment says about it.
        model: the tokens and their counts of all turns on the way to it.
        seconds: the time by phase of all turns on the way to it.
        tools: schemas of the tools.
    """

    path: tuple[int, ...] = ()
    result: AgentResult
    files: Snapshot
    value: float = 0.0
    model: RecordedModel
    seconds: Mapping[str, float] = attrs.field(factory=dict)
    tools: Sequence[Mapping[str, Any]] = ()

    @property
    def rank(self) -> tuple[float, tuple[int, ...]]:
        """The order of nodes: the best first; it depends on no clock."""
        return (-self.value, self.path)


@attrs.define(kw_only=True, eq=False)
class Tree:
    """The search for one item.

    Attributes:
        context: the context of the run.
        item: the item.
        spec: the spec of its containers.
        room: a number for each slot that may be used at once; each keeps its slot for a while,
            because a step needs no clean one.
        meta: what the set-up returned.
        made: number of nodes.
    """

    context: EpisodeContext
    item: Item
    spec: ContainerSpec
    room: asyncio.Queue[int]
    meta: Mapping[str, Any] = attrs.field(factory=dict)
    made: int = 0
    files: list[Snapshot] = attrs.field(factory=list)

    async def drop(self) -> None:
        """Remove the files of all nodes; none may be needed."""
        await self.context.slots.drop(*self.files)

    async def grow(self) -> list[Node]:
        """Search; return the ends of the best paths, at most as many as a group has.

        Raises:
            HyperRuntimeError: the item cannot be set up, or no step was possible.
        """
        options = self.context.options
        limit_s = limits_of(self.context, self.item).time_s
        deadline = None if limit_s is None else time.monotonic() + limit_s
        frontier = [await self._root()]
        nodes: list[Node] = []
        inner: set[tuple[int, ...]] = set()
        reason = NODE_LIMIT
        while sum(bool(node.result.stop_reason) for node in nodes) < options.group_size:
            if deadline is not None and time.monotonic() >= deadline:
                reason = TIME_LIMIT
                break
            chosen = frontier[: options.search_width]
            rest = frontier[options.search_width :]
            pairs = [(node, n) for node in chosen for n in range(options.search_children)]
            pairs = pairs[: max(0, options.search_nodes - self.made)]
            if not pairs:
                break
            self.made += len(pairs)
            steps = (self._step_or_none(node, n, deadline) for node, n in pairs)
            children = [node for node in await asyncio.gather(*steps) if node is not None]
            inner.update(node.path for node, _ in pairs)
            nodes += children
            frontier = [node for node in children if not node.result.stop_reason]
            frontier = sorted(frontier + rest * (options.search == BEST), key=lambda one: one.rank)
        if not nodes and self._error is not None:
            raise self._error
        nodes.sort(key=lambda one: (not one.result.stop_reason, one.path in inner, one.rank))
        return [
            node if node.result.stop_reason else _ended(node, reason)
            for node in nodes[: options.group_size]
        ]

    _error: Exception | None = attrs.field(init=False, default=None)

    async def _root(self) -> Node:
        """Set the item up once."""
        context = self.context
        if has_files_in_memory(self.spec):
            why = "its /tmp is in memory, and lost at each step; set no tmpfs_bytes and no read-only root"
            raise UnsupportedOptionError("this container", "search", why)
        async with context.slots.lease(self.spec, f"{self.item.id}#search") as lease:
            kept = check_keeps_files(lease)
            async with asyncio.timeout(context.options.setup_s):
                self.meta = await context.environment.setup(self.item, lease)
            messages = context.environment.messages(self.item, self.meta)
            model = RecordedModel(context.model, Stopwatch(), Replay(TurnJournal()))
            result = AgentResult(messages=tuple(messages), stop_reason="", turns=0)
            return Node(result=result, files=await self._keep(kept), model=model)

    async def _keep(self, lease: Lease) -> Snapshot:
        self.files.append(kept := await lease.snapshot())
        return kept

    async def _step_or_none(self, parent: Node, number: int, deadline: float | None) -> Node | None:
        """Return a child of a node, or None if the infrastructure fails too often."""
        for attempt in range(self.context.options.attempts):
            mine = await self.room.get()
            try:
                async with self.context.slots.lease(self.spec, f"search#{mine}") as lease:
                    made = await self._step(parent, number, lease, deadline)
                    await lease.release(reset_workspace=False)
                    return made
            except Exception as error:  # noqa: BLE001 - an environment may raise anything
                check_cancelled()
                self._error = error
                log.warning("step failed", item=self.item.id, attempt=attempt + 1, why=str(error))
            finally:
                self.room.put_nowait(mine)
        return None

    async def _step(
        self, parent: Node, number: int, lease: Sandbox, deadline: float | None
    ) -> Node:
        """Let the agent act for one turn, in a slot with the files of the parent."""
        context = self.context
        path = (*parent.path, number)
        kept = check_keeps_files(lease)
        await kept.rollback(parent.files)
        meta = copy.deepcopy(self.meta)  # siblings share nothing
        agents = await context.environment.agent_lease(self.item, lease, meta)
        tools = context.toolset(agents)
        watch = Stopwatch()
        replay = Replay(TurnJournal())
        model = parent.model.fork(context.model, watch, replay)
        errors: list[Mapping[str, Any]] = []
        limits = limits_of(context, self.item)
        used = parent.model.usage["completion_tokens"]
        one = attrs.evolve(
            limits,
            turns=1,
            tokens=None if limits.tokens is None else limits.tokens - used,
            time_s=None if deadline is None else max(0.001, deadline - time.monotonic()),
        )
        name = f"{self.item.id}/{'-'.join(map(str, path))}"
        task = AgentTask(
            id=name,
            model=model,
            messages=parent.result.messages,
            tools=tools.schemas,
            tool_handler=recorded_handler(tools, model, watch, replay, errors),
            limits=one,
            sampling=sampling_of(context.options, name),
        )
        said = await context.agent(task)
        result = attrs.evolve(
            said,
            turns=parent.result.turns + said.turns,
            tool_calls=parent.result.tool_calls + said.tool_calls,
            tool_errors=(
                *parent.result.tool_errors,
                *({**error, "turn": model.turns} for error in (*said.tool_errors, *errors)),
            ),
            stop_reason=self._stop_reason(said, model),
        )
        await lease.end_processes()
        value = await context.environment.value(self.item, outcome_of(result), lease, meta)
        return Node(
            path=path,
            result=result,
            value=float(value),
            files=await self._keep(kept),
            model=model,
            seconds=_sums(parent.seconds, watch.seconds),
            tools=tools.schemas,
        )

    def _stop_reason(self, said: AgentResult, model: RecordedModel) -> str:
        """Return why a conversation ends after a turn, or "" if it may go on."""
        limits = self.context.options.limits
        if said.stop_reason != TURN_LIMIT:
            return said.stop_reason
        if limits.tokens is not None and model.usage["completion_tokens"] >= limits.tokens:
            return TOKEN_LIMIT
        return TURN_LIMIT if model.turns >= limits.turns else ""


def check_keeps_files(lease: Sandbox) -> Lease:
    """Return a lease whose files can be kept.

    Raises:
        UnsupportedOptionError: they cannot.
    """
    if not isinstance(lease, Lease):
        why = "it needs slots of this machine; leave it at none"
        raise UnsupportedOptionError("this slot", "search", why)
    lease.pool.check_keeps_files()
    return lease


def outcome_of(result: AgentResult) -> Outcome:
    """Return the outcome of a conversation."""
    return Outcome(
        messages=result.messages,
        turns=result.turns,
        tool_calls=result.tool_calls,
        stop_reason=result.stop_reason,
    )


def _ended(node: Node, reason: str) -> Node:
    return attrs.evolve(node, result=attrs.evolve(node.result, stop_reason=reason))


def _sums(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {name: one.get(name, 0.0) + other.get(name, 0.0) for name in {**one, **other}}
