"""A shell session as at a terminal: wait for a pattern in the output, and type input to interactive
programs.

Sessions of SWE-ReX are terminals. Here commands run in a persistent shell without a terminal.
An interactive program gets its own terminal while it runs.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from signal import SIGINT, SIGKILL
from typing import TypeVar

import attrs

from hyperruntime.concurrency.blocking import EXECS, blocking, threads
from hyperruntime.concurrency.end_event import make_waiter
from hyperruntime.container import Container
from hyperruntime.exec.persistent.shell import Shell
from hyperruntime.exec.spawn.terminal import Terminal
from hyperruntime.spec import ExecResult

T = TypeVar("T")
_Patterns = list[tuple[re.Pattern[bytes], str]]

_MOST_BYTES = 10 * 1024**2  # of output that nobody has taken; the oldest goes first
_MOST_READS = 1024  # of a terminal at once, because its program may write for ever
_KILL_S = 5.0
_LONG_LOOK_S = 0.002
_OTHERS = 10  # after a long look at the output, others have the event loop so many times as long
_COLUMNS = 500  # programs that edit lines wrap longer ones
# shows that the terminal is ready, and keeps it open
_HOLD = "stty -echo 2>/dev/null; echo; exec sleep 2147483647"
# The forms of ECMA-48.
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_=>])")


@attrs.frozen(kw_only=True)
class SessionOutput:
    """Output of a command since the last call.

    Attributes:
        text: both streams in order, without escape sequences; of more than 10 MiB the last ones,
            after a line that says how many bytes were dropped.
        exit_code: how the command ended; None while it runs.
        found: the pattern that was found, or "".
    """

    text: str
    exit_code: int | None = None
    found: str = ""


class ShellSession:
    """Runs one command at a time in a persistent shell. Its callers may be on different event
    loops.

    A call that is cancelled, as by :func:`asyncio.timeout`, leaves its command running, and the
    next one waits for its end; :meth:`interrupt` ends it. The errors are those of :meth:`Shell.run`
    and :meth:`Container.terminal`.
    """

    def __init__(self, container: Container) -> None:
        """Open a shell of a container; bash starts with the first command."""
        self._container = container
        self._running = _Running()
        self._shell = container.shell(env={} if "TERM" in container.spec.env else {"TERM": "dumb"})
        self._parser = container.shell()

    @property
    def asks(self) -> bool:
        """Whether a program runs on a terminal, so that the next command is typed to it."""
        return self._running.terminal is not None and not self._running.has_ended

    async def run(
        self, command: str, expect: Sequence[str] = (), *, on_terminal: bool = False
    ) -> SessionOutput:
        """Run a command, or type it to the program that asks; return its output until a pattern or
        its end.

        Args:
            command: shell code; for a program that asks, a line.
            expect: regular expressions; output after the first match belongs to the next call.
            on_terminal: whether the command gets a terminal.
        """
        if self.asks and self._running.terminal is not None:
            await self._running.terminal.awrite(f"{command}\n".encode())
        else:
            await self._running.end()
            self._running.close()
            self._running = (
                await self._start_on_terminal(command)
                if on_terminal
                else _Running(self._shell, command)
            )
        return await self._running.output(expect)

    async def syntax_error(self, command: str) -> str:
        """Return bash's error message for shell code that it cannot parse, else ""; the code is not
        run.
        """
        unexecuted = shlex.quote(f"set -n\n{command}")
        # starts no program
        if (await self._parser.arun(f"( eval {unexecuted} ) 2>/dev/null")).exit_code == 0:
            return ""
        result = await self._container.aexec(["bash", "-n"], input=command.encode())
        return result.stderr.decode(errors="backslashreplace") if result.exit_code != 0 else ""

    async def interrupt(
        self, expect: Sequence[str] = (), *, tries: int = 3, timeout_s: float = 0.2
    ) -> SessionOutput:
        """Send SIGINT to the command, at last SIGKILL; return its output until a pattern or its
        end.

        If no command runs, the result has no output, and the last exit code.

        Args:
            expect: as for :meth:`run`.
            tries: number of times that SIGINT is sent.
            timeout_s: seconds to wait after each.

        Raises:
            TimeoutError: its processes cannot be ended.
        """
        running = self._running
        for number in (*[SIGINT] * tries, SIGKILL):
            await self._shell.asignal(number)
            try:
                async with asyncio.timeout(timeout_s if number == SIGINT else _KILL_S):
                    return await running.output(expect)
            except TimeoutError:
                continue
        raise TimeoutError("the processes of the command cannot be ended; close the session")

    async def close(self) -> None:
        """End the shell and all its processes; may be called again."""
        if self._running.terminal is not None:
            await blocking(EXECS, self._running.terminal.close)
        for shell in (self._shell, self._parser):
            await blocking(EXECS, shell.close)

    async def _start_on_terminal(self, command: str) -> _Running:
        terminal = await self._container.aterminal(["/bin/sh", "-c", _HOLD], cols=_COLUMNS)
        try:
            await terminal.aread()
            text = f"{{ {command}\n}} <>{shlex.quote(terminal.name)} >&0 2>&0"
            return _Running(self._shell, text, terminal)
        except BaseException:
            threads(EXECS).submit(terminal.close)
            raise


class _Running:
    """A text that a shell runs, perhaps on a terminal: its output so far, and its end."""

    def __init__(
        self, shell: Shell | None = None, text: str = "", terminal: Terminal | None = None
    ) -> None:
        """Start the text in a thread; without a shell, make one that has ended."""
        self.terminal = terminal
        self._is_readable = terminal is not None
        self._data = bytearray()
        self._lock = threading.Lock()
        self._wakers: set[Callable[[], None]] = set()
        self._dropped = 0  # bytes of output since the last call, before the data
        self._result: Future[ExecResult | None] = Future()
        if shell is None:
            self._result.set_result(None)
        else:
            run = partial(
                shell.run, text, on_output=self._add, merge_output=True, output_limit_bytes=2
            )
            self._result = threads(EXECS).submit(run)
        self._result.add_done_callback(lambda _: self._wake())

    @property
    def has_ended(self) -> bool:
        return self._result.done()

    async def end(self) -> None:
        """Wait until the text has ended."""
        await self._until(lambda: self.has_ended or None)

    async def output(self, expect: Sequence[str]) -> SessionOutput:
        """Return the output until a pattern or the end; raise the error of a text whose end is
        unknown.
        """
        patterns = [(re.compile(text.encode(), re.DOTALL), text) for text in expect]
        data, found = await self._until(lambda: self._take(patterns))
        text = _ESCAPES.sub("", data.decode(errors="backslashreplace"))
        if self.terminal is not None:
            text = text.replace("\r\n", "\n")
        if found:
            return SessionOutput(text=text, found=found)
        self.close()
        result = self._result.result()
        return SessionOutput(text=text, exit_code=result.exit_code if result is not None else 0)

    def close(self) -> None:
        """Close the terminal, without waiting."""
        if self.terminal is not None:
            threads(EXECS).submit(self.terminal.close)

    async def _until(self, look: Callable[[], T | None]) -> T:
        """Return the first result of ``look`` that is not None; it looks again after new output,
        and at the end.

        A look at long output takes long. So after each one the event loop has some time for others,
        however often the command writes.
        """
        loop = asyncio.get_running_loop()
        while True:
            waiter, wake = make_waiter()
            self._wakers.add(wake)
            screen = None
            began = loop.time()
            try:
                if (seen := look()) is not None:
                    return seen
                took_s = loop.time() - began
                if self.terminal is not None and self._is_readable:
                    screen = self.terminal.fileno()
                    loop.add_reader(screen, wake)
                await waiter
            finally:
                self._wakers.discard(wake)
                if screen is not None:
                    loop.remove_reader(screen)
            if took_s > _LONG_LOOK_S:
                await asyncio.sleep(_OTHERS * took_s)

    def _take(self, patterns: _Patterns) -> tuple[bytes, str] | None:
        has_ended = self.has_ended  # before the last look at the terminal
        self._read_terminal()
        with self._lock:
            data = bytes(self._data) if patterns or has_ended else b""
            matches = [
                (match, text) for pattern, text in patterns if (match := pattern.search(data))
            ]
            if not matches and not has_ended:
                return None
            notice = (
                b"[%d bytes of output dropped here]\n" % self._dropped if self._dropped else b""
            )
            self._dropped = 0
            if matches:
                match, text = min(matches, key=lambda pair: pair[0].start())
                del self._data[: match.end()]
                return notice + data[: match.start()], text
            self._data.clear()
            return notice + data, ""

    def _read_terminal(self) -> None:
        reads = _MOST_READS if self._is_readable else 0
        while self.terminal is not None and reads > 0:
            try:
                chunk = self.terminal.read(0)
            except TimeoutError:
                return
            self._add("stdout", chunk)
            # else a program of the container has ended the terminal
            self._is_readable = bool(chunk)
            reads = reads - 1 if chunk else 0

    def _add(self, _: str, chunk: bytes) -> None:
        with self._lock:
            self._data += chunk
            if (excess := len(self._data) - _MOST_BYTES) > 0:
                del self._data[:excess]
                self._dropped += excess
        self._wake()

    def _wake(self) -> None:
        for wake in tuple(self._wakers):
            wake()
