"""The user's container, for every engine: exec, shells, copies in and out, and complete removal."""

from __future__ import annotations

import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import TypeVar, Unpack

import attrs

from hyperruntime.concurrency.blocking import EXECS, blocking, run_cancellable
from hyperruntime.concurrency.closing import AsyncClosing
from hyperruntime.concurrency.end_event import EndEvent
from hyperruntime.concurrency.parallel_map import parallel_map
from hyperruntime.driver import Driver, Launch, LiveContainer
from hyperruntime.egress.container_egress import ContainerEgress, EgressWay
from hyperruntime.exec.exchange import EXCHANGE_TARGET, Exchanges
from hyperruntime.exec.exec_script import export_script, make_request, shell_keeps
from hyperruntime.exec.execution import Execution
from hyperruntime.exec.git_owners import GitOwners
from hyperruntime.exec.group_methods import ContainerGroups
from hyperruntime.exec.options import ExecKeywords, ExecOptions, ShellKeywords, TerminalKeywords
from hyperruntime.exec.persistent.shell import Shell
from hyperruntime.exec.spawn.process import ContainerCommand, Process, ProcessExecution
from hyperruntime.exec.spawn.terminal import (
    DEFAULT_TERM,
    Terminal,
    start_terminal,
    terminal_options,
)
from hyperruntime.exec.user_sessions import UserSessions
from hyperruntime.gpu.grant import GpuGrant
from hyperruntime.host.engine_limits import limit_s
from hyperruntime.host.owner import Owner
from hyperruntime.host.watchdog import split_limits, unwatch, watch_container
from hyperruntime.layers.snapshots.container_snapshots import ContainerSnapshots
from hyperruntime.layers.snapshots.snapshot import Snapshot
from hyperruntime.logs import get_logger
from hyperruntime.network.egress import Egress
from hyperruntime.ports.forward import ContainerPorts, Forwards
from hyperruntime.sandbox import BlockingSandbox
from hyperruntime.spec import ContainerSpec, ExecResult, Mount
from hyperruntime.transfer.copy_methods import ContainerCopies
from hyperruntime.transfer.file_methods import ContainerFiles

log = get_logger(__name__)

E = TypeVar("E", bound=Execution)

_LOST_TIMEOUT_S = 0.3
_ENDED_AT_ONCE = 8


@attrs.frozen
class Group:
    """What the containers of services and their main one have in common.

    Attributes:
        hosts: the mount of their ``/etc/hosts``.
        joins: the main one, whose network it has; None for the main one itself.
    """

    hosts: Mount
    joins: LiveContainer | None = None


class Container(
    ContainerCopies,
    ContainerEgress,
    ContainerFiles,
    ContainerGroups,
    ContainerPorts,
    ContainerSnapshots,
    AsyncClosing,
    BlockingSandbox,
):
    """A running container; made by :meth:`Runtime.container`, used as a context manager.

    Safe to use from many threads at once.

    Attributes:
        spec: the spec from which it was made.
        name: its name, unique on this machine.
        closed: set when it was closed and removed.
        services: the containers of its services, by name.

    Example:
        >>> with runtime.container(spec) as container:
        ...     container.exec(["printf", "hello"]).stdout
        b'hello'
    """

    def __init__(
        self,
        driver: Driver,
        owner: Owner,
        exchanges: Exchanges,
        spec: ContainerSpec,
        labels: Mapping[str, str],
        base: Snapshot | None = None,
        start: Callable[..., Container] | None = None,
        group: Group | None = None,
    ) -> None:
        """Start the container and wait until it can run commands.

        Args:
            driver: the engine's adapter.
            owner: this process as owner.
            exchanges: makes its exchange directory.
            spec: the container to start.
            labels: labels in addition to the spec's.
            base: the snapshot whose files it gets; None means those of the image.
            start: starts other containers, for :meth:`fork`.
            group: what it has in common with others; None means nothing.

        Raises:
            HyperRuntimeError: it cannot be started; the subclass gives the reason.
        """
        self.spec = spec
        self.closed = EndEvent()
        self.services: Mapping[str, Container] = {}
        self.name = f"hyperruntime-{uuid.uuid4().hex[:12]}"
        self._pid = os.getpid()
        self._removal: threading.Thread | None = None
        self._endings: list[threading.Thread] = []  # of what ran before a restart
        self._shells: set[Shell] = set()
        self._forwards = Forwards(driver.name, self._copy)
        self._gpus = GpuGrant(spec.gpus)
        self._repositories = GitOwners(spec, () if base is None else base.repositories)
        self._late_env = {name: value for name, value in spec.env.items() if not shell_keeps(name)}
        self._early_env = {name: value for name, value in spec.env.items() if shell_keeps(name)}
        self._dir, self._exchange = exchanges.make(self.name, export_script(self._early_env))
        self._way_out = EgressWay(
            spec, self.name, driver.name, self._copy, self.end_group, self.exchange
        )
        self._driver = driver
        self._labels = {**spec.labels, **labels, **owner.identity.to_labels()}
        self._start_another = start
        self._group = group
        self._starts = count(1)
        self._changing = threading.Lock()
        self._new_sessions = partial(
            UserSessions,
            name=self.name,
            engine=driver.name,
            user=spec.user,
            exchange=self._exchange,
            removals=owner.removals,
            remove=lambda lost: self._remove_async(partial(self._close, lost=lost)),
            ended=EndEvent(),
            exchanges=exchanges,
        )
        self._sessions = self._new_sessions()
        self._same = (base, self._sessions.latest)
        started = time.monotonic()
        try:
            self._start(self._sessions, () if base is None else base.layers, wait=True)
            self._gpus.check(self.exec)
            if isinstance(spec.network, Egress):
                self.egress = spec.network
        except BaseException:
            self.close()
            raise
        log.debug(
            "container started",
            driver=driver.name,
            name=self.name,
            duration_s=time.monotonic() - started,
        )

    def __repr__(self) -> str:
        """Return the engine, the name, the image and the state."""
        state = self._sessions.state
        return (
            f"<Container {self.name} on {self._sessions.engine}, image {self.spec.image!r}: "
            f"{state}>"
        )

    @property
    def exchange(self) -> Mount:
        """The exchange directory, mounted read-only: files made there on the host are visible
        inside at once.
        """
        return Mount(source=self._exchange, target=EXCHANGE_TARGET)

    @property
    def live(self) -> LiveContainer:
        """The running container, as its driver knows it."""
        return self._live

    @property
    def is_alive(self) -> bool:
        """Whether it can run commands, as far as is known; updated when it ends. Reading it makes
        no call.
        """
        return self._sessions.is_alive

    @property
    def watchdog_verdict(self) -> str:
        """Why this library's watchdog ended it, as part of a sentence, or "". Reading it makes no
        call.
        """
        watch = self._sessions.watch
        return watch.verdict if watch is not None else ""

    def responds(self, timeout_s: float | None = None) -> bool:
        """Return whether its supervisor answers, after at most ``timeout_s``; runs no command.

        Args:
            timeout_s: seconds to wait; None means the time after which a silent container counts as
                lost.

        Raises:
            ContainerStateError: it belongs to another process.
        """
        return self._sessions.responds(timeout_s)

    async def aresponds(self, timeout_s: float | None = None) -> bool:
        """Do what :meth:`responds` does without blocking the event loop."""
        return await blocking(EXECS, partial(self.responds, timeout_s))

    def on_end(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call ``listener`` once when the container ends, for any reason; return an unsubscribe
        function.

        If it has ended already, ``listener`` is called at once, else in a thread of this library;
        it must not block.
        """
        return self._sessions.ended.listen(listener)

    async def ended(self) -> None:
        """Wait until the container has ended, for any reason."""
        await self._sessions.ended.wait()

    def exec(self, args: Sequence[str | bytes], **options: Unpack[ExecKeywords]) -> ExecResult:
        """Run a command and return its result; a non-zero exit code is a result, not an error.

        It returns when the command itself ends. Background processes keep running; their later
        output is dropped.

        Args:
            args: argv, never a shell string.
            timeout_s: seconds after which all processes of the command, even hidden ones, are
                killed; None means never.
            env: variables for this command, in addition to the spec's.
            workdir: absolute path; None means the spec's.
            user: ``name`` or ``uid``, with an optional ``:group``; None means the spec's. On Podman
                and Docker, the first exec as another name needs one of the engine; the first as a
                :class:`~hyperruntime.run_as.RunAs`, and on other engines, needs a fork.
            input: bytes, or a binary file that is read as fast as the command reads; None means an
                empty input.
            on_output: called in this thread as ``on_output("stdout" | "stderr", chunk)`` while it
                runs.
            output_limit_bytes: limit for each stream; of longer output the head and the tail are
                kept.
            group: name of a group of execs, for :meth:`end_group` and :meth:`signal_group`.
            merge_output: whether standard error goes to standard output, in order, as ``2>&1``
                does.

        Returns:
            The result. Exit code 128+n: killed by signal n; 126 or 127 with ``not_executed``: no
            program ran.

        Raises:
            ContainerLostError: the container ended or stopped answering; holds a post-mortem.
            ContainerStateError: the container was closed, or belongs to another process.
            ExecLostError: the shell of ``user`` ended while the command ran; the result is unknown.
            ExecStartError: no process could be started for it.
            WorkdirNotFoundError: ``workdir`` does not exist.
            UserNotFoundError: ``user`` does not exist in the container.
            SpecError: an argument is malformed.
            UnsupportedOptionError: the engine or the container cannot run commands as ``user``.
        """
        return self._run(args, ExecOptions(**options).checked())

    async def aexec(
        self,
        args: Sequence[str | bytes],
        **options: Unpack[ExecKeywords],
    ) -> ExecResult:
        """Do what :meth:`exec` does without blocking the event loop; cancelling kills all processes
        of the command.

        At most 1024 run at once in one process; others wait. ``on_output`` is called in another
        thread.
        """
        ExecOptions(**options).checked()
        return await run_cancellable(
            lambda cancel_fd: self._run(args, ExecOptions(**options, cancel_fd=cancel_fd))
        )

    def spawn(self, args: Sequence[str | bytes], **options: Unpack[ExecKeywords]) -> Process:
        """Start a command in the background of the caller; return it when its process exists.

        It ends with :meth:`Process.close`, or with the container. Arguments and errors are those of
        :meth:`exec`, except:

        Args:
            args: argv, never a shell string.
            input: None means that its standard input stays open for :meth:`Process.write`.
            on_output: called in a thread of the process.
        """

        def prepare(final: ExecOptions) -> ContainerCommand:
            sessions = self._sessions
            return ContainerCommand(
                sessions, self._prepare(sessions, ProcessExecution, args, final)
            )

        return Process(ExecOptions(**options).checked(), prepare)

    async def aspawn(self, args: Sequence[str | bytes], **options: Unpack[ExecKeywords]) -> Process:
        """Do what :meth:`spawn` does without blocking the event loop; cancelling kills the
        command.
        """
        return await blocking(EXECS, lambda: self.spawn(args, **options), undo=Process.close)

    def terminal(
        self,
        args: Sequence[str | bytes],
        **options: Unpack[TerminalKeywords],
    ) -> Terminal:
        """Start a command on a terminal of its own in the container, such as an interactive shell.

        The image needs ``setsid`` (util-linux or busybox). The command ends with
        :meth:`Terminal.close`, or with the container. Further errors are those of :meth:`exec`.

        Args:
            args: argv, never a shell string.
            rows: number of lines, 24 by default.
            cols: number of columns, 80 by default.
            env: variables, in addition to the spec's; ``TERM`` is ``xterm-256color`` unless one of
                them sets it.
            workdir: absolute path; None means the spec's.
            user: as for :meth:`exec`.
            group: as for :meth:`exec`.
            timeout_s: as for :meth:`exec`.

        Raises:
            SpecError: ``rows`` or ``cols`` is not a number from 1 to 65535.
            UnsupportedOptionError: the container has no terminals, or this user may not open them.
        """
        env = {"TERM": self.spec.env.get("TERM", DEFAULT_TERM), **(options.get("env") or {})}
        options["env"] = env
        make_request(args, env=env)
        # the shell that enters it drops variables with odd names, so env(1) sets them behind it
        own = {**self._late_env, **env}
        odd = [f"{name}={value}" for name, value in own.items() if not shell_keeps(name)]
        command = ["env", *odd, *args] if odd else args
        size, checked = terminal_options(**options)
        sessions = self._sessions
        prepare = partial(self._prepare, sessions, ProcessExecution)
        return start_terminal(sessions, prepare, command, checked, size)

    async def aterminal(
        self,
        args: Sequence[str | bytes],
        **options: Unpack[TerminalKeywords],
    ) -> Terminal:
        """Do what :meth:`terminal` does without blocking the event loop; cancelling kills the
        command.
        """
        return await blocking(EXECS, lambda: self.terminal(args, **options), undo=Terminal.close)

    def shell(self, **options: Unpack[ShellKeywords]) -> Shell:
        """Return a persistent bash: directory, variables, functions and jobs stay from one text to
        the next.

        It starts with its first text. It ends with :meth:`Shell.close`, or with the container.

        Args:
            user: as for :meth:`exec`.
            env: variables, in addition to the spec's.
            workdir: working directory at the start; None means the spec's.
            group: as for :meth:`exec`.

        Raises:
            SpecError: an argument is malformed.
        """
        start = ExecOptions.of_shell(**options)
        checked = make_request(["bash"], env=start.env, workdir=start.workdir)
        start = attrs.evolve(start, env=self._env(checked.env))
        shell = Shell(self._sessions, start, self._shells.discard)
        self._shells.add(shell)
        return shell

    def close(self) -> None:
        """Kill all its processes and remove it; may be called again. Does nothing in a forked
        child.

        An engine that does not remove it in time raises nothing: the removal goes on in the
        background, until :meth:`Runtime.close`. That method closes all containers of a runtime,
        many at once.
        """
        if os.getpid() != self._pid:
            return
        self._close(limit_s(self._sessions.engine, "end"))
        if self._removal is not None:
            self._removal.join()

    def _start(self, sessions: UserSessions, layers: tuple[str, ...], *, wait: bool) -> None:
        """Start the container and its main session, and watch the limits that the engine does not
        enforce.

        Args:
            sessions: its new sessions.
            layers: what lies over the files of its image.
            wait: whether to wait for the answer of the main session.
        """
        driver = self._driver
        info = driver.probe()
        limits, watched = split_limits(self.spec, info)
        number = next(self._starts)
        launch = Launch(
            spec=attrs.evolve(
                self.spec,
                env=self._early_env,
                gpus=self._gpus.take(),
                limits=limits,
                network=self.spec.engine_network,
                mounts=(*self.spec.mounts, *(() if self._group is None else (self._group.hosts,))),
            ),
            name=self.name if number == 1 else f"{self.name}-{number}",
            labels=self._labels,
            exchange=self.exchange,
            private_dir=self._dir,
            layers=layers,
            joins=None if self._group is None else self._group.joins,
        )
        self._live = live = driver.launch(launch)
        sessions.begin(live, info, wait=wait)
        live.observe()
        remove = partial(sessions.remove_now, live)
        sessions.watch = watch_container(watched, launch, driver.name, live, remove)

    @property
    def _processes(self) -> UserSessions:
        return self._sessions

    @property
    def _put_repositories(self) -> tuple[str, ...]:
        return self._repositories.paths

    def _hand_on(self, child: Container) -> None:
        if child.egress != self.egress:
            child.egress = self.egress

    def _end_own(self) -> None:
        self._way_out.pause()

    def _restart(self, same: Snapshot) -> None:
        """Start the container again over the layers of a snapshot, and end its processes meanwhile;
        the lock is held.
        """
        layers = same.layers
        old = self._sessions
        old.replace()
        for shell in tuple(self._shells):
            shell.abandon()
        self._repositories = GitOwners(self.spec, same.repositories)
        unwatch(old.watch)
        self._gpus.give_back()
        self._way_out.renew()
        ending = threading.Thread(target=old.end, args=(limit_s(self._driver.name, "end"),))
        ending.start()
        self._endings = [*filter(threading.Thread.is_alive, self._endings), ending]
        if old.watch is not None:  # a watch finds its processes by what the old ones have too
            ending.join()
        sessions = self._new_sessions()
        try:
            self._start(sessions, layers, wait=old.watch is not None)
            if old.watch is not None and sessions.watch is not None:
                sessions.watch.deadline = old.watch.deadline
        except BaseException:
            sessions.close()
            self._sessions = sessions
            self._remove_async(self._end)
            raise
        self._same = (same if layers else None, sessions.latest)
        self._sessions = sessions

    def _close(self, timeout_s: float, lost: UserSessions | None = None) -> None:
        """Close it; do nothing if only sessions were lost that it has no more."""
        with self._changing:
            if lost is not None and lost is not self._sessions:
                return
            was_closed = self._sessions.close()
        if not was_closed:
            self._end(timeout_s)

    def _end(self, timeout_s: float) -> None:
        try:
            # first: an engine removes no container whose network others have
            parallel_map(_ENDED_AT_ONCE, Container.close, tuple(self.services.values()))
            self._sessions.end(timeout_s)
            for ending in self._endings:
                ending.join(timeout_s)
        finally:
            self._forwards.close()
            self._way_out.close()
            for shell in tuple(self._shells):
                shell.abandon()
            unwatch(self._sessions.watch)
            self._gpus.give_back()
            shutil.rmtree(self._dir, ignore_errors=True)
            self._sessions.ended.set()  # nothing else does if no command ran since a rollback
            self.closed.set()

    def _remove_async(self, end: Callable[[float], None]) -> None:
        self._removal = threading.Thread(target=end, args=(_LOST_TIMEOUT_S,))
        self._removal.start()

    def _run(self, args: Sequence[str | bytes], options: ExecOptions) -> ExecResult:
        sessions = self._sessions  # a rollback may exchange them meanwhile
        return sessions.run(self._prepare(sessions, Execution, args, options))

    def _env(self, given: Mapping[str, str], *, has_egress: bool = True) -> dict[str, str]:
        """Return the variables of a command that are not in the container's own environment."""
        egress = self._way_out.env() if has_egress else {}
        own = {**self._live.exec_env, **egress, **self._repositories.env()}
        return {**self._late_env, **own, **given}

    def _prepare(
        self,
        sessions: UserSessions,
        kind: type[E],
        args: Sequence[str | bytes],
        options: ExecOptions,
        *,
        has_egress: bool = True,
    ) -> E:
        streams = {"has_input": options.input is not None, "merge_output": options.merge_output}
        env = self._env(options.env or {}, has_egress=has_egress)
        request = make_request(args, env=env, workdir=options.workdir, **streams)
        user = sessions.resolve(options.user)
        if user is not options.user:
            options = attrs.evolve(options, user=user)
        session = sessions.find(user)
        return kind(session, request, options)

    def _copy(self, args: Sequence[str | bytes], options: ExecOptions) -> ExecResult:
        """Run a command of our own, which reaches no servers."""
        sessions = self._sessions
        options = attrs.evolve(options, workdir="/")
        return sessions.run(self._prepare(sessions, Execution, args, options, has_egress=False))
