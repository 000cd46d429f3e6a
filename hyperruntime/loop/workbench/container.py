"""One fresh container of a generation, with its private directories."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from hyperruntime.loop.run_files.layout import generation_name
from hyperruntime.loop.run_files.record import FailureClass
from hyperruntime.loop.workbench.context import GenerationPlan, StepContext
from hyperruntime.loop.workbench.failures import GenerationFailedError, last_line
from hyperruntime.loop.workbench.open_containers import LoopContainer
from hyperruntime.reclaim.trees import reclaim_trees, remove_reclaimed
from hyperruntime.spec import ExecResult, Mount
from hyperruntime.storage.atomic import make_directory, make_private_directory

if TYPE_CHECKING:
    from hyperruntime.gateway import Access

KEPT_BYTES = 64 * 1024
_RECLAIM_S = 10.0  # minimum, also after a command that used all its time


class AgentContainer:
    """A container and the two host directories that it may write to.

    Attributes:
        repo: host directory, mounted as the agent's repository; private to this generation.
        out: host directory, mounted as the directory for outputs.
        model: name of the model for the agent; None: the agent chooses.
    """

    def __init__(
        self,
        context: StepContext,
        plan: GenerationPlan,
        folder: Path,
        *mounts: Mount,
        out: str = "",
        workdir: str = "",
        env: Mapping[str, str] | None = None,
        models: bool = True,
    ) -> None:
        """Make the directories; the container starts later.

        Args:
            context: context of the run.
            plan: plan of the generation.
            folder: host directory for ``repo`` and ``out``; becomes accessible to this user only.
            mounts: further mounts.
            out: path of the outputs in the container; "": the path of the contract.
            workdir: working directory of commands; "": the repository.
            env: further environment variables of commands.
            models: whether commands may ask models, if the run has any.

        Raises:
            StorageError: the directories cannot be made.
        """
        make_private_directory(folder)
        self.repo = make_directory(folder / "repo")
        self.out = make_directory(folder / "out")
        self._until = 0.0
        self._context = context
        self._plan = plan
        self._mounts = mounts
        self._repo = context.contract.repo
        self._out = out or context.contract.out
        self._workdir = workdir or self._repo
        self._container: LoopContainer | None = None
        self._early: Future[LoopContainer] | None = None
        self._starting = threading.Lock()
        self._step = folder.name
        self._models = models
        self._access: Access | None = None
        self.model = context.options.model
        self._env = {
            "HYPERRUN_SEED": str(context.options.seed),
            "HYPERRUN_GENERATION": str(plan.genid),
            "PYTHONDONTWRITEBYTECODE": "1",
            **({} if self.model is None else {"HYPERRUN_MODEL": self.model}),
            **(env or {}),
        }

    def start_early(self) -> None:
        """Start the container in a background thread; :meth:`start` waits for it."""
        with_thread = ThreadPoolExecutor(1, thread_name_prefix="hyperruntime-start")
        self._early = with_thread.submit(self._open)
        with_thread.shutdown(wait=False)

    def start(self) -> None:
        """Start the container, or wait for the start that :meth:`start_early` began.

        Raises:
            RunInterruptedError: the run is being interrupted.
            HyperRuntimeError: the container cannot be started.
        """
        early, self._early = self._early, None
        self._container = early.result() if early is not None else self._open()

    def attempt(
        self,
        args: Sequence[str],
        *,
        timeout_s: float,
        on_output: Callable[[str, bytes], None],
        source: BinaryIO | None = None,
    ) -> ExecResult:
        """Run a command in the working directory and return how it ended, also if it failed.

        The container is started first if it is not running.

        Args:
            args: argv of the command.
            timeout_s: time limit of the command, in seconds.
            on_output: called with the stream's name and each piece of output; the result keeps 64
                KiB of each stream.
            source: standard input of the command; None: no input.

        Raises:
            BudgetExceededError: a budget refused a model request, even if the command succeeded.
            GatewayError: the upstream failed the last model request, even if the command succeeded.
            ContainerLostError: the container ended before the command did.
            HyperRuntimeError: the container cannot be started.
        """
        with self._starting:
            if self._container is None:
                self.start()
        assert self._container is not None
        self._until = time.monotonic() + timeout_s
        try:
            return self._container.exec(
                args,
                workdir=self._workdir,
                env=self._env if self._access is None else {**self._env, **self._access.env},
                input=source,
                timeout_s=timeout_s,
                on_output=on_output,
                output_limit_bytes=KEPT_BYTES,
            )
        finally:
            if self._access is not None:
                self._access.seat.check()

    def run(
        self,
        args: Sequence[str],
        name: str,
        timeout_s: float,
        write: Callable[[bytes], None],
        failure: FailureClass = "evaluation",
    ) -> ExecResult:
        """Run a command that must end with exit code 0, as :meth:`attempt` does.

        Args:
            args: argv of the command.
            name: name of the command in error messages.
            timeout_s: time limit of the command, in seconds.
            write: called with each piece of output.
            failure: class of the failure if the command fails within the time limit;
                ``does-not-load`` also after it.

        Raises:
            GenerationFailedError: the command failed, or the time limit passed.
        """
        result = self.attempt(args, timeout_s=timeout_s, on_output=lambda _, chunk: write(chunk))
        if result.timed_out:
            late: FailureClass = "does-not-load" if failure == "does-not-load" else "timeout"
            raise GenerationFailedError(late, f"{name} took more than {timeout_s:g} s")
        if result.exit_code != 0:
            why = last_line(result.stderr, "it wrote nothing on standard error")
            raise GenerationFailedError(
                failure, f"{name} ended with exit code {result.exit_code}: {why}"
            )
        return result

    def reclaim_files(self) -> None:
        """Make this user the owner of the files that the container wrote, and remove special bits.

        While the container exists, only ``out`` is processed; after :meth:`close`, also ``repo``.
        The time limit is the rest of the last command's time limit, but at least 10 s.

        Raises:
            GenerationFailedError: the time limit passed.
            ReclaimError: a file cannot be changed.
        """
        left_s = max(self._until - time.monotonic(), _RECLAIM_S)
        paths = (self.repo, self.out) if self._container is None else (self.out,)
        try:
            reclaim_trees(paths, self._context.containers.reclaim_args, left_s)
        except TimeoutError as error:
            detail = f"the files of the agent could not be reclaimed within {left_s:.0f} s: {error}"
            raise GenerationFailedError("timeout", detail) from error

    def close(self) -> None:
        """End all processes of the container and remove it; idempotent."""
        early, self._early = self._early, None
        if early is not None and early.exception() is None:
            self._container = early.result()
        if self._access is not None:
            self._access.close()
        if self._container is not None:
            self._context.containers.close(self._container)
            self._container = None

    def _open(self) -> LoopContainer:
        container = self._context.open_container(
            self._plan.genid,
            Mount(source=str(self.repo), target=self._repo, read_only=False),
            Mount(source=str(self.out), target=self._out, read_only=False),
            *self._mounts,
        )
        try:
            if self._models:
                self._access = self._context.models.open(container, self._plan.genid, self._step)
        except BaseException:
            self._context.containers.close(container)
            raise
        return container


def meta_agent_container(
    context: StepContext,
    plan: GenerationPlan,
    private: Path,
    *mounts: Mount,
    env: Mapping[str, str] | None = None,
) -> AgentContainer:
    """Return the meta agent's container, not started; it shows earlier generations.

    With the baseline ``no_archive`` it shows only the parent. With ``no_selfimprove`` the first
    generation's meta agent edits all generations, so its files are exported and mounted too.

    Args:
        context: context of the run.
        plan: plan of the generation.
        private: host directory for the files that the container uses.
        mounts: further mounts.
        env: further environment variables of commands.

    Raises:
        StorageError: a directory cannot be made.
        RepositoryError: the first generation's files cannot be exported.
    """
    contract = context.contract
    shown = ""
    workdir = ""
    if plan.parent is not None and "no_archive" in context.baseline:
        shown = f"/{generation_name(plan.parent)}"
    if plan.parent is not None and "no_selfimprove" in context.baseline:
        workdir = contract.frozen
        frozen = make_directory(private / "frozen")
        context.store.export(context.first, frozen)
        mounts = (Mount(source=str(frozen), target=workdir), *mounts)
    view = Mount(source=f"{context.layout.view}{shown}", target=f"{contract.evals}{shown}")
    return AgentContainer(context, plan, private / "agent", view, *mounts, workdir=workdir, env=env)


def discard(context: StepContext, folder: Path) -> None:
    """Remove a directory that containers wrote to; its files may have any owner."""
    remove_reclaimed(folder, context.containers.reclaim_args)
