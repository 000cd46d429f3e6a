"""The head's side: an executor that gives generations to nodes."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Mapping
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.cluster.generations.models import NodeModels
from hyperruntime.cluster.generations.shared_run import take_from_node
from hyperruntime.cluster.head import Node
from hyperruntime.cluster.node_workers import Nodes, NodeWorkers
from hyperruntime.concurrency.bridge import Bridge
from hyperruntime.errors import ClusterError, EngineUnavailableError, NodeLostError, StorageError
from hyperruntime.git.change_rules import ChangeRules
from hyperruntime.json_values import is_number
from hyperruntime.loop.generation.adapter import RunContext
from hyperruntime.loop.generation.parent_program import Said
from hyperruntime.loop.run.tasks import GenerationTask, QuestionTask, run_to_json
from hyperruntime.loop.run_files.layout import AGENT_OUTPUT, PATCH, generation_name
from hyperruntime.loop.run_files.record import GenerationRecord, record_from_json
from hyperruntime.loop.workbench.context import GenerationPlan
from hyperruntime.loop.workbench.events import StepEvent
from hyperruntime.loop.workbench.model_access import ModelAccess
from hyperruntime.runs.retry import MOST_LOSSES, LostTooOftenError
from hyperruntime.storage.atomic import make_directory, storage_errors
from hyperruntime.storage.run_files import read_run_file
from hyperruntime.units import one_line
from hyperruntime.wire.peer import Answer, checked

_POLL_S = 0.2  # between two looks at whether the run is interrupted
_NODES_FAULT = (ClusterError, EngineUnavailableError, StorageError)


class ClusterExecutor(Executor):
    """Runs tasks of :mod:`hyperruntime.loop.run.tasks` on nodes.

    A node makes at most its share of ``parallel`` generations at once; a task goes to the node with
    the least work.

    Attributes:
        capacity: upper bound on concurrent tasks.
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
        self.capacity = parallel
        self._loop = loop
        self._models = models
        self._workers = NodeWorkers(nodes, parallel, most_nodes)
        loop.run(self._watch(nodes))

    async def _watch(self, nodes: Nodes) -> None:
        nodes.on_node(lambda node: self._workers.add(node, self._workers.each))

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
        return self._loop.submit(self.run(task))

    async def run(self, task: GenerationTask | QuestionTask) -> GenerationRecord | Said:
        """Run a task on a node, on the event loop of the cluster; see
        :class:`~hyperruntime.runs.workers.Workers`.

        Raises:
            ClusterError: no node can be started.
            HyperRuntimeError: as of the task, or no node can run it.
        """
        check = task.context.containers.check_running
        if isinstance(task, QuestionTask):
            return await self._workers.run(
                lambda node, _: self._ask_on(node, task),
                f"question of generation {task.question.number}",
                faults=_NODES_FAULT,
                needs_room=False,
                check=check,
            )
        try:
            return await self._workers.run(
                lambda node, lost: self._make_on(node, attrs.evolve(task, first=task.first + lost)),
                f"generation {task.plan.genid}",
                faults=_NODES_FAULT,
                check=check,
            )
        except LostTooOftenError as error:
            attempts = task.first + MOST_LOSSES - 1
            return await asyncio.to_thread(_given_up, task.context, task.plan, attempts, str(error))

    async def _make_on(self, node: Node, task: GenerationTask) -> GenerationRecord:
        context = task.context
        plan = task.plan
        name = f"{generation_name(plan.genid)}.{uuid.uuid4().hex}"
        args = {
            "plan": attrs.asdict(plan),
            "genid": plan.genid,
            "first": task.first,
            "result": name,
            "shown": await asyncio.to_thread(lambda: len(os.listdir(context.layout.view))),
        }
        answer = await self._call(node, "generation", args, context)
        made = node.peer.checked(_Made, answer.value, "generation")
        return await asyncio.to_thread(_take, context, plan, name, made)

    async def _ask_on(self, node: Node, task: QuestionTask) -> Said:
        args = {"question": attrs.asdict(task.question), "genid": task.question.number}
        answer = await self._call(node, "question", args, task.context)
        return node.peer.checked(Said, answer.value, "question")

    async def _call(
        self, node: Node, method: str, args: Mapping[str, Any], context: RunContext
    ) -> Answer:
        """Call a node, which gets the models meanwhile; an interrupt of the run ends the call."""
        models = context.models
        assert isinstance(models, ModelAccess), "the head has the gateway"
        value = {**args, "run": run_to_json(context), "grace_s": models.grace_s}
        with self._models.granted(node.name, args["genid"], models):
            call = asyncio.ensure_future(
                node.peer.call(method, value, on_event=lambda said: _tell(context, said))
            )
            try:
                while not (await asyncio.wait({call}, timeout=_POLL_S))[0] and not node.job_ends:
                    context.containers.check_running()
                if node.job_ends:
                    raise NodeLostError(f"node {node.name} is being ended: {node.leaving}")
                return call.result()
            finally:
                call.cancel()


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
