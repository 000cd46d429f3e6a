"""The sessions of one container: one for each user that needs its own, and what it means when one is gone."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import attrs

from hyperruntime.concurrency.end_event import EndEvent
from hyperruntime.driver import LiveContainer, PostMortem
from hyperruntime.errors import (
    ContainerLostError,
    ContainerStateError,
    ExecLostError,
    ExecStartError,
    HyperRuntimeError,
    UnsupportedOptionError,
)
from hyperruntime.exec.exchange_dir import EXCHANGE_TARGET
from hyperruntime.exec.exec_marks import MarkNumbers, MarkSeries
from hyperruntime.exec.execution import KILLED_EXIT_CODE, Execution
from hyperruntime.exec.input_source import CallerError
from hyperruntime.exec.session import Session
from hyperruntime.host.owner import release_on_fork
from hyperruntime.host.watchdog import Watch
from hyperruntime.logs import get_logger
from hyperruntime.run_as import RunAs
from hyperruntime.spec import ExecResult, check_user

log = get_logger(__name__)

_START_TIMEOUT_S = 60.0
_END_TIMEOUT_S = 3.0


@attrs.frozen(kw_only=True)
class SessionContext:
    """What sessions must know of their container.

    Attributes:
        name: its name.
        engine: its engine's name, for errors.
        user: as whom its own shell runs; None is the image's user.
        exchange: the exchange directory on the host.
        bury: begins to remove it, without waiting.
    """

    name: str
    engine: str
    user: str | None
    exchange: str
    bury: Callable[[], None]


class UserSessions:
    """UserSessions by user; safe to use from many threads.

    Attributes:
        numbers: marks of what runs in the container.
        bell: rings when the container has ended.
        watch: what watches its limits, or None.
        live: the container, once there is one.
    """

    def __init__(self, home: SessionContext) -> None:
        """Prepare; the container is not there yet."""
        self.numbers, self.bell = MarkNumbers(), EndEvent()
        self.watch: Watch | None = None
        self.live: LiveContainer | None = None
        self._home, self._pid = home, os.getpid()
        self._lock = threading.Lock()
        self._sessions: dict[str | None, Session] = {}
        self._closed = False
        self._lost: ContainerLostError | None = None

    @property
    def is_alive(self) -> bool:
        """Whether it can run commands, as far as is known."""
        ended_by_us = self.watch is not None and bool(self.watch.verdict)
        return not (self._closed or self._lost or ended_by_us or self.bell.has_rung)

    def responds(self, timeout_s: float | None) -> bool:
        """Tell whether the container's own shell answers."""
        self._check_process()
        main = self._sessions.get(None)
        return main is not None and self.is_alive and main.responds(timeout_s)

    def begin(self, live: LiveContainer) -> None:
        """Take the container and start its first session; errors as of :meth:`find`."""
        self.live = live
        self._start(None)

    def check_open(self) -> None:
        """Raise what a call on a container that is gone, or another process's, must raise."""
        self._check_process()
        if self.watch is not None and self.watch.verdict and not self._closed:
            raise self.lose(ContainerLostError("the container has ended"), self._sessions[None])
        with self._lock:
            if self._lost is not None:
                raise ContainerLostError(str(self._lost), self._lost.post_mortem)
            if self._closed:
                raise ContainerStateError(f"container {self._home.name} is closed; start another one")

    def find(self, user: str | RunAs | None) -> Session:
        """Return the session whose lanes run as a user: the main one where it can switch to a RunAs.

        Raises:
            ContainerLostError: the container is gone.
            ContainerStateError: it was closed, or is another process's.
            UnsupportedOptionError: it has no such users.
        """
        if not isinstance(user, RunAs):
            return self._find(None if user == self._home.user else user)
        return self._find(None if self._switches(self._find(None)) else str(user))

    def run(self, execution: Execution) -> ExecResult:
        """Run a command; errors as of :meth:`Container.exec`."""
        try:
            result = execution.run()
            if result.exit_code == KILLED_EXIT_CODE and self.live is not None:
                self.live.observe()
            return result
        except CallerError as error:
            raise error.cause from None
        except ContainerLostError as error:
            raise self.lose(error, execution.session) from None

    def end_user(self, user: RunAs) -> bool:
        """Kill every process of a uid and forget its lanes; return whether none is left; errors as of :meth:`find`."""
        main = self._find(None)
        self._switches(main)
        ended = main.end_user(user)
        with self._lock:
            own = self._sessions.get(str(user))
        if own is not None:
            self._drop(str(user), own)
        return ended

    def end_group(self, group: str) -> bool:
        """Kill what every command of a group has started; return whether none is left."""
        main, series = self._find(None), self.numbers.leave_group(group)
        ended = main.end_series(series)
        if not ended:
            self.numbers.rejoin_group(group, series)
        return ended

    def end_series(self, series: MarkSeries) -> bool:
        """Kill what everything marked from a series has started; return whether none is left."""
        return self._find(None).end_series([series])

    def close(self) -> bool:
        """Let nothing begin any more; return whether that was so already."""
        with self._lock:
            before, self._closed = self._closed, True
            return before

    def end(self, live: LiveContainer, timeout_s: float) -> None:
        """End everything, by the container's own shell where that still works, else by the engine."""
        main = self._sessions.get(None)
        ended = main is not None and main.close(timeout_s)
        if not ended:
            live.remove()
        for user, session in dict(self._sessions).items():
            if user is not None:
                session.close(0.5)
            session.abandon()
        if main is None:
            live.shell.close()
            live.shell.close_output()

    def lose(self, error: ContainerLostError, session: Session) -> HyperRuntimeError:
        """Return the error with a post-mortem, and give the container up: made once, told to all.

        Another user's shell may end alone, for that user may kill it: then only that shell is given up.
        """
        with self._lock:
            users = [user for user, known in self._sessions.items() if known is session and user is not None]
            main = self._sessions.get(None)
        if users and main is not None and main.responds():
            self._drop(users[0], session)
            return ExecLostError(
                f"the shell of user {users[0]!r} in {self._home.name} ended while a command ran in it, so its result "
                "is not known; the next command gets a new one"
            )
        has_ended = main is not None and main.lost.is_set()
        if has_ended and main is not None and self._lost is None:
            main.wait_end(_END_TIMEOUT_S)  # on a busy machine the engine tells the code long after the streams' end
        with self._lock:
            if self._closed and self._lost is None:
                return ContainerLostError(f"container {self._home.name} was closed while a command ran in it")
            if self._lost is None:
                self._lost = self._explain(error, has_ended=has_ended)
                # Its removal may take seconds on a machine it has brought down; the caller shall not wait.
                self._home.bury()
            lost = self._lost
        return ContainerLostError(str(lost), lost.post_mortem)

    def _explain(self, error: ContainerLostError, *, has_ended: bool) -> ContainerLostError:
        assert self.live is not None
        verdict, limit = (self.watch.verdict, self.watch.limit) if self.watch is not None else ("", "")
        post_mortem: PostMortem = attrs.evolve(self.live.post_mortem(), ended_by=verdict, limit=limit)
        if has_ended and post_mortem.exit_code is None:  # whatever the engine still does about it
            post_mortem = attrs.evolve(post_mortem, state="exited")
        log.warning("container lost", name=self._home.name, state=post_mortem.state, oom=post_mortem.oom_killed)
        return ContainerLostError(f"{error} ({self._home.name}: {post_mortem}); start another container", post_mortem)

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ContainerStateError(
                f"container {self._home.name} is of process {self._pid}; a forked child starts its own"
            )

    def _switches(self, main: Session) -> bool:
        switches = main.switches_users()
        if switches is None:
            why = "only root starts other users, and the container's user is not root; leave ContainerSpec.user at None"
            raise UnsupportedOptionError(self._home.engine, "user", why)
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
        shell = self.live.shell if user is None else self.live.open_shell(user)
        ended = self.bell.ring if user is None else lambda: None
        session = Session(shell, self._home.exchange, EXCHANGE_TARGET, self.numbers, self.live.observe, ended)
        release_on_fork(session)
        if not session.start(_START_TIMEOUT_S):
            text = session.error_text()
            session.close(0.5)
            error = self.live.explain_start_failure(text, user)
            session.abandon()
            raise error
        if session.refusal:
            session.close(0.5)
            session.abandon()
            raise ExecStartError(session.refusal)
        with self._lock:
            known = self._sessions.setdefault(user, session)
        if known is not session:
            session.close(1)
            session.abandon()
        return known

    def _drop(self, user: str, session: Session) -> None:
        with self._lock:
            if self._sessions.get(user) is session:
                del self._sessions[user]
        session.close(0.5)
        session.abandon()
