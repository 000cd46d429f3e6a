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
from hyperruntime.driver import EngineInfo, LiveContainer, OpensShells, PostMortem, SwitchesUser
from hyperruntime.errors import (
    ContainerLostError,
    ContainerStateError,
    ExecLostError,
    ExecStartError,
    HyperRuntimeError,
    SpecError,
    UnsupportedOptionError,
)
from hyperruntime.exec.exchange import Exchanges
from hyperruntime.exec.exec_marks import MarkNumbers, MarkSeries, Span
from hyperruntime.exec.exec_script import make_request
from hyperruntime.exec.execution import KILLED_EXIT_CODE, Execution
from hyperruntime.exec.options import ExecOptions
from hyperruntime.exec.session import Session
from hyperruntime.exec.streams import CallerError
from hyperruntime.host.engine_driver import ShellContainer
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
    "`hyperrun doctor`), the engine gives a container one user, or the image has neither "
    "util-linux's setpriv nor coreutils' chroot; leave user at None, or at 'root' if the image "
    "names a user, or set a pool's slots_per_container to 1"
)


class UserSessions:
    """The sessions of one container, by user; safe to use from many threads.

    Attributes:
        engine: the engine's name.
        numbers: source of the marks of this container's processes.
        ended: event that is set when the container has ended.
        watch: the watchdog's entry for this container, or None.
        live: the running container; None before :meth:`begin`.
        latest: another object whenever a command begins or ends; its files may have changed.
    """

    def __init__(
        self,
        *,
        name: str,
        engine: str,
        user: str | None,
        exchange: str,
        removals: Removals,
        remove: Callable[[UserSessions], None],
        ended: EndEvent,
        exchanges: Exchanges | None = None,
    ) -> None:
        """Prepare; the container does not exist yet.

        Args:
            name: the container's name.
            engine: the engine's name, for errors.
            user: user of the container's main shell; None means the image's user.
            exchange: the exchange directory on the host.
            removals: removes the container if it does not end by itself.
            remove: starts closing the container in the background, if it still has these sessions.
            ended: set when the container has ended, unless these sessions were replaced.
            exchanges: has directories of lanes that ended, for use again.
        """
        self.numbers = MarkNumbers()
        self.ended = ended
        self.watch: Watch | None = None
        self.live: LiveContainer | None = None
        self.latest = object()
        self._name = name
        self.engine = engine
        self._user = user
        self._exchange = exchange
        self._exchanges = exchanges
        self._remove = remove
        self._pid = os.getpid()
        self._removals = removals
        self._sees_processes = True  # of the container, on the host
        self._lock = threading.Lock()
        self._starting = threading.Lock()  # held while the main session starts
        self._sessions: dict[str | None, Session] = {}
        self._default: tuple[str, str] = ("", "")  # whom root becomes for commands, and its HOME
        self._default_ids: RunAs | None = None
        self._is_root = user is None or is_root(user)  # the main shell, if it can be another user
        self._closed = False
        self._replaced = False
        self._lost: ContainerLostError | None = None

    @property
    def is_alive(self) -> bool:
        """Whether the container can run commands, as far as is known."""
        ended_by_us = self.watch is not None and bool(self.watch.verdict)
        is_closed = self._closed and not self._replaced
        return not (is_closed or self._lost or ended_by_us or self.ended.is_set)

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
        if not self.is_alive:
            return False
        try:
            return self._find(None).responds(timeout_s)
        except HyperRuntimeError:
            return False

    def begin(self, live: LiveContainer, info: EngineInfo, *, wait: bool = True) -> None:
        """Take the container and start its main session.

        Args:
            live: the running container.
            info: what its engine can do.
            wait: whether to wait until it answers; else the first command does that.

        Raises:
            ExecStartError: its shell was replaced, or its hard limits are too low for marks.
            HyperRuntimeError: the main shell did not answer; the driver explains why.
        """
        self.live = live
        self._is_root = self._is_root and info.root
        if isinstance(live, SwitchesUser) and live.user:
            self._is_root = True
            self._default = "" if is_root(live.user) else live.user, live.home
        self._sees_processes = info.owns_processes
        if wait:
            self._find_main()
            self.resolve(None)

    def check_open(self) -> None:
        """Check that the container can be used.

        Raises:
            ContainerLostError: the container has ended.
            ContainerStateError: it was closed, or belongs to another process.
        """
        self._check_process()
        if self.watch is not None and self.watch.verdict and not self._closed:
            error = ContainerLostError("the container has ended")
            raise self.lose(error, self._sessions.get(None))
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
        """Return the ids of a user if the engine attaches no shells, and None for the main shell's;
        else the user as it is.

        Args:
            user: the user; None means the container's.

        Raises the errors of :meth:`find`, and UserNotFoundError for a user that the container does
        not have.
        """
        if isinstance(user, RunAs) or isinstance(self.live, OpensShells):
            return user
        own, home = self._default
        named = own if user is None or user == self._user else user
        if not named or (named == own and self._default_ids):
            return self._default_ids
        check_user(named)
        main = self._find(None)
        if is_root(named) and self._is_root:
            return None
        passwd, groups = [self._read(main, path) for path in ("/etc/passwd", "/etc/group")]
        # of images whose USER is a number, some let the group of root write
        found = find_user(named, passwd, groups, group_of_others=0 if named == own else None)
        if not self._switches(main):
            raise UnsupportedOptionError(self.engine, "user", _NO_OTHER_USER)
        if named == own:
            self._default_ids = found = attrs.evolve(found, home=home or found.home)
        return found

    def _read(self, main: Session, path: str) -> str:
        options = ExecOptions(timeout_s=limit_s(self.engine, "call"))
        request = make_request(["cat", path])
        return self.run(Execution(main, request, options)).stdout.decode(errors="replace")

    def run(self, execution: Execution) -> ExecResult:
        """Run a command; raises the errors of :meth:`Container.exec`."""
        self.latest = object()
        try:
            result = execution.run()
            if result.exit_code == KILLED_EXIT_CODE and self.live is not None:
                self.live.observe()
            return result
        except CallerError as error:
            raise error.cause from error.cause.__cause__
        except ContainerLostError as error:
            raise self.lose(error, execution.session) from None
        finally:
            self.latest = object()

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

    def count_processes(self) -> int:
        """Return how many processes of commands live, those of any user and in the background too.

        Raises:
            ContainerLostError: the container has ended.
            ContainerStateError: it was closed, or belongs to another process.
        """
        main = self._find(None)
        try:
            return main.send_signal(0, main.command_spans())
        except ContainerLostError as error:
            raise self.lose(error, main) from None

    def replace(self) -> None:
        """Refuse further commands: the container goes on with other sessions, so nobody learns of
        the end of these.
        """
        self._replaced = True
        self.close()

    def _note_end(self) -> None:
        if not self._replaced:
            self.ended.set()

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
        is_container = isinstance(live, ShellContainer)
        if main is not None and main.close(timeout_s, is_container=is_container):
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

    def lose(self, error: ContainerLostError, session: Session | None) -> HyperRuntimeError:
        """Return the error for a lost session, with a post-mortem, and start removing the
        container.

        Every later caller gets the same error. The shell of another user may end alone, because
        that user may kill it; then only that session is dropped.

        Args:
            error: how the caller lost the session.
            session: the session that it used; None if none has started.
        """
        with self._lock:
            users = [
                user
                for user, known in self._sessions.items()
                if known is session and user is not None
            ]
            main = self._sessions.get(None)
        if session is not None and users and main is not None and main.responds():
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
                self._remove(self)
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
        if key is None:
            return self._find_restarted()
        check_user(key)
        return self._start(key)

    def _find_restarted(self) -> Session:
        """Return the main session of a container that was rolled back; if it does not start, the
        container is lost.
        """
        try:
            return self._find_main()
        except HyperRuntimeError as error:
            with self._lock:
                if self._closed:  # by another rollback, or by its owner
                    raise
                self._lost = self._lost or ContainerLostError(str(error))
            self._remove(self)
            raise

    def _find_main(self) -> Session:
        """Return the main session; one thread starts it."""
        with self._starting:
            return self._sessions.get(None) or self._start(None)

    def _start(self, user: str | None) -> Session:
        assert self.live is not None
        shell = self.live.shell if user is None else self._open_shell(user)
        on_lost = self._note_end if user is None else lambda: None
        session = Session(
            shell, self._exchange, self.numbers, self.live.observe, on_lost, self._exchanges
        )
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
