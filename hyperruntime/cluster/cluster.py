"""A cluster: a head, and nodes that are started on demand and ended when they are idle."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from hyperruntime.cluster.config import ClusterConfig
from hyperruntime.cluster.head import Head, Node, own_address
from hyperruntime.cluster.images import ImageSource
from hyperruntime.cluster.job_directory import JOBS_PREFIX, job_directory
from hyperruntime.cluster.launchers.launcher import JobRefusedError
from hyperruntime.cluster.node_jobs import JobEnd, NodeJobs
from hyperruntime.cluster.open_clusters import ClusterFile
from hyperruntime.cluster.starts import Starts
from hyperruntime.concurrency.background_tasks import BackgroundTasks
from hyperruntime.errors import ClusterError, HyperRuntimeError
from hyperruntime.logs import get_logger
from hyperruntime.wire.peer import Handler

log = get_logger(__name__)

_LOOK_S = 0.5  # between two looks at idle nodes
_PAUSE_S = 60.0  # after failed starts, before more nodes are asked for while others work
_END_S = 10.0  # for a node to end its containers
_GRACE_S = 60.0  # for other nodes to join, after a cluster without nodes should give up


class Cluster:
    """Nodes from a batch system; ``async with Cluster(config, directory) as cluster:`` opens and
    closes it.

    All methods run on the event loop that opened it.

    Attributes:
        config: which nodes.
        head: the connections to them.
        error: why no node can be started; None while one may still start.

    Example:
        >>> async def on_a_node(config, work):
        ...     async with hr.Cluster(config) as cluster:
        ...         cluster.want(1)
        ...         return await work(await cluster.wait_for_node())
        >>> hr.Cluster(hr.ClusterConfig(max_nodes=2)).nodes()  # none before it is opened
        []
    """

    def __init__(
        self,
        config: ClusterConfig,
        directory: Path | None = None,
        handlers: Mapping[str, Handler] | None = None,
    ) -> None:
        """Open nothing yet.

        Args:
            config: which nodes.
            directory: for job scripts and logs; nodes must see it. None means a new one in the
                current directory, which is removed when the cluster is closed.
            handlers: what nodes may call.
        """
        self.config = config
        self.head = Head(handlers, heartbeat_s=config.heartbeat_s, patience_s=config.patience_s)
        self.error: ClusterError | None = None
        self._directory = directory and directory.absolute()  # jobs may begin in another directory
        self._own_directory = ExitStack()
        self._jobs: NodeJobs | None = None
        self._names = (f"node-{number}" for number in itertools.count(1))
        self._wanted = 0
        self._starts = Starts(has_hosts=config.provider != "local" or bool(config.parsl))
        self._coming = BackgroundTasks("the cluster's nodes")
        self._under_way = 0  # starts that have neither failed nor ended with a node
        self._watching: tuple[asyncio.Task[None], ...] = ()
        self._file: ClusterFile | None = None
        self._images: ImageSource | None = None
        self._tasks = BackgroundTasks("the cluster")
        self._changed = asyncio.Condition()
        self._on_node: list[Callable[[Node], None]] = []

    async def __aenter__(self) -> Cluster:
        """Listen, find the batch system, and ask for ``min_nodes``.

        Raises:
            ClusterError: the head cannot listen, or the launcher of the batch system cannot be
                made.
        """
        with ExitStack() as undo:
            files = undo.enter_context(job_directory(self._directory or Path.cwd(), JOBS_PREFIX))
            place = self._directory or files
            local = self.config.provider == "local" and not self.config.parsl
            await self.head.start(
                self.config.address or ("127.0.0.1" if local else own_address()), self.config.port
            )
            self._images = ImageSource(files)
            self._jobs = NodeJobs(self.config, files, place)
            try:
                await self._jobs.start()
            except BaseException:
                await self.head.stop()
                await self._jobs.stop()
                raise
            if self.config.is_by_hand:
                command = self._jobs.command(self.head.invite_all(self._greet))
                log.warning("nodes are started by you", command=command)
            self._own_directory = undo.pop_all()
        self._file = ClusterFile(self.head, self.config.parsl or self.config.provider, place)
        self._watching = (
            self._tasks.start(self._look()),
            self._tasks.start(self._file.keep_writing()),
        )
        self.want(self.config.min_nodes)
        return self

    async def __aexit__(self, *_: object) -> None:
        """End the nodes' work, cancel all jobs and close the connections."""
        with self._own_directory:
            self._wanted = 0
            for task in (*self._watching, *self._coming):
                task.cancel()
            with suppress(TimeoutError):
                async with asyncio.timeout(_END_S):
                    await asyncio.gather(*(self._end(node) for node in self.connected()))
            await self.head.stop()
            if self._jobs is not None:
                await self._jobs.stop()
            if self._file is not None:
                self._file.remove()

    def nodes(self) -> list[Node]:
        """Return the nodes that take new work, in the order in which they were asked for."""
        return [node for node in self.connected() if node.is_ready and not node.leaving]

    def connected(self) -> list[Node]:
        """Return the nodes that are there, also those that take no new work."""
        return self.head.connected()

    def want(self, count: int) -> None:
        """Ask for nodes until there are ``count``, or ``max_nodes``; lost nodes are replaced.

        Idle nodes above ``min_nodes`` are given back after ``idle_s``, which lowers the count.
        """
        self._wanted = max(self.config.min_nodes, min(count, self.config.max_nodes), self._wanted)
        self._ask()

    def on_node(self, function: Callable[[Node], None]) -> None:
        """Call a function with each node that joins from now on, and with those that are there."""
        self._on_node.append(function)
        for node in self.nodes():
            function(node)

    def off_node(self, function: Callable[[Node], None]) -> None:
        """Stop calling a function from :meth:`on_node`; an unknown function is ignored."""
        with suppress(ValueError):
            self._on_node.remove(function)

    async def wait_for_node(self) -> Node:
        """Return a node that takes new work; wait for one if there is none. Call :meth:`want`
        before.

        Raises:
            ClusterError: several consecutive starts of nodes failed; the message says why.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: self.nodes() or self.error is not None)
        if nodes := self.nodes():
            return nodes[0]
        assert self.error is not None
        raise self.error

    async def add_node(self) -> Node:
        """Ask for one node; wait until it has joined and has its images.

        Raises:
            ClusterError: the batch system gives no job, the job ended before its node joined, or
                the node did not get its images.
        """
        assert self._jobs is not None, "the cluster is open"
        invitation = self.head.invite(next(self._names))
        node = self.head.nodes[invitation.name]
        try:
            job = await self._jobs.submit(invitation, self._starts.excluded)
        except HyperRuntimeError as error:
            node.lose(f"it got no job: {error}")
            self._starts.delay()
            raise
        joined = asyncio.ensure_future(node.joined.wait())
        both: set[asyncio.Future[Any]] = {job.ended, joined}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            joined.cancel()
        if not node.joined.is_set() or node.lost is not None:
            end = job.ended.result() if job.ended.done() else JobEnd(kind="failed", why="unknown")
            self._starts.ended(end)
            node.lose(f"its job ended before it joined: {end.why}")
            raise ClusterError(str(node.lost))
        job.ended.add_done_callback(lambda end: _lose(node, end))
        await self._give_images(node)
        self._starts.joined()
        self._welcome(node)
        return node

    async def give_image(self, node: Node, image: str) -> None:
        """Make sure that a node has an image, the same as other nodes.

        Args:
            node: has joined.
            image: name of a recipe, or a reference.

        Raises:
            ClusterError: neither the head nor a node has the image, and it cannot be made.
            HyperRuntimeError: the node is lost, or the image cannot be pulled, loaded or made.
        """
        assert self._images is not None, "the cluster is open"
        with node.in_use():
            await self._images.give(node, image, self.nodes())

    def _greet(self, node: Node) -> None:
        """Prepare a node that somebody has started."""

        async def prepare() -> None:
            await node.joined.wait()
            if node.lost is None:
                await self._give_images(node)
                self._welcome(node)

        self._tasks.start(prepare())

    async def _give_images(self, node: Node) -> None:
        try:
            for image in self.config.images:
                await self.give_image(node, image)
        except Exception as error:
            await self._end(node)
            why = str(error) if isinstance(error, HyperRuntimeError) else repr(error)
            self._starts.ended(JobEnd(kind="failed", host=node.facts.host, why=why))
            raise ClusterError(f"node {node.name} did not get its images: {why}") from error

    def _welcome(self, node: Node) -> None:
        loop = asyncio.get_running_loop()
        node.idle_since = loop.time()
        node.is_ready = True
        assert self._jobs is not None
        if (walltime_s := self._jobs.walltime_s) is not None:
            drains = node.job_began + walltime_s - self.config.drain_s
            loop.call_at(drains, node.leave, "its walltime is nearly over")
        node.on_leaving(partial(self._on_leaving, node))
        node.on_lost(lambda _: self._on_lost())
        for function in self._on_node:
            function(node)
        self._tell()

    def _on_leaving(self, node: Node) -> None:
        self._tasks.start(self._end(node, when_idle=True))
        self._ask()

    def _on_lost(self) -> None:
        assert self._jobs is not None
        self._jobs.look_soon()
        self._ask()
        self._tell()

    def _ask(self) -> None:
        """Ask for the nodes that are missing."""
        while (
            self._jobs is not None
            and not self.config.is_by_hand
            and self.error is None
            and len(self.nodes()) + len(self._coming) < self._wanted
        ):
            self._coming.start(self._come()).add_done_callback(self._came)

    async def _come(self) -> None:
        await asyncio.sleep(self._starts.pause_s)
        self._under_way += 1
        try:
            await self.add_node()
            self.error = None
            return
        except JobRefusedError as refused:
            why: ClusterError | None = refused
            if self.connected():
                log.warning("node not started", error=str(refused))
        except ClusterError as error:
            why = self._starts.error()
            if why is None or self.connected():
                log.warning("node not started", error=str(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, it ends no task in silence
            log.warning("node not started", error=repr(error))
            self._starts.ended(JobEnd(kind="failed", why=repr(error)))
            why = self._starts.error()
        finally:
            self._under_way -= 1
            self._tell()
        if why is not None and self.connected():
            self._starts.forget()
            await asyncio.sleep(_PAUSE_S)
        elif why is not None and not await self._joins_soon():
            self.error = why
            self._tell()

    async def _joins_soon(self) -> bool:
        """Return whether a node joins of those that are under way; three bad hosts of many may be
        the first that have an answer.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_GRACE_S), self._changed:
                await self._changed.wait_for(lambda: self.connected() or not self._under_way)
        return bool(self.connected())

    def _came(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._ask()

    async def _look(self) -> None:
        """Give idle nodes back, but those that somebody has started."""
        while not self.config.is_by_hand:
            await asyncio.sleep(_LOOK_S)
            now = asyncio.get_running_loop().time()
            idle = [
                node
                for node in self.nodes()
                if not node.uses and now - node.idle_since >= self.config.idle_s
            ]
            for node in idle[: max(0, len(self.nodes()) - self.config.min_nodes)]:
                self._wanted -= 1
                node.leave("idle")

    async def _end(self, node: Node, *, when_idle: bool = False) -> None:
        while when_idle and node.uses and node.lost is None:
            await asyncio.sleep(_LOOK_S)
        node.dismissed = True
        node.leave("the head ends it")
        with suppress(HyperRuntimeError):
            # again: a call that is cancelled while the node is away may never reach it
            while node.lost is None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_END_S):
                        await node.peer.call("end")
                        await node.ended.wait()

    def _tell(self) -> None:
        async def notify() -> None:
            async with self._changed:
                self._changed.notify_all()

        self._tasks.start(notify())


def _lose(node: Node, ended: asyncio.Future[JobEnd]) -> None:
    if not ended.cancelled():
        node.lose(f"its job ended: {ended.result().why}")
