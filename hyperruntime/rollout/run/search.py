"""Searches as the trajectories of a run: the best paths of an item's tree are its group.

So their files, resuming, progress, groups and training data are those of other rollouts.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from hyperruntime.concurrency.blocking import check_cancelled
from hyperruntime.errors import RunError, SpecError
from hyperruntime.rollout.agent.replay import Replay
from hyperruntime.rollout.environment import Item, UnscoredEnvironmentBase
from hyperruntime.rollout.run.episode import Episode, EpisodeContext, Job, failed_trajectory
from hyperruntime.rollout.run.search_tree import Node, Tree, check_keeps_files
from hyperruntime.rollout.run_files.record import Trajectory
from hyperruntime.rollout.run_files.turn_journal import TurnJournal

if TYPE_CHECKING:
    from hyperruntime.spec import ContainerSpec


class Searches:
    """Makes the trajectories of a run by searches; ``async with`` ends those that run.

    Attributes:
        capacity: upper bound on concurrent trajectories.
    """

    def __init__(self, context: EpisodeContext) -> None:
        """Search nothing yet.

        Args:
            context: the context of the run.

        Raises:
            SpecError: the environment has no ``value``.
        """
        value = getattr(context.environment.value, "__func__", None)
        if value is UnscoredEnvironmentBase.value:
            allowed = f"none, because the environment {context.environment.name!r} has no `value`"
            raise SpecError("search", context.options.search, allowed)
        self.capacity = context.capacity
        self._context = context
        self._room: asyncio.Queue[int] = asyncio.Queue()
        for number in range(min(context.options.parallel, context.capacity)):
            self._room.put_nowait(number)
        self._searches: dict[str, tuple[Tree, asyncio.Task[list[Node]]]] = {}

    async def __aenter__(self) -> Searches:
        """Return the searches."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """End all searches."""
        tasks = [task for _, task in self._searches.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for found in self._searches.values():
            await found[0].drop()

    async def run(self, job: Job) -> Trajectory:
        """Return one of the best paths for an item; the first call for the item searches."""
        context = self._context
        try:
            spec = await context.specs.of(job.item)
            tree, task = self._search(job.item, spec)
            paths = await asyncio.shield(task)
            if job.index >= len(paths):
                raise RunError(
                    f"the search made {tree.made} nodes and {len(paths)} paths; raise "
                    "search_nodes, or see why steps failed"
                )
        except Exception as error:  # noqa: BLE001 - recorded, and retried by the scheduler
            check_cancelled()
            return failed_trajectory(context.options, context.model.name, job, error, "search")
        return await _Path(context, job, spec, tree, paths[job.index]).run()

    async def end(self, item: Item) -> None:
        """Remove what is kept for the trajectories of an item, which have all ended."""
        if (found := self._searches.pop(item.id, None)) is not None:
            await found[0].drop()

    def _search(self, item: Item, spec: ContainerSpec) -> tuple[Tree, asyncio.Task[list[Node]]]:
        found = self._searches.get(item.id)
        if found is None or (
            found[1].done() and (found[1].cancelled() or found[1].exception() is not None)
        ):
            tree = Tree(context=self._context, item=item, spec=spec, room=self._room)
            if found is not None:
                tree.files += found[0].files
            found = self._searches[item.id] = tree, asyncio.create_task(tree.grow())
        return found


class _Path(Episode):
    """Scores and records the conversation at the end of a path."""

    def __init__(
        self, context: EpisodeContext, job: Job, spec: ContainerSpec, tree: Tree, node: Node
    ) -> None:
        super().__init__(context, job, spec, Replay(TurnJournal()))
        self._meta = copy.deepcopy(tree.meta)
        self._node = node
        self._model = node.model
        self._watch.seconds.update(node.seconds)
        opening = context.environment.messages(job.item, self._meta)
        self._trajectory = attrs.evolve(self._trajectory, messages=opening, tools=node.tools)
        self._facts = {"path": list(node.path), "value": node.value, "nodes": tree.made}

    async def _work(self) -> None:
        node = self._node
        async with self._leased(self._context.slots.lease(self._spec, self._job.id)) as lease:
            await check_keeps_files(lease).rollback(node.files)
            self._result = node.result
            ending = await self._score(node.result, lease, self._meta)
            verdict: Mapping[str, Any] = ending.get("verdict", {})
            facts = {**verdict.get("facts", {}), "search": self._facts}
            self._ending = {**ending, "verdict": {**verdict, "facts": facts}}
            self._phase = "release"
