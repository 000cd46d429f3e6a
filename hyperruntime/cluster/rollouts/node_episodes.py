"""The head's end of rollouts: a trajectory goes to a node with a free place; if the node is lost,
to another one.
"""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.cluster.cluster import Cluster
from hyperruntime.cluster.head import Node
from hyperruntime.cluster.rollouts.episode_service import (
    CLOSE,
    IMAGE,
    JOURNAL,
    MODEL,
    OPEN,
    PIECE_BYTES,
    RECORD,
    RUN,
    TURNS,
)
from hyperruntime.cluster.rollouts.relayed_model import is_reachable_from_nodes, model_handler
from hyperruntime.concurrency.background_tasks import BackgroundTasks
from hyperruntime.errors import (
    ClusterError,
    DriverLoadError,
    HyperRuntimeError,
    NodeLostError,
    SpecError,
)
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
from hyperruntime.rollout.run_files.turn_journal import TurnJournal
from hyperruntime.settings.reader import read
from hyperruntime.wire.checks import Line, Within
from hyperruntime.wire.messages import PeerFaultError
from hyperruntime.wire.peer import Answer, Call, Handler

log = get_logger(__name__)

_MOST_LOST = 20  # nodes that one trajectory may lose, one after another
_MOST_UNFIT = 3  # nodes that cannot open a run, one after another
_CACHES_KEPT = 256  # keys that the head remembers for a node
MOST_JOURNAL_BYTES = 1 << 30  # of an attempt at a trajectory
MOST_RECORD_BYTES = 1 << 28  # of an attempt at a trajectory
_MOST_WAITING_BYTES = 1 << 26  # of lines that the disk has not taken
_MOST_RECORD_VALUES = 1 << 23
_QUICK_BYTES = 1 << 20  # of a record that is parsed quickly, while all threads wait
_LOOK_S = 0.5
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
    )


@attrs.frozen(kw_only=True)
class _Opened:
    """The answer of a node that has opened a run: how many trajectories it makes at once."""

    capacity: int = attrs.field(validator=Within(1, 1 << 20))


@attrs.frozen(kw_only=True)
class _Ended:
    """The answer of a node that has made an attempt at a trajectory: whether it ends, and could not
    finish.
    """

    ends: bool = False


@attrs.frozen(kw_only=True)
class _Piece:
    """The arguments of a node that asks for a piece of a journal: its trajectory, and where the
    piece begins.
    """

    id: str = attrs.field(validator=Line(10_000))
    offset: int = attrs.field(validator=Within(0, sys.maxsize))


@attrs.frozen(kw_only=True)
class _ItemImage:
    """The arguments of a node that needs the image of an item."""

    image: str = attrs.field(validator=Line(4096))


@attrs.define(eq=False)
class _Place:
    """A node that has opened the run.

    Attributes:
        node: the node.
        free: how many more trajectories it takes now.
        caches: keys of the caches that it has, the latest last.
    """

    node: Node
    free: int
    caches: dict[str, None] = attrs.field(factory=dict)

    def take(self, key: str) -> None:
        """Count a trajectory whose caches have a key."""
        self.free -= 1
        self.caches.pop(key, None)
        self.caches[key] = None
        while len(self.caches) > _CACHES_KEPT:
            del self.caches[next(iter(self.caches))]


def place_for(key: str, places: Sequence[_Place]) -> _Place | None:
    """Return where a trajectory should be made, or None if no place is free.

    That is the place with the most room; a place with the item's caches is preferred if it has at
    least half as much.

    Args:
        key: of the item's caches.
        places: nodes that may be used.
    """
    most = max(places, key=lambda place: place.free, default=None)
    if most is None or most.free <= 0:
        return None
    close = [place for place in places if key in place.caches and 2 * place.free >= most.free]
    return max(close, key=lambda place: place.free, default=most)


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
        self.capacity = options.parallel
        self._cluster = cluster
        self._options = options
        self._model = parts.model
        self._environment = parts.environment
        self._each = -(-options.parallel // cluster.config.max_nodes)
        self._direct = (
            not asks_head and options.model is not None and is_reachable_from_nodes(options.model)
        )
        self._run = uuid.uuid4().hex
        self._journals: dict[str, TurnJournal] = {}
        self._places: list[_Place] = []
        self._busy = self._unfit = 0
        self._changed = asyncio.Event()
        self._error: Exception | None = None
        self._tasks = BackgroundTasks("rollouts")
        self._closed = False
        self._handlers: dict[str, Handler] = {
            f"{MODEL}.{self._run}": model_handler(self._model),
            f"{JOURNAL}.{self._run}": self._read_journal,
            f"{IMAGE}.{self._run}": self._give_item_image,
        }

    async def __aenter__(self) -> NodeEpisodes:
        """Open the run on each node that joins."""
        self._cluster.head.serve(self._handlers)
        self._start(self._look())
        self._cluster.on_node(self._joined)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the run on all nodes."""
        self._closed = True
        self._tasks.cancel()
        self._cluster.off_node(self._joined)
        there = [place.node for place in self._places if place.node.lost is None]
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                calls = (node.peer.call(CLOSE, {"run": self._run}) for node in there)
                await asyncio.gather(*calls, return_exceptions=True)
        self._cluster.head.stop_serving(self._handlers)

    async def run(self, job: Job, journal: TurnJournal) -> Trajectory:
        """Make one attempt at a trajectory; if its node is lost, go on with its journal on another
        one.

        Args:
            job: the trajectory.
            journal: what earlier attempts did; gets what this one does.

        Raises:
            ClusterError: no node can be started, or nodes cannot open the run.
            StorageError: the journal cannot be written.
        """
        lost: NodeLostError | None = None
        self._journals[job.id] = journal
        try:
            for _ in range(_MOST_LOST):
                place = await self._take(self._key_of(job.item))
                try:
                    with place.node.in_use():
                        return await self._run_on(place.node, job, journal)
                except NodeLostError as error:
                    lost = error
                    log.warning(
                        "trajectory lost with its node", trajectory=job.id, error=str(error)
                    )
                finally:
                    self._give(place)
        finally:
            del self._journals[job.id]
        assert lost is not None
        return failed_trajectory(self._options, self._model.name, job, lost, "node")

    def _key_of(self, item: Item) -> str:
        return self._environment.cache_key(item)

    async def _take(self, key: str) -> _Place:
        """Return a node with a free place, if possible one that has the caches of a key, and take
        the place.
        """
        self._busy += 1
        try:
            while self._error is None:
                self._cluster.want(-(-self._busy // self._each))
                place = place_for(key, [place for place in self._places if self._is_usable(place)])
                if place is not None:
                    place.take(key)
                    return place
                self._changed.clear()
                await self._changed.wait()
            raise self._error
        except BaseException:
            self._busy -= 1
            raise

    def _give(self, place: _Place) -> None:
        self._busy -= 1
        place.free += 1
        self._changed.set()

    @staticmethod
    def _is_usable(place: _Place) -> bool:
        return place.node.lost is None and not place.node.leaving

    async def _run_on(self, node: Node, job: Job, journal: TurnJournal) -> Trajectory:
        """Make a trajectory on a node.

        Raises:
            NodeLostError: the node is lost, or it ends and could not finish.
        """
        sent = _Sent()
        before = journal.attempts
        asked = {"run": self._run, "item": job.item.id, "index": job.index, "attempts": before}
        writing = asyncio.ensure_future(sent.write(journal))
        try:
            ended = await node.peer.ask(
                _Ended, RUN, {**asked, "journal": len(journal.data)}, on_event=sent.take
            )
            if ended.ends:
                node.leave("it was told to end")
                raise NodeLostError(f"node {node.name} was told to end")
            made = await asyncio.to_thread(_received, job, b"".join(sent.record))
        except NodeLostError:
            raise
        except HyperRuntimeError as error:
            made = failed_trajectory(self._options, self._model.name, job, error, "node")
        finally:
            sent.end()
            await writing
            journal.attempts = max(journal.attempts, before + 1)
        if made.status == INFRASTRUCTURE and (node.leaving or node.lost):
            raise NodeLostError(
                f"node {node.name} ends ({node.leaving or node.lost}): {made.error}"
            )
        journal.attempts = max(journal.attempts, made.attempts)
        return made

    async def _read_journal(self, call: Call) -> Answer:
        """Return a piece of the journal of a trajectory, for the node that makes it."""
        asked = call.values(_Piece)
        journal = self._journals.get(asked.id)
        if journal is None:
            raise HyperRuntimeError(f"trajectory {asked.id!r} has ended")
        return Answer(body=journal.data[asked.offset : asked.offset + PIECE_BYTES])

    def _joined(self, node: Node) -> None:
        if not self._closed:
            self._start(self._open_on(node))

    async def _open_on(self, node: Node) -> None:
        """Open the run on a node; the run ends with an error if no node can do it."""
        try:
            with node.in_use():
                await self._give_image(node)
                opened = await node.peer.ask(_Opened, OPEN, self._opening())
        except NodeLostError:
            return
        except HyperRuntimeError as error:
            self._unfit += 1
            log.warning("node cannot open the run", node=node.name, error=str(error))
            if self._unfit >= _MOST_UNFIT or isinstance(error, (SpecError, DriverLoadError)):
                step = "nodes need the packages, files and images of this machine"
                self._fail(ClusterError(f"node {node.name} cannot open the run: {error}; {step}"))
            self._cluster.retire(node, "it cannot open the run")
        else:
            self._unfit = 0
            self._places.append(_Place(node, min(self._each, opened.capacity)))
            self._changed.set()

    async def _give_image(self, node: Node) -> None:
        """Give a node the run's image; without it, items that have images of their own can still be
        attempted.
        """
        image = self._options.container.image
        try:
            await self._cluster.give_image(node, image)
        except NodeLostError:
            raise
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
            "options": to_json(attrs.evolve(options, parallel=self._each)),
            "env": {name: os.environ[name] for name in options.env_names if name in os.environ},
            "directory": os.getcwd(),
            "model": self._model.name,
            "direct": self._direct,
            "remembers": hasattr(self._model, "remember"),
        }

    async def _look(self) -> None:
        """End the run if no node can be started."""
        while self._error is None:
            await asyncio.sleep(_LOOK_S)
            if self._cluster.error is not None and not self._cluster.nodes():
                self._fail(self._cluster.error)

    def _fail(self, error: HyperRuntimeError) -> None:
        self._error = self._error or error
        self._changed.set()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.start(work)


class _Sent:
    """The events of a node that makes a trajectory: lines of the journal, and the record in pieces.

    Attributes:
        record: the pieces that have come.
    """

    def __init__(self) -> None:
        """Wait for the first event."""
        self.record: list[bytes] = []
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._waiting_bytes = self._journal_bytes = self._record_bytes = 0

    def take(self, event: Answer) -> None:
        """Take an event.

        Raises:
            PeerFaultError: it is unknown, too large, or one too many.
        """
        size = len(event.body)
        if event.value == TURNS:
            self._journal_bytes += size
            self._waiting_bytes += size
            self._lines.put_nowait(event.body)
        elif event.value == RECORD:
            self._record_bytes += size
            self.record.append(event.body)
        is_known = event.value in (TURNS, RECORD) and size > 0
        most = (MOST_JOURNAL_BYTES, _MOST_WAITING_BYTES, MOST_RECORD_BYTES)
        has = (self._journal_bytes, self._waiting_bytes, self._record_bytes)
        if not is_known or any(each > limit for each, limit in zip(has, most, strict=True)):
            raise PeerFaultError(
                f"it sent too much about a trajectory, or an unknown event: {has} bytes of {most}"
            )

    def end(self) -> None:
        """Let :meth:`write` end after the lines that have come."""
        self._lines.put_nowait(None)

    async def write(self, journal: TurnJournal) -> None:
        """Add the lines to a journal as they come, until :meth:`end`."""
        while (each := await self._lines.get()) is not None:
            await journal.add_lines(each)
            self._waiting_bytes -= len(each)


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
