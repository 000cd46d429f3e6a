"""The standard streams of ``hyperrun``: a lost message ends nothing, a result that cannot be
written is an error.

Results go to standard output, everything else to standard error. Every command loads this module.
"""

from __future__ import annotations

import errno
import io
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from _typeshed import ReadableBuffer

_PATIENCE_S = 1.0  # with a terminal or a pipe that nobody reads, when the process is to end
_CLOSED = -1  # no file has this descriptor
# writing to a closed standard output stays an error
_MODES = {0: os.O_RDONLY, 1: os.O_RDONLY, 2: os.O_WRONLY}


class OutputError(Exception):
    """Standard output cannot be written.

    Attributes:
        exit_code: 141 (128 + SIGPIPE, as for git and coreutils) if the reader is gone, as in
            ``hyperrun ... | head -1``; else 1.
        is_quiet: whether the reader is gone, so that no message is printed.
    """

    def __init__(self, error: OSError) -> None:
        """Make the message from the reason."""
        self.is_quiet = error.errno == errno.EPIPE
        self.exit_code = 128 + signal.SIGPIPE if self.is_quiet else 1
        why = "standard output is closed" if error.errno == errno.EBADF else error.strerror
        super().__init__(f"cannot write the output: {why}")


def write_whole(descriptor: int, chunk: ReadableBuffer) -> None:
    """Write bytes to a descriptor, also to a non-blocking one.

    Raises:
        OutputError: they cannot be written.
    """
    view = memoryview(chunk).cast("B")
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:  # another process on the same terminal made it non-blocking
            select.select([], [descriptor], [])
        except OSError as error:
            raise OutputError(error) from None


def takes_output(descriptor: int, wait_s: float = 0.0) -> bool:
    """Return whether a descriptor takes output now or soon; not if it is a terminal or a pipe that
    nobody reads.

    Args:
        descriptor: the descriptor.
        wait_s: how long to wait for it, in seconds.
    """
    ready = select.poll()
    ready.register(descriptor, select.POLLOUT)
    return bool(ready.poll(int(wait_s * 1000)))


class _Output(io.RawIOBase):
    """Writes to a descriptor. After an error it discards everything; a stream of results raises the
    first error.
    """

    def __init__(self, descriptor: int, *, results: bool) -> None:
        super().__init__()
        self.error: OutputError | None = None
        self._descriptor = descriptor
        self._results = results
        self.patience_s: float | None = None  # None: as long as it takes

    def fileno(self) -> int:
        if self._descriptor == _CLOSED:
            raise io.UnsupportedOperation("the stream is closed")
        return self._descriptor

    def isatty(self) -> bool:
        return self._descriptor != _CLOSED and os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True

    def write(self, chunk: ReadableBuffer, /) -> int:
        if self.error is None:
            try:
                if self.patience_s is not None and not takes_output(
                    self._descriptor, self.patience_s
                ):
                    raise OutputError(OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)))
                write_whole(self._descriptor, chunk)
            except OutputError as error:
                self.error = error
                if self._results:
                    raise
        return memoryview(chunk).nbytes


@contextmanager
def guarded_streams() -> Iterator[None]:
    """Make errors of standard output an :class:`OutputError`, and ignore those of standard error,
    inside the block.

    A closed descriptor 0, 1 or 2 is opened on /dev/null, so that no file of the program gets its
    number. Streams that a caller replaced do not change.
    """
    _occupy_closed()
    before = sys.stdout, sys.stderr
    if sys.stdout is sys.__stdout__:
        sys.stdout = _text(sys.stdout, 1)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _text(sys.stderr, 2)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def hurry() -> None:
    """From now on drop messages that standard error does not take: they would keep the process from
    ending.
    """
    raw = getattr(getattr(sys.stderr, "buffer", None), "raw", None)
    if isinstance(raw, _Output):
        raw.patience_s = _PATIENCE_S


def finish_output() -> None:
    """Write what standard output still holds.

    Raises:
        OutputError: it cannot be written, or an earlier result could not.
    """
    sys.stdout.flush()
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    if isinstance(raw, _Output) and raw.error is not None:
        raise raw.error


def without_colour() -> bool:
    """Return whether the user wants no colours.

    Source: https://no-color.org.
    """
    return bool(os.environ.get("NO_COLOR"))


def on_end_of_input(loop: AbstractEventLoop, call: Callable[[], object]) -> None:
    """Call a function on an event loop when standard input ends, as it does when the process that
    holds it ends.
    """

    def read() -> None:
        with suppress(OSError):
            while os.read(0, 1024):
                pass
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(call)

    threading.Thread(target=read, name="hyperrun-parent", daemon=True).start()


def _text(stream: TextIO | None, descriptor: int) -> TextIO:
    """Return a text stream like ``stream``, which is None if it was closed when the program
    started.
    """
    results = descriptor == 1
    if stream is None:
        return io.TextIOWrapper(
            io.BufferedWriter(_Output(_CLOSED, results=results)), "utf-8", "backslashreplace"
        )
    buffer = io.BufferedWriter(_Output(descriptor, results=results))
    # a program that reads the results gets them faster in large pieces
    lines = not results or stream.isatty()
    return io.TextIOWrapper(buffer, stream.encoding, stream.errors, line_buffering=lines)


def _occupy_closed() -> None:
    for descriptor, mode in _MODES.items():
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, mode)  # the lowest free number
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            os.set_inheritable(descriptor, True)
