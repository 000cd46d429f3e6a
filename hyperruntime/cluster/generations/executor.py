"""The head's side: an executor that gives generations to nodes."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Mapping
from concurrent.futures import Executor, Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.cluster.cluster import Cluster
from hyperruntime.cluster.config import ClusterConfig
from hyperruntime.cluster.generations.models import NodeModels
from hyperruntime.cluster.generations.shared_run import (
    remove_unfinished,
    run_to_json,
    take_from_node,
)
from hyperruntime.cluster.head import Node
from hyperruntime.cluster.job_directory import job_directory
from hyperruntime.cluster.node_workers import NodeWorkers
from hyperruntime.concurrency.bridge import Bridge, cancel_other_tasks
from hyperruntime.concurrency.closing import Closing
from hyperruntime.driver import EngineInfo
from hyperruntime.errors import ClusterError, EngineUnavailableError, NodeLostError, StorageError
from hyperruntime.git.change_rules import ChangeRules
from hyperruntime.host.owner import owned_directory
from hyperruntime.json_values import is_number
from hyperruntime.loop.generation.adapter import RunContext
from hyperruntime.loop.generation.parent_program import Said
from hyperruntime.loop.run.run import GenerationTask, QuestionTask
from hyperruntime.loop.run_files.layout import AGENT_OUTPUT, PATCH, Layout, generation_name
from hyperruntime.loop.run_files.record import GenerationRecord, record_from_json
from hyperruntime.loop.workbench.container import GenerationPlan
from hyperruntime.loop.workbench.events import StepEvent
from hyperruntime.loop.workbench.model_access import ModelAccess
from hyperruntime.loop.workbench.open_containers import LoopContainer, LoopImages, LoopRuntime
from hyperruntime.runs.retry import MOST_LOSSES, LostTooOftenError
from hyperruntime.spec import ContainerSpec
from hyperruntime.storage.atomic import make_directory, storage_errors
from hyperruntime.storage.run_files import read_run_file
from hyperruntime.units import one_line
from hyperruntime.wire.peer import Answer, checked

_POLL_S = 0.2  # between two looks at whether the run is interrupted
_NODES_FAULT = (ClusterError, EngineUnavailableError, StorageError)


class ClusterExecutor(Executor):
    """Runs tasks of :mod:`hyperruntime.loop.run.run` on nodes.

    A node makes at most its share of ``parallel`` generations at once; a task goes to the node with
    the least work.

    Attributes:
        capacity: upper bound on concurrent tasks.
    """

    def __init__(
        self, loop: Bridge, cluster: Cluster, models: NodeModels, parallel: int, most_nodes: int
    ) -> None:
        """Ask for no node yet.

        Args:
            loop: the event loop of the cluster.
            cluster: an open one.
            models: serves models to the nodes.
            parallel: tasks at once.
            most_nodes: nodes at once.
        """
        self.capacity = parallel
        self._loop = loop
        self._models = models
        self._workers = NodeWorkers(cluster, parallel, most_nodes)
        loop.run(self._watch(cluster))

    async def _watch(self, cluster: Cluster) -> None:
        cluster.on_node(lambda node: self._workers.add(node, self._workers.each))

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
                while (
                    not (await asyncio.wait({call}, timeout=_POLL_S))[0]
                    and node.job_ends_at is None
                ):
                    context.containers.check_running()
                if node.job_ends_at is not None:
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


class NoEngine:
    """The runtime of a head: it starts no container, and nodes have the images.

    Attributes:
        info: says that there is no engine.
    """

    info = EngineInfo(engine="none", version="", rootless=True)

    @property
    def images(self) -> LoopImages:
        """The images, which each node makes for itself."""
        return self

    def ensure(self, name: str) -> str:
        """Return the name."""
        return name

    def container(
        self, spec: ContainerSpec, *, labels: Mapping[str, str] | None = None
    ) -> LoopContainer:
        """Raise: the head of a cluster starts no container.

        Raises:
            EngineUnavailableError: always.
        """
        raise EngineUnavailableError(
            "none", "the head of a cluster starts no container", "run this on a node"
        )


class RunCluster(Closing):
    """The nodes that make the generations of a run, from ``with`` to :meth:`close`.

    Use it as ``start_run(cluster.runtime, attrs.evolve(plan, make_executor=cluster.executor))``.

    Attributes:
        runtime: for the head, which needs no engine.
    """

    def __init__(self, config: ClusterConfig, run_dir: Path) -> None:
        """Open the cluster, and ask for the first node.

        Args:
            config: which nodes.
            run_dir: the run directory, which need not exist; a directory beside it holds the files
                of jobs meanwhile.

        Raises:
            ClusterError: the head cannot listen, or Parsl is missing or does not start.
            StorageError: the directory cannot be made.
        """
        self.runtime: LoopRuntime = NoEngine()
        self._config = config
        self._stack = ExitStack()
        try:
            jobs = self._stack.enter_context(
                job_directory(run_dir.parent, f".{run_dir.name}.jobs-")
            )
            sockets = Path(self._stack.enter_context(owned_directory(short=True)))
            self._models = NodeModels(sockets)
            self._stack.callback(remove_unfinished, Layout(run_dir))
            self._loop = Bridge(
                "hyperruntime-cluster", lambda why: ClusterError(f"the cluster {why}")
            )
            self._stack.callback(self._loop.close)
            self._cluster = self._loop.run(self._open(jobs))
            self._stack.callback(lambda: self._loop.run(self._end()))
        except BaseException:
            self._stack.close()
            raise

    def executor(self, workers: int) -> Executor:
        """Return an executor for the nodes: each makes at most ``workers`` / ``max_nodes``
        generations, rounded up.
        """
        return ClusterExecutor(
            self._loop, self._cluster, self._models, workers, self._config.max_nodes
        )

    def close(self) -> None:
        """End the work of all nodes, cancel their jobs and remove the jobs' files; may be called
        again.
        """
        self._stack.close()

    async def _open(self, jobs: Path) -> Cluster:
        cluster = Cluster(self._config, jobs, self._models.handlers)
        await cluster.__aenter__()
        cluster.want(1)
        return cluster

    async def _end(self) -> None:
        await self._cluster.__aexit__(None, None, None)
        await cancel_other_tasks()
