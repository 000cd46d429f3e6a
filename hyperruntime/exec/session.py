"""The long-lived shell in a container through which execs run: it starts lanes and kills process
trees.

A session owns one attached shell (the supervisor, ``sh/supervisor.sh``). The supervisor starts
lanes and kills process trees; the lanes run the execs, and an exec in an idle lane uses only the
FIFOs of that lane. One thread for all the sessions of this process
(:mod:`hyperruntime.concurrency.poller`) reads the supervisors' answers, keeps the last lines of the
engine's messages, and drains streams that background processes still hold. Designs:
docs/design/exec.md#lanes, docs/design/exec.md#descriptors-and-threads.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from hyperruntime.attached_shell import AttachedShell
from hyperruntime.concurrency.poller import poller
from hyperruntime.errors import ContainerLostError
from hyperruntime.exec.exchange import EXCHANGE_TARGET, Exchanges
from hyperruntime.exec.exec_marks import COMMANDS, Mark, MarkLimit, MarkNumbers, MarkSeries, Span
from hyperruntime.exec.killers import Tree, TreeKiller, find_limited, kill_user
from hyperruntime.exec.lane import Lane, LanePool
from hyperruntime.host.process import overload
from hyperruntime.logs import get_logger
from hyperruntime.run_as import RunAs

log = get_logger(__name__)

_LINE_LIMIT = 4096
_TAIL_LINES = 20
_MAX_DRAINS = 256
# No call of an engine: how late a living shell answers depends on the CPU time that it gets, so
# these grow only with the overload of the machine. A slow engine must not delay the discovery that
# a container has ended.
_PONG_TIMEOUT_S = 10.0
_BASH_PONG_TIMEOUT_S = 30.0  # bash retries a failed fork for up to 15 s
_CHANGED_SHELL = (
    "the container's shell reports impossible limits, so no command is run in it; /bin/sh was "
    "replaced in the container: start another container"
)
_LOW_LIMITS = (
    "the container's hard limits of file locks ({locks}) and of resident memory ({resident} "
    "bytes) are both too low to mark the processes of its commands; raise one before you start "
    "hyperrun: prlimit --pid $$ --locks=unlimited"
)
# the least answer of a supervisor that can switch users; see _hr_find_switch in supervisor.sh
_FIRST_SWITCH = 2


class Session:
    """Execs as one user in one container.

    Attributes:
        lost: set once the attached shell is gone.
        on_death: called when a lane is seen to be dead.
        announces: whether each command must report that its process was started, because the
            container's shell is bash.
        lanes: the lanes of its execs.
        refusal: the reason why the container cannot run commands although its shell works, or "".
    """

    def __init__(
        self,
        shell: AttachedShell,
        exchange: str,
        numbers: MarkNumbers,
        on_death: Callable[[], None] = lambda: None,
        on_lost: Callable[[], None] = lambda: None,
        exchanges: Exchanges | None = None,
    ) -> None:
        """Take over a newly attached shell.

        Args:
            shell: the attached shell; the session owns it from now on.
            exchange: the exchange directory on the host.
            numbers: the container's mark numbers.
            on_death: called by the thread that finds a lane dead.
            on_lost: called once when the shell has ended, for any reason; must not block, because
                the thread that calls it serves all sessions.
            exchanges: has directories of lanes that ended, for use again.
        """
        self.lost = threading.Event()
        self.on_death = on_death
        self._on_lost = on_lost
        self.announces = False
        self._shell = shell
        self._numbers = numbers
        self.lanes = LanePool(
            exchange,
            self._request_lane,
            lambda: self._mark_limit.mark(numbers.next_lane()),
            exchanges,
        )
        self._switch: int | None = None
        self._lock = threading.Lock()
        # only requests that a caller waits for: the container is not trusted
        self._answers: dict[str, int | None] = {}
        self._answered = threading.Condition()
        self._error_tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._drains: set[int] = set()
        self._ender = TreeKiller(self._ask, self.lost.is_set)
        self._limit: MarkLimit | None = None
        self.refusal = ""
        self._ready = threading.Event()
        self._closing = False
        self._partial = b""
        self._poller = poller()
        # set when the output has ended and is closed; None before the start
        self._over: threading.Event | None = None

    def start(self, timeout_s: float) -> bool:
        """Start the supervisor; return whether it answered within ``timeout_s``.

        If it did not answer because its process ended, :meth:`error_text` returns the last lines of
        that process.
        """
        self._over = threading.Event()
        self._poller.add(self._shell.output, self._read)
        deadline = time.monotonic() + timeout_s
        try:
            self._send(f"_hr_dir={EXCHANGE_TARGET}; . {EXCHANGE_TARGET}/supervisor.sh\n")
        except ContainerLostError:
            self._over.wait(timeout_s)
        while not self._ready.wait(0.05):
            if self.lost.is_set() or time.monotonic() > deadline:
                return self._ready.is_set()
        return True

    def switches_users(self) -> bool | None:
        """Return whether its lanes can run as other users; None if this session's own user is not
        root.

        Raises:
            ContainerLostError: the supervisor did not answer.
        """
        if self._switch is None:
            answer = self._ask("switch", "", self.patience_s)
            if answer is None:
                raise ContainerLostError("the container stopped answering")
            self._switch = answer
        return None if self._switch == 0 else self._switch >= _FIRST_SWITCH

    def _request_lane(self, lane: Lane) -> None:
        as_user = ""
        if lane.user is not None and self._switch:
            groups = ",".join(map(str, (lane.user.gid, *lane.user.groups)))
            as_user = f" {lane.user.uid} {groups}{' check' if lane.checks else ''}"
        self._send(f"{lane.program} {lane.name} {lane.mark.steps}{as_user}\n")

    def next_mark(self, source: str | MarkSeries | None = None) -> Mark:
        """Return the mark of the next exec; ``source`` is its group or series, or None."""
        number = source.next() if isinstance(source, MarkSeries) else self._numbers.next(source)
        return self._mark_limit.mark(number)

    @property
    def _mark_limit(self) -> MarkLimit:
        assert self._limit is not None  # the supervisor reports it first
        return self._limit

    def drain(self, descriptor: int) -> None:
        """Read and discard the data of a descriptor until its end, then close it."""
        with self._lock:
            full = len(self._drains) >= _MAX_DRAINS or self._closing
            if not full:
                self._drains.add(descriptor)
                self._poller.add(descriptor, partial(self._drop, descriptor))
        if full:
            os.close(descriptor)

    def end_tree(self, group: int, marks: Iterable[Mark]) -> bool:
        """Kill every process that an exec started; return whether none is left.

        Args:
            group: process group of this exec alone, or 0.
            marks: marks of the exec and of the other processes to kill with it.
        """
        return self._ender.end(
            Tree(group, self._mark_limit.title, tuple(mark.span for mark in marks))
        )

    def end_series(self, series: Iterable[MarkSeries]) -> bool:
        """Kill every process that the execs of these series started; return whether none is
        left.
        """
        return self.end_spans(self.series_spans(series))

    def end_spans(self, spans: Iterable[Span]) -> bool:
        """Kill every process whose mark is in one of ``spans``; return whether none is left."""
        tree = Tree(0, self._mark_limit.title, tuple(spans))
        return not tree.spans or self._ender.end(tree)

    def find_processes(self, spans: Iterable[Span], pid: int | None = None) -> list[int]:
        """Return the pids on this machine of the processes whose mark is in one of ``spans``.

        Args:
            spans: ranges of marks, as ``/proc/PID/limits`` prints them.
            pid: the only process to look at; None means all.
        """
        pids = filter(str.isdigit, os.listdir("/proc")) if pid is None else (str(pid),)
        return [int(name) for name, _ in find_limited(self._mark_limit.title, tuple(spans), pids)]

    @property
    def has_private_groups(self) -> bool:
        """Whether its image has ``setsid``, so that each lane has a process group of its own."""
        return self._ender.private_groups

    def send_signal(self, number: int, spans: Iterable[Span]) -> int:
        """Send a signal to every process whose mark is in one of ``spans``; return how many there
        were.

        Args:
            number: number of the signal.
            spans: ranges of marks, as ``/proc/PID/limits`` prints them.

        Raises:
            ContainerLostError: the supervisor did not answer.
        """
        tree = Tree(0, self._mark_limit.title, tuple(spans))
        if not tree.spans:
            return 0
        found = self._ask("signal", f"{number} {tree.words(groups=False)}", self.patience_s)
        if found is None:
            raise ContainerLostError("the container stopped answering")
        return found

    def series_spans(self, series: Iterable[MarkSeries]) -> list[Span]:
        """Return the ranges of the marks of series, as ``/proc/PID/limits`` prints them."""
        return [self._mark_limit.span(span) for one in series for span in one.spans()]

    def command_spans(self) -> list[Span]:
        """Return the range of the marks of all commands, as ``/proc/PID/limits`` prints it."""
        return [self._mark_limit.span(COMMANDS)]

    def end_user(self, user: RunAs) -> bool:
        """Kill every process of a uid and drop its lanes; return whether none is left."""
        return kill_user(
            self.lanes, self._ask, self.lost.is_set, user, switches=bool(self.switches_users())
        )

    @property
    def patience_s(self) -> float:
        """Seconds without an answer after which the supervisor counts as gone; more on a busy
        machine.
        """
        return (_BASH_PONG_TIMEOUT_S if self.announces else _PONG_TIMEOUT_S) * overload()

    def responds(self, timeout_s: float | None = None) -> bool:
        """Return whether the supervisor still works, after at most ``timeout_s`` (None is
        :attr:`patience_s`).

        Its answer may wait behind many requested lanes, so a lane that starts meanwhile also
        counts.
        """
        timeout_s, before = self.patience_s if timeout_s is None else timeout_s, self.lanes.started
        if self.lost.is_set():
            return False
        answered = self._ask("ping", "", timeout_s) is not None
        return answered or (self.lanes.started != before and not self.lost.is_set())

    def error_text(self) -> str:
        """Return the last lines that the engine wrote about this shell."""
        return "\n".join(self._error_tail)

    def wait_end(self, timeout_s: float) -> int | None:
        """Return the exit code of the attached process, or None while it runs."""
        return self._shell.wait(timeout_s)

    def close(self, timeout_s: float, *, is_container: bool = False) -> bool:
        """End the session; return whether the attached process ended by itself within
        ``timeout_s``.

        A process that a signal killed does not count, because it may have removed nothing: a batch
        system that ends a job sends SIGTERM to all its processes.

        Args:
            timeout_s: seconds to wait.
            is_container: whether all processes of the container are dead after the attached one.
        """
        with self._lock:
            self._closing = True
        self._shell.close_input()
        code = self._shell.wait(timeout_s)
        ended = code is not None and code >= 0
        if self._over is not None and ended:
            self._over.wait(timeout_s)
        self.lanes.close(ended=ended and is_container)
        return ended

    def abandon(self) -> None:
        """End the attached process, after the engine removed the container, and wait until its
        output is closed.
        """
        self._shell.close()
        if self._over is not None:
            self._over.wait(2)

    def descriptors(self) -> tuple[int, ...]:
        """Return the descriptors whose end-of-file shows the container that its owner is gone.

        Lock-free, because it is called in a forked child, where the lock holder does not exist.
        """
        held = [descriptor for lane in self.lanes.all() for descriptor in lane.descriptors()]
        closed = self._closing or self._shell.input < 0
        return tuple(held) if closed else (self._shell.input, *held)

    def _ask(self, verb: str, words: str, timeout_s: float) -> int | None:
        """Send a request; return the number in its answer, or None if no answer comes in time."""
        key = str(self._numbers.take(1))
        deadline = time.monotonic() + timeout_s
        with self._answered:
            self._answers[key] = None
        try:
            self._send(f"{verb} {key} {words}\n")
            with self._answered:
                while (answer := self._answers[key]) is None and not self.lost.is_set():
                    if not self._answered.wait(max(0.0, deadline - time.monotonic())):
                        break
                return answer if answer is not None else self._answers[key]
        except ContainerLostError:
            return None
        finally:
            with self._answered:
                del self._answers[key]

    def _send(self, line: str) -> None:
        with self._lock:
            if self._closing:
                raise ContainerLostError(
                    "the container was closed while a command was starting in it"
                )
            try:
                if not _is_writable(self._shell.input):
                    raise ContainerLostError("the container's shell no longer reads requests")
                os.write(self._shell.input, line.encode())
            except (OSError, ValueError):  # ValueError: the input was closed
                self.lost.set()
                raise ContainerLostError("the container is gone") from None

    def _read(self) -> None:
        """Read what the shell and its engine have written; in the poller's thread, as everything
        below.
        """
        try:
            chunk = self._shell.read()
        except BlockingIOError:
            return
        except Exception as error:  # noqa: BLE001 - of a driver; without the answers the session is over
            log.debug("shell not read", error=repr(error))
            chunk = b""
        *lines, rest = (self._partial + chunk).split(b"\n")
        self._partial = rest[-_LINE_LIMIT:]
        for line in lines:
            self._hear(line[-_LINE_LIMIT:].decode(errors="replace"))
        if not chunk:
            self._end()

    def _end(self) -> None:
        assert self._over is not None
        if self._partial:
            self._error_tail.append(self._partial.decode(errors="replace"))
        with self._answered:
            self.lost.set()
            self._answered.notify_all()
        with self._lock:
            drains, self._drains, self._closing = self._drains, set(), True
        for descriptor in drains:
            self._poller.remove(descriptor)
            os.close(descriptor)
        for lane in self.lanes.all():
            lane.hang_up()
        self._poller.remove(self._shell.output)
        self._shell.close_output()
        self._over.set()
        self._on_lost()

    def _hear(self, line: str) -> None:
        match line.split():
            case ["ready", group, option, hard, *shell] if not self._ready.is_set():
                self._ender.private_groups = group == "setsid"
                self.announces = shell == ["bash"]
                self._limit = MarkLimit.parse(option, hard)
                if self._limit is None or not self._numbers.agree(self._limit):
                    self.refusal = _CHANGED_SHELL
                self._ready.set()
            case ["unmarked", locks, resident] if not self._ready.is_set():
                self.refusal = _LOW_LIMITS.format(locks=locks, resident=resident)
                self._ready.set()
            case ["done", key, number] if is_number(number, 19):
                with self._answered:
                    if key in self._answers:
                        self._answers[key] = int(number)
                        self._answered.notify_all()
            case ["ready" | "unmarked" | "done", *_] | []:
                pass
            case _:
                self._error_tail.append(line)

    def _drop(self, descriptor: int) -> None:
        try:
            chunk = os.read(descriptor, 1 << 20)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            with self._lock:
                self._drains.discard(descriptor)
            self._poller.remove(descriptor)
            os.close(descriptor)


def is_number(word: str, digits: int) -> bool:
    """Return whether a word is a decimal number of at most ``digits`` digits."""
    return word.isascii() and word.isdigit() and len(word) <= digits


def _is_writable(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return bool(poll.poll(0))
