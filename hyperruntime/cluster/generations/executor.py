"""The head's side: an executor that gives generations to nodes, and makes them again elsewhere when
a node is lost.
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import attrs

from hyperruntime.cluster.generations.models import NodeModels
from hyperruntime.cluster.generations.shared_run import take_from_node
from hyperruntime.cluster.head import Node
from hyperruntime.concurrency.bridge import Bridge
from hyperruntime.errors import ClusterError, EngineUnavailableError, NodeLostError, StorageError
from hyperruntime.git.change_rules import ChangeRules
from hyperruntime.json_values import is_number
from hyperruntime.logs import get_logger
from hyperruntime.loop.generation.parent_program import Said
from hyperruntime.loop.run.tasks import GenerationTask, QuestionTask, run_to_json
from hyperruntime.loop.run_files.layout import AGENT_OUTPUT, PATCH, generation_name
from hyperruntime.loop.run_files.record import GenerationRecord, record_from_json
from hyperruntime.loop.workbench.context import GenerationPlan, RunContext
from hyperruntime.loop.workbench.events import StepEvent
from hyperruntime.loop.workbench.model_access import ModelAccess
from hyperruntime.storage.atomic import make_directory, storage_errors
from hyperruntime.storage.run_files import read_run_file
from hyperruntime.units import one_line
from hyperruntime.wire.peer import Answer, checked

log = get_logger(__name__)

MOST_LOSSES = 10  # of one generation, before it counts as failed
MOST_FAULTS = 3  # of nodes for one generation, before the run ends
_POLL_S = 0.2  # between two looks at whether the run is interrupted
_NODES_FAULT = (ClusterError, EngineUnavailableError, StorageError)


class Nodes(Protocol):
    """The part of a cluster that the executor needs; all methods run on the cluster's event
    loop.
    """

    error: ClusterError | None

    def nodes(self) -> list[Node]:
        """Return the nodes that take new work."""
        ...

    def want(self, count: int) -> None:
        """Ask for nodes until there are ``count``."""
        ...

    def on_node(self, function: Callable[[Node], None]) -> None:
        """Call a function with each node that joins."""
        ...

    def retire(self, node: Node, why: str) -> None:
        """Give a node no new work, and end it when it has none."""
        ...


class ClusterExecutor(Executor):
    """Runs tasks of :mod:`hyperruntime.loop.run.tasks` on nodes.

    A node makes at most its share of ``parallel`` generations at once; a task goes to the node with
    the least work.
    """

    def __init__(
        self, loop: Bridge, nodes: Nodes, models: NodeModels, parallel: int, most_nodes: int
    ) -> None:
        """Ask for no node yet.

        Args:
            loop: the event loop of the cluster.
            nodes: the cluster.
            models: serves models to the nodes.
            parallel: tasks at once.
            most_nodes: nodes at once.
        """
        self._loop = loop
        self._nodes = nodes
        self._models = models
        self._on_each = math.ceil(parallel / most_nodes)
        self._tasks = 0
        self._changed = asyncio.Event()
        self._watching = False

    def submit(self, task: Any, /, *args: Any, **more: Any) -> Future[Any]:  # noqa: ANN401
        """Run a task on a node.

        Args:
            task: a :class:`GenerationTask` or a :class:`QuestionTask`.
            args: must be empty.
            more: must be empty.

        Raises:
            TypeError: the task has another type, or there are more arguments.
        """
        if args or more or not isinstance(task, GenerationTask | QuestionTask):
            raise TypeError(
                f"submit takes one GenerationTask or QuestionTask, not {(task, *args)!r} and "
                f"{more!r}"
            )
        return self._loop.submit(self._run(task))

    async def _run(self, task: GenerationTask | QuestionTask) -> GenerationRecord | Said:
        self._tasks += 1
        try:
            return await (self._make(task) if isinstance(task, GenerationTask) else self._ask(task))
        finally:
            self._tasks -= 1
            self._changed.set()

    async def _make(self, task: GenerationTask) -> GenerationRecord:
        losses = 0
        faults = 0
        while True:
            number = task.first + losses
            node = await self._free_node(task.context)
            try:
                with node.in_use():
                    return await self._make_on(node, attrs.evolve(task, first=number))
            except (NodeLostError, *_NODES_FAULT) as error:
                losses += 1
                if not isinstance(error, NodeLostError):
                    self._nodes.retire(node, str(error))
                    faults += 1
                if faults == MOST_FAULTS:
                    raise
                if losses == MOST_LOSSES:
                    return await asyncio.to_thread(
                        _given_up, task.context, task.plan, number, str(error)
                    )
                log.warning(
                    "generation made again",
                    generation=task.plan.genid,
                    attempt=number,
                    reason=str(error),
                )
            finally:
                self._changed.set()

    async def _make_on(self, node: Node, task: GenerationTask) -> GenerationRecord:
        context = task.context
        plan = task.plan
        models = task.context.models
        assert isinstance(models, ModelAccess), "the head has the gateway"
        name = f"{generation_name(plan.genid)}.{uuid.uuid4().hex}"
        args = {
            "plan": attrs.asdict(plan),
            "genid": plan.genid,
            "first": task.first,
            "result": name,
            "shown": await asyncio.to_thread(lambda: len(os.listdir(context.layout.view))),
        }
        with self._models.granted(node.name, plan.genid, models):
            answer = await self._call(node, "generation", args, context)
        made = node.peer.checked(_Made, answer.value, "generation")
        return await asyncio.to_thread(_take, context, plan, name, made)

    async def _ask(self, task: QuestionTask) -> Said:
        question = task.question
        models = task.context.models
        assert isinstance(models, ModelAccess), "the head has the gateway"
        losses = 0
        faults = 0
        while True:
            node = await self._free_node(task.context, most=sys.maxsize)
            args = {"question": attrs.asdict(question), "genid": question.number}
            try:
                with node.in_use(), self._models.granted(node.name, question.number, models):
                    answer = await self._call(node, "question", args, task.context)
                    return node.peer.checked(Said, answer.value, "question")
            except (NodeLostError, *_NODES_FAULT) as error:
                losses += 1
                if not isinstance(error, NodeLostError):
                    self._nodes.retire(node, str(error))
                    faults += 1
                if faults == MOST_FAULTS or losses == MOST_LOSSES:
                    raise
                log.warning("question asked again", generation=question.number, reason=str(error))

    async def _call(
        self, node: Node, method: str, args: Mapping[str, Any], context: RunContext
    ) -> Answer:
        """Call a node; an interrupt of the run ends the call."""
        models = context.models
        assert isinstance(models, ModelAccess), "the head has the gateway"
        value = {**args, "run": run_to_json(context), "grace_s": models.grace_s}
        call = asyncio.ensure_future(
            node.peer.call(method, value, on_event=lambda said: _tell(context, said))
        )
        try:
            while not (await asyncio.wait({call}, timeout=_POLL_S))[0] and not node.job_ends:
                _check_running(context)
            if node.job_ends:
                raise NodeLostError(f"node {node.name} is being ended: {node.leaving}")
            return call.result()
        finally:
            call.cancel()

    async def _free_node(self, context: RunContext, most: int = 0) -> Node:
        """Return the node with the least work that may have more; ask for more nodes, and wait, if
        there is none.
        """
        most = most or self._on_each
        if not self._watching:
            self._watching = True
            self._nodes.on_node(lambda _: self._changed.set())
        while True:
            _check_running(context)
            self._nodes.want(math.ceil(self._tasks / self._on_each))
            free = [node for node in self._nodes.nodes() if node.uses < most]
            if free:
                return min(free, key=lambda node: node.uses)
            if self._nodes.error is not None and not self._nodes.nodes():
                raise self._nodes.error
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_S):
                    await self._changed.wait()


def _check_running(context: RunContext) -> None:
    context.containers.check_running()


def _tell(context: RunContext, said: Answer) -> None:
    value = said.value
    if isinstance(value, dict) and not is_number(value.get("score")):  # a domain may give NaN
        value = {**value, "score": None}
    event = checked(StepEvent, value, "an event of a generation")
    generation, step, detail = (
        one_line(text) for text in (event.generation, event.step, event.detail)
    )
    context.events.emit(attrs.evolve(event, generation=generation, step=step, detail=detail))


@attrs.frozen(kw_only=True)
class _Made:
    """The answer of ``generation``.

    Attributes:
        record: the generation's record.
        tree: how many files its directory has, and their bytes.
    """

    record: Mapping[str, Any]
    tree: Mapping[str, int]


def _take(context: RunContext, plan: GenerationPlan, name: str, made: _Made) -> GenerationRecord:
    """Return the record of a generation that a node made; move its files and its state into the
    run.
    """
    try:
        record = record_from_json(made.record)
    except ValueError as error:
        raise ClusterError(f"the node sent a generation that cannot be read: {error!r}") from error
    take_from_node(context.layout, plan.genid, name, made.tree)
    patch = context.layout.partial(plan.genid) / AGENT_OUTPUT / PATCH
    commit = plan.commit
    if record.commit != plan.commit:
        rules = ChangeRules.without_sizes()  # the node checked them
        kept = context.store.apply_patch(plan.commit, _patch_of(context, patch), plan.genid, rules)
        commit = kept.commit
    return attrs.evolve(
        record,
        genid=plan.genid,
        parent=plan.parent,
        archived=plan.archived,
        commit=commit,
        usage=context.models.usage(plan.genid),
    )


def _patch_of(context: RunContext, path: Path) -> bytes:
    with storage_errors(path):
        return read_run_file(path, below=context.layout.work)


def _given_up(
    context: RunContext, plan: GenerationPlan, attempts: int, why: str
) -> GenerationRecord:
    """Return the record of a generation that no node could make."""
    make_directory(context.layout.partial(plan.genid))
    return GenerationRecord(
        genid=plan.genid,
        parent=plan.parent,
        commit=plan.commit,
        archived=plan.archived,
        attempts=attempts,
        failure="infrastructure",
        detail=one_line(why),
        settings=context.options.score_settings,
        usage=context.models.usage(plan.genid),
    )
