"""One fresh container of a generation, with its private directories."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from hyperruntime.loop.run_files.layout import CONNECTIONS, generation_name
from hyperruntime.loop.run_files.record import FailureClass
from hyperruntime.loop.workbench.failures import GenerationFailedError, last_line
from hyperruntime.loop.workbench.open_containers import LoopContainer
from hyperruntime.reclaim.trees import reclaim_trees, remove_reclaimed
from hyperruntime.spec import ExecResult, Mount
from hyperruntime.storage.atomic import make_directory, make_private_directory

if TYPE_CHECKING:
    from hyperruntime.gateway import Access


import os

import attrs

from hyperruntime.domain import DomainBase
from hyperruntime.errors import PatchError
from hyperruntime.git.change_rules import FILE, PROGRAM
from hyperruntime.git.store import RepositoryStore
from hyperruntime.git.user_repository import ENV_FILE
from hyperruntime.git.worktree import WorkTree
from hyperruntime.loop.run_files.contract import CONTRACT_FILE, Contract
from hyperruntime.loop.run_files.layout import Layout
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.run_files.parent_rules import GenId
from hyperruntime.loop.workbench.events import Events
from hyperruntime.loop.workbench.model_access import Models
from hyperruntime.loop.workbench.open_containers import OpenContainers
from hyperruntime.spec import ContainerSpec
from hyperruntime.storage.atomic import json_line, write_file
from hyperruntime.storage.run_files import open_regular, open_to_append
from hyperruntime.units import MIB

KEPT_BYTES = 64 * 1024
_MOST_NOTED = 10_000
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
        self._noted = 0
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
            RunInterruptedError: the end of the run's job ended the command.
            HyperRuntimeError: the container cannot be started.
        """
        with self._starting:
            if self._container is None:
                self.start()
        assert self._container is not None
        self._until = time.monotonic() + timeout_s
        try:
            result = self._container.exec(
                args,
                workdir=self._workdir,
                env=self._env if self._access is None else {**self._env, **self._access.env},
                input=source,
                timeout_s=timeout_s,
                on_output=on_output,
                output_limit_bytes=KEPT_BYTES,
            )
            return self._context.containers.check_ended(result)
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
            if self._context.options.allow:
                container.on_connection(self._note_connection)
            if self._models:
                self._access = self._context.models.open(container, self._plan.genid, self._step)
        except BaseException:
            self._context.containers.close(container)
            raise
        return container

    def _note_connection(self, connection: object) -> None:
        """Append a line to the generation's file of connections, up to a limit; a full disk ends no
        connection.
        """
        self._noted += 1
        if self._noted > _MOST_NOTED:
            return
        path = self._context.layout.partial(self._plan.genid) / CONNECTIONS
        line = json_line({"step": self._step, **attrs.asdict(cast(Any, connection))})
        with suppress(OSError), open_to_append(path) as file:
            file.write(line)


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


_LABEL = "io.hyperruntime"


def protected_paths(domains: Sequence[DomainBase]) -> tuple[str, ...]:
    """Return the paths of an agent repository that no patch may change."""
    paths = (path for domain in domains for path in domain.protected_paths)
    return tuple(dict.fromkeys((CONTRACT_FILE, ENV_FILE, *paths)))


@attrs.frozen(kw_only=True)
class StepContext:
    """What the steps of all generations of a run may use.

    Attributes:
        options: options of the run, with seed and run id.
        layout: paths of the run.
        store: repository with all states.
        contract: contract of the agent.
        root: commit of the initial agent.
        first: commit of the first generation, the initial agent with the diffs of
            ``meta_patch_files``.
        domains: domains of the evaluation, in order.
        image: reference of the containers' image.
        containers: opens containers.
        events: receives events.
        models: access to models.
    """

    options: GenerateOptions
    layout: Layout
    store: RepositoryStore
    contract: Contract
    root: str
    first: str
    domains: tuple[DomainBase, ...]
    image: str
    containers: OpenContainers
    events: Events
    models: Models

    @property
    def baseline(self) -> frozenset[str]:
        """Parts of the run's baseline, the loop without one of its features; empty if the run has
        none.
        """
        return frozenset((self.options.run_baseline or "").split("+")) - {""}

    def open_container(
        self, genid: GenId, *mounts: Mount, isolated: bool = False, gpu: bool = True
    ) -> LoopContainer:
        """Start a container of a generation, with the run's image and limits.

        Args:
            genid: id of the generation.
            mounts: mounts of the container.
            isolated: whether the container gets no network.
            gpu: whether the container gets the run's GPUs if a domain needs one.

        Raises:
            RunInterruptedError: the run is being interrupted.
            HyperRuntimeError: the container cannot be started.
        """
        options = self.options
        needs_gpu = any(domain.needs_gpu for domain in self.domains)
        spec = ContainerSpec(
            image=self.image,
            mounts=mounts,
            workdir="/",
            network="none" if isolated else options.container_network,
            gpus=options.gpus if needs_gpu and gpu else None,
            limits=options.limits,
            limits_mode=options.limits_mode,
        )
        labels = {f"{_LABEL}.run": str(options.run_id), f"{_LABEL}.generation": str(genid)}
        return self.containers.open(spec, labels)


@attrs.frozen(kw_only=True)
class GenerationPlan:
    """The plan of one generation: its id, its parent and its start state.

    Attributes:
        genid: id of the generation.
        parent: id of its parent; None for the first generation, which is evaluated unchanged.
        commit: the state that it starts from.
        archived: number of archived generations when the parent was chosen.
        split: the only split to evaluate, in full; "": all splits, in stages.
    """

    genid: GenId
    parent: GenId | None
    commit: str
    archived: int = 0
    split: str = ""


PATCH_LIMIT = 64 * MIB
_MAX_FILES = 10_000
_MAX_FILE_BYTES = 16 * MIB
_MAX_BYTES = 128 * MIB


def copy_files(source: Path, target: Path, *, below: str = "", keep: bool = False) -> int:
    """Copy the regular files of a directory; return the number of copied files.

    If the directory cannot be read, for example because it has too many entries, copying stops
    without an error.

    Args:
        source: a directory that the agent could write to, but not replace.
        target: destination; made if there is a file to copy.
        below: copy only this directory below ``source``; it may be missing, or a link.
        keep: whether existing files in ``target`` are kept.

    Raises:
        StorageError: a file cannot be written.
    """
    prefix = os.fsencode(below) + b"/" if below else b""
    copied = 0
    left = _MAX_BYTES
    try:
        with WorkTree(source) as tree:
            for path, found in sorted(tree.found.items()):
                if not path.startswith(prefix) or found.mode not in (FILE, PROGRAM):
                    continue
                place = target / os.fsdecode(path.removeprefix(prefix))
                limit = min(_MAX_FILE_BYTES, left)
                if found.size > limit or copied >= _MAX_FILES or (keep and place.exists()):
                    continue
                try:
                    data = tree.read(path, limit)
                except OSError:
                    continue
                if len(data) <= limit:
                    write_file(place, data)
                    copied += 1
                left -= len(data)
    except PatchError:
        return copied
    return copied


def read_file(folder: Path, name: bytes, limit: int) -> bytes | None:
    """Return the content of a regular file in a directory, or None if it does not exist.

    Args:
        folder: the directory.
        name: name of the file, without a slash.
        limit: largest accepted size in bytes.

    Raises:
        PatchError: the file has more than ``limit`` bytes, is not a regular file, or cannot be
            read.
    """
    try:
        descriptor = open_regular(os.path.join(os.fsencode(folder), name))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PatchError(f"{os.fsdecode(name)} cannot be read: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise PatchError(f"{os.fsdecode(name)} has more than {limit} bytes")
    return data


def read_below(folder: Path, path: str, limit: int) -> bytes:
    """Return the content of a regular file below a directory that an agent could write to.

    Args:
        folder: the directory.
        path: path of the file, relative to ``folder``.
        limit: largest accepted size in bytes.

    Raises:
        PatchError: the file does not exist, has more than ``limit`` bytes, or cannot be read.
    """
    with WorkTree(folder) as tree:
        found = tree.found.get(os.fsencode(path))
        if found is None or found.mode not in (FILE, PROGRAM):
            raise PatchError(f"regular file {path} does not exist")
        try:
            data = tree.read(os.fsencode(path), limit)
        except OSError as error:
            raise PatchError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > limit:
        raise PatchError(f"{path} has more than {limit} bytes")
    return data
