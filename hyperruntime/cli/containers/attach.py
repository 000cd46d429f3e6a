"""Connect the terminal of ``hyperrun`` with one in a container, and restore it afterwards in every
case.
"""

from __future__ import annotations

import os
import re
import select
import signal
import termios
import threading
import tty
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType

import click

from hyperruntime.cli.command import State
from hyperruntime.cli.streams import write_whole
from hyperruntime.container import Container
from hyperruntime.exec.options import TerminalKeywords
from hyperruntime.exec.spawn.terminal import Terminal
from hyperruntime.spec import ExecResult

_CHUNK_BYTES = 4096
_SIZE = (24, 80)  # of a terminal that does not know its own, such as a serial line
# Modes that a killed program leaves in the user's terminal, and their state without a program.
# Source: xterm's ctlseqs, "DEC Private Mode Set": application cursor keys, cursor, mouse, alternate
# screens, bracketed paste. A sequence may have several.
_MODES = frozenset(b"1 25 47 1000 1002 1003 1006 1047 1049 2004".split())
_SEQUENCE = re.compile(rb"\x1b\[\?([\d;]{1,60})([hl])")
_USUAL = {b"25": b"h"}
_LONGEST = 64  # bytes of a sequence
_END_S = 2.0  # after a signal, for output that our terminal does not take
_SIGNALS = b"\x03\x1c"  # Ctrl-C and Ctrl-\, which a terminal turns into signals


def check_terminal() -> None:
    """Check that standard input is a terminal.

    Raises:
        click.UsageError: it is not.
    """
    if not os.isatty(0):
        raise click.UsageError(
            "a terminal (--tty) needs a terminal as standard input; leave --tty out in a script"
        )


def run_attached(
    state: State,
    container: Container,
    args: tuple[str, ...],
    options: TerminalKeywords,
    *,
    has_input: bool = True,
) -> ExecResult:
    """Run a command on a terminal in a container, connected with the terminal of this process;
    return its result.

    Args:
        state: the state of this program.
        container: the container.
        args: argv.
        options: options of the terminal.
        has_input: whether all keys go to the command; else only those that end it, such as Ctrl-C.

    Raises:
        HyperRuntimeError: as in :meth:`Container.terminal`.
    """
    host_term = os.environ.get("TERM")
    env: Mapping[str, str] = options.get("env") or {}
    if host_term and "TERM" not in container.spec.env:
        options["env"] = {"TERM": host_term, **env}
    options["rows"], options["cols"] = _size()
    with container.terminal(args, **options) as terminal:
        with _raw(state):
            _connect(terminal, has_input=has_input)
        return terminal.process.wait()


def _size() -> tuple[int, int]:
    try:
        size = os.get_terminal_size(0)
    except OSError:
        return _SIZE
    return size.lines or _SIZE[0], size.columns or _SIZE[1]


@contextmanager
def _raw(state: State) -> Iterator[None]:
    """Put our terminal into raw mode; restore it after the block, or at once on an ending signal.

    A second signal ends this process without its cleanup, so the thread that watches signals
    restores the terminal too.
    """
    before = termios.tcgetattr(0)

    def restore(_: int = 0) -> None:
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(0, termios.TCSANOW, before)

    with ExitStack() as stack:
        stack.callback(restore)
        if state.watch is not None:
            stack.enter_context(state.watch.listening(restore))
        tty.setraw(0, termios.TCSANOW)
        state.check_interrupted()
        yield


def _connect(terminal: Terminal, *, has_input: bool) -> None:
    """Copy keys and output until the command's end, and pass on each change of the window's
    size.
    """
    with _Output(terminal) as output, _pipe() as (resized, wake), _on_resize(wake):
        poll = select.poll()
        for descriptor in (output.over, resized, 0):
            poll.register(descriptor, select.POLLIN)
        terminal.resize(*_size())  # it may have changed since the start
        while output.over not in (ready := dict(poll.poll())):
            if resized in ready:
                os.read(resized, _CHUNK_BYTES)
                terminal.resize(*_size())
            if 0 in ready and not _pass_on_keys(terminal, None if has_input else _SIGNALS):
                poll.unregister(0)


def _pass_on_keys(terminal: Terminal, only: bytes | None) -> bool:
    """Forward typed keys to the terminal, only those in ``only`` if it is given; return whether
    more can come.
    """
    try:
        keys = os.read(0, _CHUNK_BYTES)
        if passed := keys if only is None else bytes(key for key in keys if key in only):
            terminal.write(passed)
    except BlockingIOError:  # another process made the terminal non-blocking, and took the keys
        return True
    except OSError:  # our terminal is gone, or the command has ended
        return False
    return bool(keys)


class _Output:
    """Copies a terminal's output to standard output, in a thread.

    Attributes:
        over: descriptor that is readable after the last output.
    """

    def __init__(self, terminal: Terminal) -> None:
        self.over, self._done = os.pipe2(os.O_CLOEXEC)
        self._terminal = terminal
        self._error: Exception | None = None
        self._modes: dict[bytes, bytes] = {}
        self._thread = threading.Thread(target=self._copy, name="hyperrun-terminal", daemon=True)

    def __enter__(self) -> _Output:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._terminal.close()  # ends the thread
        self._thread.join(None if kind is None else _END_S)
        os.close(self.over)
        if self._thread.is_alive():  # our terminal takes no output: whoever has it does not read
            return
        with suppress(Exception):
            write_whole(1, self._reset())
        if self._error is not None and kind is None:
            raise self._error

    def _copy(self) -> None:
        last = b""
        try:
            while chunk := self._terminal.read():
                write_whole(1, chunk)
                last = last[-_LONGEST:] + chunk
                self._note_modes(last)
        except Exception as error:  # noqa: BLE001 - raised in the main thread
            self._error = error
        finally:
            os.close(self._done)

    def _note_modes(self, output: bytes) -> None:
        for modes, letter in _SEQUENCE.findall(output):
            self._modes.update((mode, letter) for mode in modes.split(b";") if mode in _MODES)

    def _reset(self) -> bytes:
        """Return the escape sequences that reset the modes which a killed program left set."""
        left = [mode for mode, letter in self._modes.items() if letter != _USUAL.get(mode, b"l")]
        words = [b"\x1b[?%s%s" % (mode, _USUAL.get(mode, b"l")) for mode in left]
        return b"".join((*words, b"\x1b[0m\r\n")) if words else b""


@contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    read_end, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        yield read_end, write_end
    finally:
        os.close(read_end)
        os.close(write_end)


@contextmanager
def _on_resize(wake: int) -> Iterator[None]:
    """Write a byte to a pipe at each change of the window's size; a handler must not take the
    terminal's locks.
    """

    def on_change(_: int, __: FrameType | None) -> None:
        with suppress(BlockingIOError):
            os.write(wake, b"\0")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGWINCH, on_change)
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)
