"""The sessions of one container, one per user that needs its own, and the handling of lost
sessions.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable

import attrs

from hyperruntime.attached_shell import AttachedShell
from hyperruntime.concurrency.end_event import EndEvent
from hyperruntime.driver import EngineInfo, LiveContainer, OpensShells, PostMortem
from hyperruntime.errors import (
    ContainerLostError,
    ContainerStateError,
    ExecLostError,
    ExecStartError,
    HyperRuntimeError,
    SpecError,
    UnsupportedOptionError,
)
from hyperruntime.exec.exec_marks import MarkNumbers, MarkSeries, Span
from hyperruntime.exec.exec_script import make_request
from hyperruntime.exec.execution import KILLED_EXIT_CODE, Execution
from hyperruntime.exec.options import ExecOptions
from hyperruntime.exec.session import Session
from hyperruntime.exec.streams import CallerError
from hyperruntime.host.engine_limits import limit_s, note_duration
from hyperruntime.host.owner import release_on_fork
from hyperruntime.host.process_tree import container_namespace
from hyperruntime.host.removals import Removals
from hyperruntime.host.watchdog import Watch
from hyperruntime.logs import get_logger
from hyperruntime.run_as import RunAs, find_user, is_root
from hyperruntime.spec import ExecResult, check_user

log = get_logger(__name__)

_NO_OTHER_USER = (
    "no command can become another user here: this machine gives you no subordinate ids (see "
    "`hyperrun doctor`), or the image has neither util-linux's setpriv nor coreutils' chroot; "
    "leave user at None, or set a pool's slots_per_container to 1"
)


class UserSessions:
    """The sessions of one container, by user; safe to use from many threads.

    Attributes:
        engine: the engine's name.
        numbers: source of the marks of this container's processes.
        ended: event that is set when the container has ended.
        watch: the watchdog's entry for this container, or None.
        live: the running container; None before :meth:`begin`.
    """

    def __init__(
        self,
        *,
        name: str,
        engine: str,
        user: str | None,
        exchange: str,
        removals: Removals,
        remove: Callable[[], None],
    ) -> None:
        """Prepare; the container does not exist yet.

        Args:
            name: the container's name.
            engine: the engine's name, for errors.
            user: user of the container's main shell; None means the image's user.
            exchange: the exchange directory on the host.
            removals: removes the container if it does not end by itself.
            remove: starts closing the container in the background.
        """
        self.numbers = MarkNumbers()
        self.ended = EndEvent()
        self.watch: Watch | None = None
        self.live: LiveContainer | None = None
        self._name = name
        self.engine = engine
        self._user = user
        self._exchange = exchange
        self._remove = remove
        self._pid = os.getpid()
        self._removals = removals
        self._sees_processes = True  # of the container, on the host
        self._lock = threading.Lock()
        self._sessions: dict[str | None, Session] = {}
        self._closed = False
        self._lost: ContainerLostError | None = None

    @property
    def is_alive(self) -> bool:
        """Whether the container can run commands, as far as is known."""
        ended_by_us = self.watch is not None and bool(self.watch.verdict)
        return not (self._closed or self._lost or ended_by_us or self.ended.is_set)

    @property
    def state(self) -> str:
        """``running``, ``ended`` or ``closed``, as far as is known; free to read."""
        return "closed" if self._closed else "running" if self.is_alive else "ended"

    def responds(self, timeout_s: float | None) -> bool:
        """Return whether the container's main shell answers in time.

        Args:
            timeout_s: seconds to wait; None means the session's usual patience.

        Raises:
            ContainerStateError: the container belongs to another process.
        """
        self._check_process()
        main = self._sessions.get(None)
        return main is not None and self.is_alive and main.responds(timeout_s)

    def begin(self, live: LiveContainer, info: EngineInfo) -> None:
        """Take the container and start its main session.

        Raises:
            ExecStartError: its shell was replaced, or its hard limits are too low for marks.
            HyperRuntimeError: the main shell did not answer; the driver explains why.
        """
        self.live = live
        self._sees_processes = info.rootless or os.geteuid() == 0
        self._start(None)

    def check_open(self) -> None:
        """Check that the container can be used.

        Raises:
            ContainerLostError: the container has ended.
            ContainerStateError: it was closed, or belongs to another process.
        """
        self._check_process()
        if self.watch is not None and self.watch.verdict and not self._closed:
            raise self.lose(ContainerLostError("the container has ended"), self._sessions[None])
        with self._lock:
            if self._lost is not None:
                raise ContainerLostError(str(self._lost), self._lost.post_mortem)
            if self._closed:
                raise ContainerStateError(f"container {self._name} is closed; start another one")

    def find(self, user: str | RunAs | None) -> Session:
        """Return the session whose lanes run as a user.

        A RunAs gets the main session if that session can switch users, else a session of its own.

        Raises:
            ContainerLostError: the container has ended.
            ContainerStateError: it was closed, or belongs to another process.
            ExecStartError: the user's shell was replaced, or its hard limits are too low for marks.
            SpecError: the user's name is invalid.
            UnsupportedOptionError: this container or engine cannot run commands as this user.
        """
        if not isinstance(user, RunAs):
            return self._find(None if user == self._user else user)
        return self._find(None if self._switches(self._find(None)) else str(user))

    def resolve(self, user: str | RunAs | None) -> str | RunAs | None:
        """Return the ids of a user if the engine attaches no shells; else the user as it is.

        Raises the errors of :meth:`find`, and UserNotFoundError for a user that the container does
        not have.
        """
        if not isinstance(user, str) or user == self._user or isinstance(self.live, OpensShells):
            return user
        check_user(user)
        main = self._find(None)
        if is_root(user) and self._user is None:
            return None
        found = find_user(user, *(self._read(main, path) for path in ("/etc/passwd", "/etc/group")))
        if not self._switches(main):
            raise UnsupportedOptionError(self.engine, "user", _NO_OTHER_USER)
        return found

    def _read(self, main: Session, path: str) -> str:
        options = ExecOptions(timeout_s=limit_s(self.engine, "call"))
        request = make_request(["cat", path])
        return self.run(Execution(main, request, options)).stdout.decode(errors="replace")

    def run(self, execution: Execution) -> ExecResult:
        """Run a command; raises the errors of :meth:`Container.exec`."""
        try:
            result = execution.run()
            if result.exit_code == KILLED_EXIT_CODE and self.live is not None:
                self.live.observe()
            return result
        except CallerError as error:
            raise error.cause from error.cause.__cause__
        except ContainerLostError as error:
            raise self.lose(error, execution.session) from None

    def end_user(self, user: RunAs, also: str | RunAs | None = None) -> bool:
        """Kill every process of a uid and drop its lanes; return whether none is left.

        Raises the errors of :meth:`find`.

        Args:
            user: the user.
            also: another form of the same user, in which its commands ran.
        """
        main = self._find(None)
        self._switches(main)
        ended = main.end_user(user)
        for name in {str(user), str(also or user)}:
            with self._lock:
                own = self._sessions.get(name)
            if own is not None:
                self._drop(name, own)
        return ended

    def end_group(self, group: str) -> bool:
        """Kill all processes that the commands of a group started; return whether none is left."""
        main = self._find(None)
        series = self.numbers.leave_group(group)
        ended = main.end_series(series)
        if not ended:
            self.numbers.rejoin_group(group, series)
        return ended

    def signal_group(self, group: str, number: int) -> bool:
        """Send a signal to all processes that the commands of a group started; return whether there
        were any.
        """
        main = self._find(None)
        return self.signal(main, number, main.series_spans(self.numbers.group_series(group)))

    def signal(self, session: Session, number: int, spans: Iterable[Span]) -> bool:
        """Send a signal to all processes with a mark in one of ``spans``; return whether there were
        any.

        Args:
            session: the session of the processes.
            number: number of the signal.
            spans: ranges of marks, as ``/proc/PID/limits`` prints them.

        Raises:
            ContainerLostError: the container has ended.
            ContainerStateError: it was closed, or belongs to another process.
            SpecError: ``number`` is not the number of a signal.
        """
        if not 0 < number < signal.NSIG:
            raise SpecError("number", number, "the number of a signal, such as signal.SIGINT")
        self.check_open()
        try:
            return session.send_signal(number, spans) > 0
        except ContainerLostError as error:
            raise self.lose(error, session) from None

    def end_marked(self, session: Session, spans: Iterable[Span]) -> bool:
        """Kill all processes of a session with a mark in one of ``spans``; return whether none is
        left.
        """
        self.check_open()
        return session.end_spans(spans)

    def end_series(self, series: MarkSeries) -> bool:
        """Kill all processes with a mark of a series; return whether none is left."""
        return self._find(None).end_series([series])

    def close(self) -> bool:
        """Refuse all further commands; return whether this was closed before."""
        with self._lock:
            before, self._closed = self._closed, True
            return before

    def end(self, timeout_s: float) -> None:
        """End the container, if there is one, and its sessions: through its main shell, else
        through the engine.

        Args:
            timeout_s: seconds that the main shell has to end.
        """
        main = self._sessions.get(None)
        live = self.live
        started = time.monotonic()
        if live is None:
            return
        if main is not None and main.close(timeout_s):
            note_duration(self.engine, "end", time.monotonic() - started)
        else:
            self.remove_now(live)
        for user, session in dict(self._sessions).items():
            if user is not None:
                session.close(0.5)
            session.abandon()
        if main is None:
            live.shell.close()
            live.shell.close_output()

    def remove_now(self, live: LiveContainer) -> None:
        """Kill and remove the container through its engine; never raises.

        If the engine is late, the host kills the processes, and the removal goes on in the
        background. If the host does not see them, this waits longer for the engine.
        """
        if self._removals.remove(self.engine, self._name, live.remove):
            return
        if (namespace := container_namespace(self._name, self._exchange)) is not None:
            namespace.kill()
            namespace.close()
        elif not self._sees_processes:
            self._removals.remove(self.engine, self._name, live.remove, to_the_end=True)

    def lose(self, error: ContainerLostError, session: Session) -> HyperRuntimeError:
        """Return the error for a lost session, with a post-mortem, and start removing the
        container.

        Every later caller gets the same error. The shell of another user may end alone, because
        that user may kill it; then only that session is dropped.

        Args:
            error: how the caller lost the session.
            session: the session that it used.
        """
        with self._lock:
            users = [
                user
                for user, known in self._sessions.items()
                if known is session and user is not None
            ]
            main = self._sessions.get(None)
        if users and main is not None and main.responds():
            self._drop(users[0], session)
            return ExecLostError(
                f"the shell of user {users[0]!r} in {self._name} ended while a command ran in "
                "it, so the result is unknown; the next command starts a new shell"
            )
        has_ended = main is not None and main.lost.is_set()
        if has_ended and main is not None and self._lost is None:
            # a busy engine reports the exit code long after the streams end
            main.wait_end(limit_s(self.engine, "end"))
        with self._lock:
            if self._closed and self._lost is None:
                return ContainerLostError(
                    f"container {self._name} was closed while a command ran in it"
                )
            if self._lost is None:
                self._lost = self._explain(error, has_ended=has_ended)
                # On an overloaded machine the removal takes seconds, and the caller must not wait
                # for it.
                self._remove()
            lost = self._lost
        return ContainerLostError(str(lost), lost.post_mortem)

    def _explain(self, error: ContainerLostError, *, has_ended: bool) -> ContainerLostError:
        assert self.live is not None
        verdict, limit = (
            (self.watch.verdict, self.watch.limit) if self.watch is not None else ("", "")
        )
        post_mortem: PostMortem = attrs.evolve(
            self.live.post_mortem(), ended_by=verdict, limit=limit
        )
        if has_ended and post_mortem.exit_code is None:  # the engine may still report it as running
            post_mortem = attrs.evolve(post_mortem, state="exited")
        log.warning(
            "container lost", name=self._name, state=post_mortem.state, oom=post_mortem.oom_killed
        )
        return ContainerLostError(
            f"{error} ({self._name}: {post_mortem}); start another container", post_mortem
        )

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ContainerStateError(
                f"container {self._name} belongs to process {self._pid}; a forked child must "
                "start its own"
            )

    def _switches(self, main: Session) -> bool:
        switches = main.switches_users()
        if switches is None:
            why = (
                "only root can switch users, and the container's user is not root; leave "
                "ContainerSpec.user at None"
            )
            raise UnsupportedOptionError(self.engine, "user", why)
        return switches

    def _find(self, key: str | None) -> Session:
        self.check_open()
        with self._lock:
            if key in self._sessions:
                return self._sessions[key]
        if key is not None:
            check_user(key)
        return self._start(key)

    def _start(self, user: str | None) -> Session:
        assert self.live is not None
        shell = self.live.shell if user is None else self._open_shell(user)
        on_lost = self.ended.set if user is None else lambda: None
        session = Session(shell, self._exchange, self.numbers, self.live.observe, on_lost)
        release_on_fork(session)
        started = time.monotonic()
        answered = session.start(limit_s(self.engine, "start"))
        note_duration(self.engine, "start", time.monotonic() - started)
        if not answered:
            text = session.error_text()
            session.close(0.5)
            error = self.live.explain_start_failure(text, user)
            session.abandon()
            raise error
        if session.refusal:
            _close(session)
            raise ExecStartError(session.refusal)
        with self._lock:
            known = self._sessions.setdefault(user, session)
        if known is not session:
            _close(session)
        return known

    def _open_shell(self, user: str) -> AttachedShell:
        live: object = self.live
        if isinstance(live, OpensShells):
            return live.open_shell(user)
        raise UnsupportedOptionError(self.engine, "user", _NO_OTHER_USER)

    def _drop(self, user: str, session: Session) -> None:
        with self._lock:
            if self._sessions.get(user) is session:
                del self._sessions[user]
        _close(session)


def _close(session: Session) -> None:
    session.close(0.5)
    session.abandon()
