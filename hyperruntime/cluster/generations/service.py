"""The node's side: make generations, and ask agents for parents, with the node's own runtime.

A generation is made in the node's scratch directory, with a repository there that reads the run's
states where they are. When it is complete, its files are moved into the run's ``work`` directory
under a name that the head chose for this attempt. The head takes them from there; nothing else of
the run directory is written.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from hyperruntime.cluster.generations.models import RelayedModels
from hyperruntime.cluster.generations.shared_run import (
    POLL_S,
    move_into_run,
    run_from_json,
    wait_for_state,
)
from hyperruntime.cluster.job_directory import SEEN_S
from hyperruntime.errors import ClusterError, HyperRuntimeError
from hyperruntime.git.store import RepositoryStore
from hyperruntime.host.process import wait_until
from hyperruntime.logs import get_logger
from hyperruntime.loop.generation.adapter import RunContext
from hyperruntime.loop.generation.parent_program import Question
from hyperruntime.loop.run.run import GenerationTask, QuestionTask
from hyperruntime.loop.run_files.layout import Layout
from hyperruntime.loop.run_files.record import record_to_json, structured
from hyperruntime.loop.workbench.container import GenerationPlan
from hyperruntime.loop.workbench.events import Events, StepEvent
from hyperruntime.loop.workbench.open_containers import LoopRuntime, OpenContainers
from hyperruntime.reclaim.trees import remove_reclaimed
from hyperruntime.storage.atomic import make_private_directory
from hyperruntime.wire.peer import Answer, Call, Handler

if TYPE_CHECKING:
    from hyperruntime.cluster.node_services import NodeContext

log = get_logger(__name__)

T = TypeVar("T")
_MOST_THREADS = 1024


@attrs.frozen(eq=False)
class _OpenRun:
    """A run as this node has it: its directory, a place to work, and the context of work without
    its ``layout``, ``containers``, ``events`` and ``models``.
    """

    root: Path
    place: Path
    context: partial[RunContext]


class GenerationService:
    """Serves ``generation`` and ``question``."""

    def __init__(self, context: NodeContext) -> None:
        """Make nothing yet; must be called on an event loop."""
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(
            _MOST_THREADS, thread_name_prefix="hyperruntime-generation"
        )
        self._working: set[OpenContainers] = set()
        self._runs: dict[str, _OpenRun] = {}
        self._opening = threading.Lock()
        self._numbers = itertools.count(1)

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """Methods that the head may call, by name."""
        return {"generation": self._generation, "question": self._question}

    async def close(self) -> None:
        """End all containers of generations and wait for their threads."""
        for containers in tuple(self._working):
            containers.stop()
            await asyncio.to_thread(containers.close_all)
        await asyncio.to_thread(self._threads.shutdown, wait=True, cancel_futures=True)

    async def _generation(self, call: Call) -> Answer:
        plan = _structured(GenerationPlan, call.args.get("plan"))
        result = str(call.args["result"])

        def make(context: RunContext) -> Any:  # noqa: ANN401 - JSON
            wait_for_state(context, plan, shown=int(call.args["shown"]))
            record = GenerationTask(context=context, plan=plan, first=int(call.args["first"]))()
            return {
                "record": record_to_json(record),
                "tree": move_into_run(context.layout, plan.genid, result),
            }

        return Answer(await self._work(call, make))

    async def _question(self, call: Call) -> Answer:
        question = _structured(Question, call.args.get("question"))

        def ask(context: RunContext) -> Any:  # noqa: ANN401 - JSON
            wait_for_state(
                context, GenerationPlan(genid=question.number, parent=None, commit=question.commit)
            )
            return attrs.asdict(QuestionTask(context=context, question=question)())

        return Answer(await self._work(call, ask))

    async def _work(self, call: Call, work: Callable[[RunContext], T]) -> T:
        """Do blocking work in a thread; a cancellation ends its containers and waits for it."""
        runtime = await self._context.runtime()
        assert self._context.head is not None, "the node server runs"
        models = RelayedModels(self._context.head, call.args.get("genid"), call.args.get("grace_s"))
        containers = OpenContainers(runtime)
        events = Events(self._teller(call))
        self._working.add(containers)

        def here() -> T:
            run = self._run(call.args["run"], runtime)
            folder = make_private_directory(run.place / f"work-{next(self._numbers)}")
            try:
                layout = Layout(run.root, folder)
                return work(
                    run.context(layout=layout, containers=containers, events=events, models=models)
                )
            finally:
                remove_reclaimed(folder, containers.reclaim_args)

        done = self._loop.run_in_executor(self._threads, here)
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            containers.stop()
            await asyncio.to_thread(containers.close_all)
            with suppress(Exception):
                await done
            raise
        finally:
            self._working.discard(containers)

    def _teller(self, call: Call) -> Callable[[StepEvent], None]:
        def tell(event: StepEvent) -> None:
            async def emit() -> None:
                await call.emit(Answer(attrs.asdict(event)))

            with suppress(HyperRuntimeError):  # the head is gone, and this generation with it
                asyncio.run_coroutine_threadsafe(emit(), self._loop).result()

        return tell

    def _run(self, value: Any, runtime: LoopRuntime) -> _OpenRun:  # noqa: ANN401 - JSON
        """Return a run that the head sent; the first call makes its place on this node, and its
        image if needed.
        """
        with self._opening:
            key = repr(value)
            if key not in self._runs:
                place = make_private_directory(
                    self._context.scratch() / f"run-{next(self._numbers)}"
                )
                root = Path(value["run_dir"])
                context = partial(
                    run_from_json(value),
                    store=_open_store(root, value["root"], place / "repository.git"),
                    image=runtime.images.ensure(value["image"]),
                )
                self._runs[key] = _OpenRun(root, place, context)
            return self._runs[key]


def _open_store(run_dir: Path, initial: str, path: Path) -> RepositoryStore:
    """Return a repository that has the states of a run and keeps new ones for itself."""
    objects = Layout(run_dir).repository / "objects"
    if not wait_until(objects.is_dir, SEEN_S, POLL_S):
        raise ClusterError(
            f"the run directory {str(run_dir)!r} is not seen on this node; put runs "
            "where all nodes see them, with --output-dir-parent"
        )
    store = RepositoryStore(path)
    store.make(initial)
    store.borrow(objects)
    return store


def _structured(kind: type[T], value: object) -> T:
    try:
        return structured(kind, value if isinstance(value, dict) else {})
    except ValueError as error:
        raise HyperRuntimeError(f"the head sent an invalid {kind.__name__}: {error}") from error
