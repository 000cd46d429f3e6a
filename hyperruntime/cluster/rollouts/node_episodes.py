"""The head's end of rollouts: a trajectory goes to a node with a free place; if the node is lost,
to another one.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.cluster.cluster import Cluster
from hyperruntime.cluster.head import Node
from hyperruntime.cluster.node_workers import NodeWorkers
from hyperruntime.cluster.rollouts.episode_service import (
    CLOSE,
    END,
    IMAGE,
    MODEL,
    OPEN,
    RUN,
)
from hyperruntime.cluster.rollouts.relayed_model import (
    PaidTurns,
    is_reachable_from_nodes,
    model_handler,
)
from hyperruntime.concurrency.background_tasks import BackgroundTasks
from hyperruntime.errors import (
    ClusterError,
    DriverLoadError,
    HyperRuntimeError,
    NodeLostError,
    SpecError,
    StorageError,
)
from hyperruntime.host.batch_job import SETTLE_S
from hyperruntime.json_values import count_values, parse_json, parse_json_slowly
from hyperruntime.logs import get_logger
from hyperruntime.option_fields import to_json
from hyperruntime.rollout.agent.model import Model
from hyperruntime.rollout.environment import Item
from hyperruntime.rollout.run.episode import Job, failed_trajectory
from hyperruntime.rollout.run.options import RolloutOptions
from hyperruntime.rollout.run.progress import Keep, RolloutEvent
from hyperruntime.rollout.run.runner import CompleteParts, Parts, run_episodes
from hyperruntime.rollout.run.summary import RolloutSummary
from hyperruntime.rollout.run_files.record import INFRASTRUCTURE, Trajectory
from hyperruntime.rollout.run_files.turn_journal import CALL, UNSAID, TurnJournal, valid_lines
from hyperruntime.runs.drain import Drain
from hyperruntime.runs.retry import Losses, LostTooOftenError
from hyperruntime.settings.reader import read
from hyperruntime.wire.checks import Line, Within
from hyperruntime.wire.messages import PeerFaultError
from hyperruntime.wire.peer import Answer, Call, Handler, Streams

log = get_logger(__name__)

MOST_JOURNAL_BYTES = 1 << 30  # of an attempt at a trajectory
_PIECE_BYTES = 4 << 20  # of a journal
_MOST_RECORD_VALUES = 1 << 23
_QUICK_BYTES = 1 << 20  # of a record that is parsed quickly, while all threads wait
_CALL = b'{"is":"call"'
_LASTING = (b'{"is":"failed"', b'{"is":"anew"')
_CLOSE_S = 10.0  # an interrupted command is ended after 30 s, and must cancel the jobs before


async def run_rollouts_on(
    cluster: AbstractAsyncContextManager[Cluster],
    options: RolloutOptions,
    *,
    run_dir: Path | None = None,
    model: Model | None = None,
    on_event: Callable[[RolloutEvent], None] = lambda _: None,
    keep: Keep = lambda _: None,
    on_start: Callable[[], None] = lambda: None,
    drain: Drain | None = None,
) -> RolloutSummary:
    """Run all trajectories that are not recorded yet on nodes, and return the summary of the whole
    run.

    Nodes load the environment and the agent by the names in the options, and see the directory of
    this process if it is shared. Each node makes at most ``options.parallel`` / ``max_nodes``
    trajectories at once, rounded up.

    Args:
        cluster: opened here; ``contextlib.nullcontext(cluster)`` for one that is open.
        options: rollout options; those of the pool are for each node.
        run_dir: as of ``run_rollouts``.
        model: asked on this machine; None means that of the options.
        on_event: as of ``run_rollouts``.
        keep: as of ``run_rollouts``.
        on_start: as of ``run_rollouts``.
        drain: as of ``run_rollouts``.

    Raises:
        ClusterError: no node can be started, or nodes cannot open the run.
        HyperRuntimeError: as of ``run_rollouts``.
    """

    @asynccontextmanager
    async def opened(options: RolloutOptions, parts: CompleteParts) -> AsyncIterator[NodeEpisodes]:
        async with (
            cluster as there,
            NodeEpisodes(there, options, parts, asks_head=model is not None) as episodes,
        ):
            yield episodes

    return await run_episodes(
        opened,
        options,
        run_dir=run_dir,
        parts=Parts(model=model),
        on_event=on_event,
        keep=keep,
        on_start=on_start,
        drain=drain,
    )


@attrs.frozen(kw_only=True)
class _Opened:
    """The answer of a node that has opened a run: how many trajectories it makes at once."""

    capacity: int = attrs.field(validator=Within(1, 1 << 20))


@attrs.frozen(kw_only=True)
class _Ended:
    """The answer of a node that has made an attempt at a trajectory.

    Attributes:
        ends: whether the node ends, and could not finish.
        told: whether the batch system has told it to.
    """

    ends: bool = False
    told: bool = False


@attrs.frozen(kw_only=True)
class _ItemImage:
    """The arguments of a node that needs the image of an item."""

    image: str = attrs.field(validator=Line(4096))


class NodeEpisodes:
    """Makes trajectories on nodes; a context manager.

    Attributes:
        capacity: upper bound on concurrent trajectories.
    """

    def __init__(
        self, cluster: Cluster, options: RolloutOptions, parts: CompleteParts, *, asks_head: bool
    ) -> None:
        """Open nothing yet.

        Args:
            cluster: an open one.
            options: options of the run.
            parts: objects of the run; the model is that of this machine.
            asks_head: whether nodes ask this machine's model even if they could reach its server.
        """
        if options.search != "none":
            raise SpecError("search", options.search, "none with a cluster: a search has one node")
        self.capacity = options.parallel
        self._cluster = cluster
        self._options = options
        self._model = parts.model
        self._environment = parts.environment
        self._workers = NodeWorkers(cluster, options.parallel, cluster.config.max_nodes)
        self._unfit = Losses()
        self._direct = (
            not asks_head and options.model is not None and is_reachable_from_nodes(options.model)
        )
        self._run = uuid.uuid4().hex
        self._turns: dict[str, PaidTurns] = {}
        self._tasks = BackgroundTasks("rollouts")
        self._closed = False
        self._handlers: dict[str, Handler] = {
            f"{MODEL}.{self._run}": model_handler(self._model, self._turns.get),
            f"{IMAGE}.{self._run}": self._give_item_image,
        }

    async def __aenter__(self) -> NodeEpisodes:
        """Open the run on each node that joins."""
        self._cluster.head.serve(self._handlers)
        self._cluster.on_node(self._joined)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the run on all nodes."""
        self._closed = True
        self._tasks.cancel()
        self._cluster.off_node(self._joined)
        await self._call_all(CLOSE)
        self._cluster.head.stop_serving(self._handlers)

    async def run(self, job: Job) -> Trajectory:
        """Make one attempt at a trajectory; if its node is lost, go on with its journal on another
        one.

        Args:
            job: the trajectory; its journal gets what this attempt does.

        Raises:
            ClusterError: no node can be started, or nodes cannot open the run.
            StorageError: the journal cannot be written.
        """
        self._turns[job.id] = PaidTurns(self._model, job.journal)
        try:
            return await self._workers.run(
                lambda node, _: self._run_on(node, job),
                f"trajectory {job.id}",
                near=self._environment.cache_key(job.item),
            )
        except LostTooOftenError as error:
            return failed_trajectory(self._options, self._model.name, job, error, "node")
        finally:
            await self._turns.pop(job.id).close()

    async def end(self, item: Item) -> None:
        """Let the nodes remove what they keep for the trajectories of an item, without waiting."""
        if self._options.group_size > 1:
            self._tasks.start(self._call_all(END, item=item.id))

    async def _call_all(self, method: str, **args: str) -> None:
        there = [member.node for member in self._workers.members if member.node.lost is None]
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                calls = (node.peer.call(method, {"run": self._run, **args}) for node in there)
                await asyncio.gather(*calls, return_exceptions=True)

    async def _run_on(self, node: Node, job: Job) -> Trajectory:
        """Make a trajectory on a node.

        Raises:
            NodeLostError: the node is lost, or it ends and could not finish.
        """
        journal = job.journal
        sent = _Sent(node, journal)
        before = journal.attempts
        self._turns[job.id].begin(before + 1, node.name)
        asked = {"run": self._run, "item": job.item.id, "index": job.index, "attempts": before}
        data = journal.data
        pieces = (data[at : at + _PIECE_BYTES] for at in range(0, len(data), _PIECE_BYTES))

        async def read() -> bytes:
            return next(pieces, b"")

        try:
            answer = await node.peer.call(RUN, asked, streams=Streams(read, sent.take))
            ended = node.peer.checked(_Ended, answer.value, RUN)
            if ended.told and node.job_ends_at is None:
                node.job_ends_at = _now()
            if ended.ends:
                node.leave("it was told to end")
                raise NodeLostError(f"node {node.name} was told to end")
            made = await asyncio.to_thread(_received, job, answer.body)
        except NodeLostError:
            raise
        except HyperRuntimeError as error:
            made = failed_trajectory(self._options, self._model.name, job, error, "node")
        finally:
            await sent.end()
            journal.attempts = max(journal.attempts, before + 1)
        if made.status == INFRASTRUCTURE and (node.leaving or node.lost):
            raise NodeLostError(
                f"node {node.name} ends ({node.leaving or node.lost}): {made.error}"
            )
        journal.attempts = max(journal.attempts, made.attempts)
        return made

    def _joined(self, node: Node) -> None:
        if not self._closed:
            self._tasks.start(self._open_on(node))

    async def _open_on(self, node: Node) -> None:
        """Open the run on a node; the run ends with an error if no node can do it."""
        try:
            with node.in_use():
                await self._give_image(node)
                opened = await node.peer.ask(_Opened, OPEN, self._opening())
        except NodeLostError:
            return
        except HyperRuntimeError as error:
            log.warning("node cannot open the run", node=node.name, error=str(error))
            try:
                self._unfit.count(error, ends_run=isinstance(error, (SpecError, DriverLoadError)))
            except HyperRuntimeError:
                step = "nodes need the packages, files and images of this machine"
                why = f"node {node.name} cannot open the run: {error}; {step}"
                self._workers.fail(ClusterError(why))
            node.leave("it cannot open the run")
        else:
            self._unfit = Losses()
            self._workers.add(node, min(self._workers.each, opened.capacity))

    async def _give_image(self, node: Node) -> None:
        """Give a node the run's image; without it, items that have images of their own can still be
        attempted.
        """
        image = self._options.container.image
        try:
            await self._cluster.give_image(node, image)
        except HyperRuntimeError as error:
            log.warning("image not given to node", node=node.name, image=image, error=str(error))

    async def _give_item_image(self, call: Call) -> Answer:
        """Give the node that asks the image of an item."""
        await self._cluster.give_image(
            self._cluster.head.nodes[call.caller], call.values(_ItemImage).image
        )
        return Answer()

    def _opening(self) -> dict[str, Any]:
        options = self._options
        return {
            "run": self._run,
            "options": to_json(attrs.evolve(options, parallel=self._workers.each)),
            "env": {name: os.environ[name] for name in options.env_names if name in os.environ},
            "directory": os.getcwd(),
            "model": self._model.name,
            "direct": self._direct,
            "remembers": hasattr(self._model, "remember"),
        }


class _Sent:
    """Journals the lines that a node sends about a trajectory, one after another.

    A batch system that ends the node's job sends SIGTERM to the processes in containers too. So
    what commands said is taken back if their job is told to end a moment later. What cannot be
    taken back waits for this moment.
    """

    def __init__(self, node: Node, journal: TurnJournal) -> None:
        """Wait for the first lines."""
        self._node = node
        self._journal = journal
        self._bytes = 0
        self._said: list[tuple[float, bytes]] = []  # by commands, with their times
        self._error: StorageError | None = None
        self._has_ended = False

    async def take(self, event: Answer) -> None:
        """Add lines to the journal.

        Raises:
            PeerFaultError: there are none, or too many.
            StorageError: they cannot be written.
        """
        data = event.body
        self._bytes += len(data)
        if not 0 < self._bytes <= MOST_JOURNAL_BYTES:
            raise PeerFaultError(f"it sent too much about a trajectory: {self._bytes} bytes")
        came = _now()
        if is_lasting := any(kind in data for kind in _LASTING):
            await asyncio.sleep(SETTLE_S)
        if is_lasting or _CALL in data:
            if self._has_ended or self._is_void(came):
                return
            lately = _now() - SETTLE_S
            self._said = [one for one in self._said if one[0] > lately or self._is_void(one[0])]
            self._said.append((came, data))
        try:
            await self._journal.add_lines(data)
        except StorageError as error:
            self._error = error
            raise

    async def end(self) -> None:
        """Take back what commands said that SIGTERM may have ended.

        Raises:
            StorageError: the journal cannot be written, or could not.
        """
        self._has_ended = True
        if self._error is not None:
            raise self._error
        for came, data in self._said:
            for _, entry in valid_lines(data) if self._is_void(came) else ():
                if entry["is"] == CALL:
                    await self._journal.add(UNSAID, key=entry["key"])

    def _is_void(self, came: float) -> bool:
        """Return whether SIGTERM may have ended a command."""
        told = self._node.job_ends_at
        return told is not None and came > told - SETTLE_S


def _now() -> float:
    return asyncio.get_running_loop().time()


def _received(job: Job, line: bytes) -> Trajectory:
    """Return the trajectory that a node sent.

    Raises:
        HyperRuntimeError: it is not that trajectory.
    """
    why = f"it begins with {line[:200]!r}"
    if count_values(line) <= _MOST_RECORD_VALUES:
        try:
            value = (
                parse_json(line) if len(line) <= _QUICK_BYTES else parse_json_slowly(line.decode())
            )
            trajectory = read(Trajectory, value, "the record")
        except ValueError as error:  # SpecError is one
            why = str(error)
        else:
            if (trajectory.id, trajectory.item_id, trajectory.index) == (
                job.id,
                job.item.id,
                job.index,
            ):
                return trajectory
            why = f"but one of {trajectory.id!r}"
    raise HyperRuntimeError(f"the node sent no record of {job.id}: {why}")
