"""The user's container: exec, copy in, copy out, and an end that leaves nothing. Generic over engines."""

from __future__ import annotations

import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import BinaryIO

import attrs

from hyperruntime.concurrency.cancellation import run_cancellable
from hyperruntime.driver import Driver, Launch, LiveContainer
from hyperruntime.errors import HyperRuntimeError
from hyperruntime.exec.exchange_dir import EXCHANGE_TARGET, make_exchange
from hyperruntime.exec.exec_script import export_script, make_request, shell_keeps
from hyperruntime.exec.execution import Execution
from hyperruntime.exec.options import ExecOptions, OutputCallback
from hyperruntime.exec.persistent.script import check_names
from hyperruntime.exec.persistent.shell import Shell, ShellStart
from hyperruntime.exec.user_sessions import SessionContext, UserSessions
from hyperruntime.gpu.grant import GpuGrant
from hyperruntime.host.owner import Owner
from hyperruntime.host.watchdog import Watch, split_limits, unwatch, watch_container
from hyperruntime.logs import get_logger
from hyperruntime.run_as import RunAs
from hyperruntime.spec import DEFAULT_OUTPUT_LIMIT_BYTES, ContainerSpec, ExecResult, Mount
from hyperruntime.transfer import copy as transfer
from hyperruntime.transfer.extract import ExtractLimits, ExtractReport

log = get_logger(__name__)

_CLOSE_TIMEOUT_S = 3.0
_LOST_TIMEOUT_S = 0.3


class Container:
    """A running container; made by :meth:`Runtime.container`, used as a context manager.

    Safe to use from many threads at once.

    Attributes:
        spec: what it was made from.
        name: unique on this machine.
    """

    def __init__(self, driver: Driver, owner: Owner, spec: ContainerSpec, labels: Mapping[str, str]) -> None:
        """Start it and wait until it can run commands.

        Raises:
            HyperRuntimeError: it cannot be started; which error says why.
        """
        self.spec = spec
        self.name = f"hyperruntime-{uuid.uuid4().hex[:12]}"
        self._pid = os.getpid()
        self._undertaker: threading.Thread | None = None
        self._watch: Watch | None = None
        self._shells: set[Shell] = set()
        self._gpus = GpuGrant(spec.gpus)
        self._dir = os.path.join(owner.private_dir, self.name)
        self._late_env = {name: value for name, value in spec.env.items() if not shell_keeps(name)}
        early_env = {name: value for name, value in spec.env.items() if shell_keeps(name)}
        self._exchange = make_exchange(self._dir, export_script(early_env))
        self._sessions = UserSessions(
            SessionContext(name=self.name, engine=driver.name, user=spec.user, exchange=self._exchange, bury=self._bury)
        )
        started = time.monotonic()
        try:
            limits, watched = split_limits(spec, driver.probe())
            launch = Launch(
                spec=attrs.evolve(spec, env=early_env, gpus=self._gpus.take(), limits=limits),
                name=self.name,
                labels={**spec.labels, **labels, **owner.identity.to_labels()},
                exchange=self.exchange,
                private_dir=self._dir,
            )
            self._live: LiveContainer = driver.launch(launch)
            self._sessions.begin(self._live)
            self._live.observe()
            self._watch = self._sessions.watch = watch_container(watched, launch, driver.name, self._live)
            self._gpus.check(self.exec)
        except BaseException:
            self.close()
            raise
        log.debug("container started", driver=driver.name, name=self.name, duration_s=time.monotonic() - started)

    @property
    def exchange(self) -> Mount:
        """The private directory that it has read-only: what is made there on the host is inside at once."""
        return Mount(source=self._exchange, target=EXCHANGE_TARGET)

    @property
    def is_alive(self) -> bool:
        """Whether it can run commands, as far as is known; known at once when it ends, and free to ask."""
        return self._sessions.is_alive

    @property
    def watchdog_verdict(self) -> str:
        """Why this library's watchdog has ended it, as a part of a sentence, or ""; known at once, and free to ask."""
        return self._watch.verdict if self._watch is not None else ""

    def responds(self, timeout_s: float | None = None) -> bool:
        """Tell whether it answers, after at most ``timeout_s`` or the patience that a lost exec has; nothing is run.

        Raises:
            ContainerStateError: it is another process's.
        """
        return self._sessions.responds(timeout_s)

    def on_end(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Let ``listener`` be called once when the container has ended, by whatever; return what takes that back.

        It is called at once where that has happened already, else by a thread of this library, and must not block.
        """
        return self._sessions.bell.listen(listener)

    async def ended(self) -> None:
        """Wait until the container has ended, by whatever."""
        await self._sessions.bell.heard()

    def exec(
        self,
        args: Sequence[str | bytes],
        *,
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        workdir: str | None = None,
        user: str | RunAs | None = None,
        input: bytes | BinaryIO | None = None,  # noqa: A002 - subprocess's own word
        on_output: OutputCallback | None = None,
        output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES,
        group: str | None = None,
    ) -> ExecResult:
        """Run a command to its end and return how it ended; a non-zero code is a result.

        It ends when the command itself does: what its background processes write later is dropped, and they
        live on.

        Args:
            args: argv, never a shell string.
            timeout_s: after this many seconds everything the command started is ended, whatever it did to hide.
            env: for this command, on top of the spec's.
            workdir: absolute; default is the spec's.
            user: ``name`` or ``uid``, with an optional ``:group``; default is the spec's. The first exec as another
                user costs one exec of the engine; as a :class:`~hyperruntime.run_as.RunAs` it costs a fork.
            input: bytes, or a binary file that is read as the command takes it; None is an empty input.
            on_output: called as ``on_output("stdout" | "stderr", chunk)`` while it runs, in this thread.
            output_limit_bytes: of each stream; past it head and tail are kept.
            group: a name; what all execs of a group have started is ended by :meth:`end_group`.

        Returns:
            The result; 127 for a missing program, 126 for one that cannot be executed, 128+n for a death by
            signal.

        Raises:
            ContainerLostError: the container ended or stopped answering; holds a post-mortem.
            WorkdirNotFoundError: the working directory does not exist.
            ExecStartError: no process could be made for it.
            SpecError: an argument is malformed.
            UnsupportedOptionError: ``user`` is a RunAs, and the engine has no other users or the container's is not
                root.
        """
        options = ExecOptions.checked(timeout_s, input, on_output, output_limit_bytes, user, group)
        return self._run(args, env, workdir, options)

    async def aexec(
        self,
        args: Sequence[str | bytes],
        *,
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        workdir: str | None = None,
        user: str | RunAs | None = None,
        input: bytes | BinaryIO | None = None,  # noqa: A002 - as in exec
        on_output: OutputCallback | None = None,
        output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES,
        group: str | None = None,
    ) -> ExecResult:
        """Do what :meth:`exec` does without blocking the event loop; cancelling ends what the command started.

        At most 1024 run at once in one process; more wait their turn. ``on_output`` is called in another thread.
        """
        options = ExecOptions.checked(timeout_s, input, on_output, output_limit_bytes, user, group)
        return await run_cancellable(
            lambda cancel_fd: self._run(args, env, workdir, attrs.evolve(options, cancel_fd=cancel_fd)),
        )

    def shell(
        self,
        *,
        user: str | RunAs | None = None,
        env: Mapping[str, str] | None = None,
        workdir: str | None = None,
        group: str | None = None,
    ) -> Shell:
        """Return a bash that lasts: directory, variables, functions and jobs stay from one text to the next.

        Nothing is started before its first text. It ends with :meth:`Shell.close`, or with the container.

        Args:
            user: as of :meth:`exec`.
            env: its variables, on top of the spec's.
            workdir: where it starts; default is the spec's.
            group: as of :meth:`exec`.

        Raises:
            SpecError: an argument is malformed.
        """
        checked = make_request(["bash"], env=env, workdir=workdir)
        check_names(checked.env)
        start = ShellStart(
            user=user, env={**self._late_env, **self._live.exec_env, **checked.env}, workdir=workdir, group=group
        )
        shell = Shell(self._sessions, start, self._shells.discard)
        self._shells.add(shell)
        return shell

    def end_user(self, user: RunAs) -> bool:
        """Kill every process of a user's uid, whatever it did to hide, and forget its lanes; tell whether none is left.

        Takes a few milliseconds; a fork loop is stopped with everything else in the container for a moment.
        """
        return self._sessions.end_user(user)

    def end_group(self, group: str) -> bool:
        """Kill what the commands of a group have started and what of it still lives; tell whether none is left.

        Also what they left in the background. A command of the group that runs ends by SIGKILL: exit code 137.
        """
        return self._sessions.end_group(group)

    def put(
        self,
        source: str | os.PathLike[str],
        target: str,
        *,
        timeout_s: float | None = transfer.DEFAULT_TIMEOUT_S,
        user: str | RunAs | None = None,
        group: str | None = None,
    ) -> None:
        """Copy a file, link or directory of the host to exactly the path ``target`` inside.

        Missing parents are made. Links stay links; modes and times are kept, owners are not. Needs ``tar`` and
        ``mkdir`` in the image. Where it has ``mv`` and ``rm`` too, nothing appears at ``target`` before all of it has
        arrived; an existing directory is merged into while it arrives.

        Args:
            source: on the host.
            target: absolute.
            timeout_s: seconds after which the copy is given up and its ``tar`` ended; None is never.
            user: as of :meth:`exec`; what is made is this user's.
            group: as of :meth:`exec`.

        Raises:
            TransferError: the source does not exist, or the container refused it (read-only, no space).
            TransferTimeoutError: it took too long.
        """
        transfer.put(self._copy, source, target, transfer.copy_options(timeout_s, user, group))

    async def aput(
        self,
        source: str | os.PathLike[str],
        target: str,
        *,
        timeout_s: float | None = transfer.DEFAULT_TIMEOUT_S,
        user: str | RunAs | None = None,
        group: str | None = None,
    ) -> None:
        """Do what :meth:`put` does without blocking the event loop; cancelling ends it as its deadline does."""
        options = transfer.copy_options(timeout_s, user, group)
        await run_cancellable(
            lambda cancel_fd: transfer.put(self._copy, source, target, attrs.evolve(options, cancel_fd=cancel_fd))
        )

    def get(
        self,
        source: str,
        target: str | os.PathLike[str],
        *,
        limits: ExtractLimits | None = None,
        timeout_s: float | None = transfer.DEFAULT_TIMEOUT_S,
        user: str | RunAs | None = None,
        group: str | None = None,
    ) -> ExtractReport:
        """Copy a path inside to exactly the path ``target`` of the host; the container is not trusted.

        What could write or point outside ``target`` (absolute names, ``..``, links that leave the tree,
        devices, FIFOs) is not written, and named in the report. Nothing appears at ``target`` before all of
        it has arrived and the container's ``tar`` has ended; an existing directory is merged into.

        Args:
            source: absolute.
            target: on the host; its parent directory must exist.
            limits: what may come at most; None is 8 GiB and 200,000 files, directories and links.
            timeout_s: seconds after which the copy is given up and its ``tar`` ended; None is never. What has arrived
                by then is removed, and what has arrived whole is put in place, before this returns.
            user: as of :meth:`exec`.
            group: as of :meth:`exec`.

        Raises:
            TransferError: the source does not exist, the archive is torn, or the host cannot write it.
            TransferTimeoutError: it took too long.
            UnsafeArchiveError: it is larger than the limits.
        """
        return transfer.get(self._copy, source, target, transfer.copy_options(timeout_s, user, group), limits)

    async def aget(
        self,
        source: str,
        target: str | os.PathLike[str],
        *,
        limits: ExtractLimits | None = None,
        timeout_s: float | None = transfer.DEFAULT_TIMEOUT_S,
        user: str | RunAs | None = None,
        group: str | None = None,
    ) -> ExtractReport:
        """Do what :meth:`get` does without blocking the event loop; cancelling ends it as its deadline does."""
        options = transfer.copy_options(timeout_s, user, group)
        return await run_cancellable(
            lambda cancel_fd: transfer.get(
                self._copy, source, target, attrs.evolve(options, cancel_fd=cancel_fd), limits
            )
        )

    def close(self) -> None:
        """End everything in it and remove it; may be called again. A forked child, whose it is not, ends nothing."""
        if os.getpid() != self._pid:
            return
        self._close(_CLOSE_TIMEOUT_S)
        if self._undertaker is not None:
            self._undertaker.join()

    def _close(self, timeout_s: float) -> None:
        if self._sessions.close():
            return
        try:
            if live := getattr(self, "_live", None):
                self._sessions.end(live, timeout_s)
        finally:
            for shell in tuple(self._shells):
                shell.abandon()
            unwatch(self._watch)
            self._gpus.release()
            shutil.rmtree(self._dir, ignore_errors=True)

    def _bury(self) -> None:
        self._undertaker = threading.Thread(target=self._close_lost)
        self._undertaker.start()

    def _close_lost(self) -> None:
        try:
            self._close(_LOST_TIMEOUT_S)
        except HyperRuntimeError as error:
            # That it is lost was told; the owner's guard, or `prune`, removes what is left.
            log.warning("container not removed", name=self.name, error=str(error))

    def __enter__(self) -> Container:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it, whatever happened."""
        self.close()

    def _run(
        self,
        args: Sequence[str | bytes],
        env: Mapping[str, str] | None,
        workdir: str | None,
        options: ExecOptions,
    ) -> ExecResult:
        extra = {**self._late_env, **self._live.exec_env, **(env or {})}
        request = make_request(args, env=extra, workdir=workdir, has_input=options.source is not None)
        return self._sessions.run(Execution(self._sessions.find(options.user), request, options))

    def _copy(self, args: Sequence[str], options: ExecOptions) -> ExecResult:
        return self._run(args, None, "/", options)
