"""The user's container: exec, copy in, copy out, and an end that leaves nothing. Generic over engines."""

from __future__ import annotations

import math
import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import BinaryIO

import attrs

from hyperruntime import transfer
from hyperruntime.bell import Bell
from hyperruntime.cancellation import run_cancellable
from hyperruntime.driver import Driver, Launch, LiveContainer, PostMortem
from hyperruntime.errors import (
    ContainerLostError,
    ContainerStateError,
    ExecLostError,
    HyperRuntimeError,
    SpecError,
    UnsupportedOptionError,
)
from hyperruntime.exchange import EXCHANGE_TARGET, make_exchange
from hyperruntime.execution import KILLED_EXIT_CODE, Execution, OutputCallback
from hyperruntime.feed import CallerError, Feed
from hyperruntime.gpus import GpuGrant
from hyperruntime.logs import get_logger
from hyperruntime.owner import Owner, release_on_fork
from hyperruntime.runas import RunAs
from hyperruntime.script import export_script, make_request, shell_keeps
from hyperruntime.session import Session, TagNumbers
from hyperruntime.spec import DEFAULT_OUTPUT_LIMIT_BYTES, ContainerSpec, ExecResult, Mount, check_user
from hyperruntime.tarball import ExtractLimits, ExtractReport
from hyperruntime.watchdog import Watch, split_limits, unwatch, watch_container

log = get_logger(__name__)

_START_TIMEOUT_S = 60.0
_CLOSE_TIMEOUT_S = 3.0
_LOST_TIMEOUT_S = 0.3
_ASYNC_THREADS = 64


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
        self.spec, self._engine = spec, driver.name
        self.name = f"hyperruntime-{uuid.uuid4().hex[:12]}"
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._numbers = TagNumbers()
        self._sessions: dict[str | None, Session] = {}
        self._closed = False
        self._lost: ContainerLostError | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._undertaker: threading.Thread | None = None
        self._watch: Watch | None = None
        self._end_bell = Bell()
        self._gpus = GpuGrant(spec.gpus)
        self._dir = os.path.join(owner.private_dir, self.name)
        self._late_env = {name: value for name, value in spec.env.items() if not shell_keeps(name)}
        early_env = {name: value for name, value in spec.env.items() if shell_keeps(name)}
        self._exchange = make_exchange(self._dir, export_script(early_env))
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
            self._start_session(None)
            self._live.observe()
            self._watch = watch_container(watched, launch, driver.name, self._live)
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
        ended_by_us = self._watch is not None and bool(self._watch.verdict)
        return not (self._closed or self._lost or ended_by_us or self._end_bell.has_rung)

    def on_end(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Let ``listener`` be called once when the container has ended, by whatever; return what takes that back.

        It is called at once where that has happened already, else by a thread of this library, and must not block.
        """
        return self._end_bell.listen(listener)

    async def ended(self) -> None:
        """Wait until the container has ended, by whatever."""
        await self._end_bell.heard()

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
                user costs one exec of the engine; as a :class:`~hyperruntime.runas.RunAs` it costs a fork.
            input: bytes, or a binary file that is read as the command takes it; None is an empty input.
            on_output: called as ``on_output("stdout" | "stderr", chunk)`` while it runs, in this thread.
            output_limit_bytes: of each stream; past it head and tail are kept.

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
        execution = self._execution(
            args, timeout_s, env, workdir, user, input, on_output, output_limit_bytes, cancel_fd=None
        )
        return self._run(execution)

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
    ) -> ExecResult:
        """Do what :meth:`exec` does without blocking the event loop; cancelling ends what the command started.

        At most 64 run at once in one container; more wait their turn. ``on_output`` is called in another
        thread.
        """
        execution_args = (args, timeout_s, env, workdir, user, input, on_output, output_limit_bytes)
        return await run_cancellable(
            self._pool(), lambda cancel_fd: self._run(self._execution(*execution_args, cancel_fd=cancel_fd))
        )

    def end_user(self, user: RunAs) -> bool:
        """Kill every process of a user's uid, whatever it did to hide, and forget its lanes; tell whether none is left.

        Takes a few milliseconds; a fork loop is stopped with everything else in the container for a moment.
        """
        main = self._session(None)
        ended = main.end_user(user)
        with self._lock:
            own = self._sessions.get(str(user))
        if own is not None:
            self._drop_session(str(user), own)
        return ended

    def put(self, source: str | os.PathLike[str], target: str) -> None:
        """Copy a file, link or directory of the host to exactly the path ``target`` inside.

        Missing parents are made; an existing directory is merged into. Links stay links; modes and times are kept,
        owners are not. Needs ``tar`` in the image.

        Raises:
            TransferError: the source does not exist, or the container refused it (read-only, no space).
        """
        transfer.put(self.exec, source, target)

    def get(
        self,
        source: str,
        target: str | os.PathLike[str],
        *,
        limits: ExtractLimits | None = None,
    ) -> ExtractReport:
        """Copy a path inside to exactly the path ``target`` of the host; the container is not trusted.

        What could write or point outside ``target`` (absolute names, ``..``, links that leave the tree,
        devices, FIFOs) is not written, and named in the report. Nothing appears at ``target`` before all of
        it has arrived.

        Raises:
            TransferError: the source does not exist, or the archive is torn.
            UnsafeArchiveError: it is larger than the limits.
        """
        return transfer.get(self.exec, source, target, limits)

    def close(self) -> None:
        """End everything in it and remove it; may be called again. A forked child, whose it is not, ends nothing."""
        if os.getpid() != self._pid:
            return
        self._close(_CLOSE_TIMEOUT_S)
        if self._undertaker is not None:
            self._undertaker.join()

    def _close(self, timeout_s: float) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            sessions = dict(self._sessions)
        try:
            if live := getattr(self, "_live", None):
                self._end(live, sessions, timeout_s)
        finally:
            if self._threads is not None:
                self._threads.shutdown(wait=False, cancel_futures=True)
            unwatch(self._watch)
            self._gpus.release()
            shutil.rmtree(self._dir, ignore_errors=True)

    def __enter__(self) -> Container:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it, whatever happened."""
        self.close()

    def _end(self, live: LiveContainer, sessions: Mapping[str | None, Session], timeout_s: float) -> None:
        main = sessions.get(None)
        ended = main is not None and main.close(timeout_s)
        if not ended:
            live.remove()
        for user, session in sessions.items():
            if user is not None:
                session.close(0.5)
            session.abandon()
        if main is None:
            live.shell.close()
            live.shell.close_output()

    def _execution(
        self,
        args: Sequence[str | bytes],
        timeout_s: float | None,
        env: Mapping[str, str] | None,
        workdir: str | None,
        user: str | RunAs | None,
        source: bytes | BinaryIO | None,
        on_output: OutputCallback | None,
        output_limit_bytes: int,
        cancel_fd: int | None,
    ) -> Execution:
        if timeout_s is not None and not 0 < timeout_s < math.inf:
            raise SpecError("timeout_s", timeout_s, "a positive number of seconds, or None")
        if output_limit_bytes < 2:
            raise SpecError("output_limit_bytes", output_limit_bytes, "at least 2")
        extra = {**self._late_env, **self._live.exec_env, **(env or {})}
        request = make_request(args, env=extra, workdir=workdir, has_input=source is not None)
        return Execution(
            self._session_for(user),
            request,
            user=user if isinstance(user, RunAs) else None,
            timeout_s=timeout_s,
            feed=None if source is None else Feed(source),
            on_output=on_output,
            output_limit_bytes=output_limit_bytes,
            cancel_fd=cancel_fd,
        )

    def _run(self, execution: Execution) -> ExecResult:
        try:
            result = execution.run()
            if result.exit_code == KILLED_EXIT_CODE:
                self._live.observe()
            return result
        except CallerError as error:
            raise error.cause from None
        except ContainerLostError as error:
            raise self._lose(error, execution.session) from None

    def _session_for(self, user: str | RunAs | None) -> Session:
        """Return the session whose lanes run as a user: the main one where it can switch to a RunAs."""
        if not isinstance(user, RunAs):
            return self._session(user)
        main = self._session(None)
        switches = main.switches_users()
        if switches is None:
            why = "only root starts other users, and the container's user is not root; leave ContainerSpec.user at None"
            raise UnsupportedOptionError(self._engine, "user", why)
        return main if switches else self._session(str(user))

    def _session(self, user: str | None) -> Session:
        key = None if user == self.spec.user else user
        if os.getpid() != self._pid:
            raise ContainerStateError(f"container {self.name} is of process {self._pid}; a forked child starts its own")
        if self._watch is not None and self._watch.verdict and not self._closed:
            raise self._lose(ContainerLostError("the container has ended"), self._sessions[None])
        with self._lock:
            if self._lost is not None:
                raise ContainerLostError(str(self._lost), self._lost.post_mortem)
            if self._closed:
                raise ContainerStateError(f"container {self.name} is closed; start another one")
            if key in self._sessions:
                return self._sessions[key]
        if key is not None:
            check_user(key)
        return self._start_session(key)

    def _start_session(self, user: str | None) -> Session:
        shell = self._live.shell if user is None else self._live.open_shell(user)
        ended = self._end_bell.ring if user is None else lambda: None
        session = Session(shell, self._exchange, EXCHANGE_TARGET, self._numbers, self._live.observe, ended)
        release_on_fork(session)
        if not session.start(_START_TIMEOUT_S):
            text = session.error_text()
            session.close(0.5)
            error = self._live.explain_start_failure(text, user)
            session.abandon()
            raise error
        with self._lock:
            known = self._sessions.setdefault(user, session)
        if known is not session:
            session.close(1)
            session.abandon()
        return known

    def _lose(self, error: ContainerLostError, session: Session) -> HyperRuntimeError:
        """Return the error with a post-mortem, and give the container up: made once, told to all.

        Another user's shell may end alone, for that user may kill it: then only that shell is given up.
        """
        with self._lock:
            users = [user for user, known in self._sessions.items() if known is session and user is not None]
            main = self._sessions.get(None)
        if users and main is not None and main.responds():
            self._drop_session(users[0], session)
            return ExecLostError(
                f"the shell of user {users[0]!r} in {self.name} ended while a command ran in it, so its result is not "
                "known; the next command gets a new one"
            )
        with self._lock:
            if self._closed and self._lost is None:
                return ContainerLostError(f"container {self.name} was closed while a command ran in it")
            if self._lost is None:
                verdict, limit = (self._watch.verdict, self._watch.limit) if self._watch is not None else ("", "")
                post_mortem: PostMortem = attrs.evolve(self._live.post_mortem(), ended_by=verdict, limit=limit)
                self._lost = ContainerLostError(
                    f"{error} ({self.name}: {post_mortem}); start another container", post_mortem
                )
                log.warning("container lost", name=self.name, state=post_mortem.state, oom=post_mortem.oom_killed)
                # Its removal may take seconds on a machine it has brought down; the caller shall not wait.
                self._undertaker = threading.Thread(target=self._close, args=(_LOST_TIMEOUT_S,))
                self._undertaker.start()
            lost = self._lost
        return ContainerLostError(str(lost), lost.post_mortem)

    def _drop_session(self, user: str, session: Session) -> None:
        with self._lock:
            if self._sessions.get(user) is session:
                del self._sessions[user]
        session.close(0.5)
        session.abandon()

    def _pool(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._lost is not None:
                raise ContainerLostError(str(self._lost), self._lost.post_mortem)
            if self._closed:
                raise ContainerStateError(f"container {self.name} is closed; start another one")
            if self._threads is None:
                self._threads = ThreadPoolExecutor(_ASYNC_THREADS, thread_name_prefix="hyperruntime-exec")
            return self._threads
