"""Write an :class:`InputSource` to a command's standard input, as fast as the command reads."""

from __future__ import annotations

import fcntl
import os
import select

from hyperruntime.exec.input_source import InputSource
from hyperruntime.exec.lane import Lane

_PIPE_BYTES = 1 << 20
_F_SETPIPE_SZ = 1031


class Stdin:
    """The standard input of one running command, driven by the poll loop of its exec."""

    def __init__(self, source: InputSource, lane: Lane, poll: select.poll) -> None:
        """Prepare; nothing is registered with the poll loop before :meth:`start`.

        Args:
            source: source of the input.
            lane: lane of the command.
            poll: poll object of the exec's loop.
        """
        self._source, self._lane, self._poll = source, lane, poll
        self._pending = memoryview(b"")

    def start(self) -> None:
        """Start writing; called when the command has opened its input."""
        if self._lane.input is None or (descriptor := self._lane.hand_over_input()) is None:
            return
        widen(descriptor)
        if self._source.is_ready:
            self._poll.register(descriptor, select.POLLOUT)
        elif self._source.descriptor is not None:
            self._poll.register(self._source.descriptor, select.POLLIN)

    def on_event(self, descriptor: int, event: int) -> None:
        """Handle a poll event; events of other descriptors are ignored.

        Raises:
            CallerError: the input source failed.
        """
        if descriptor == self._lane.input:
            self._write(descriptor, event)
        elif descriptor == self._source.descriptor:
            self._fill(descriptor)

    def _fill(self, descriptor: int) -> None:
        """Read one chunk, then wait until the command can read it."""
        try:
            self._pending = memoryview(self._source.read())
        except BlockingIOError:
            return
        self._poll.unregister(descriptor)
        if not self._pending:
            self._end()
        elif self._lane.input is not None:
            self._poll.register(self._lane.input, select.POLLOUT)

    def _write(self, target: int, event: int) -> None:
        if not self._pending:
            self._pending = memoryview(self._source.read())
        if not self._pending or event & (select.POLLERR | select.POLLNVAL):
            self._end()
            return
        try:
            self._pending = self._pending[os.write(target, self._pending) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._end()
            return
        if not self._pending and not self._source.is_ready and self._source.descriptor is not None:
            self._poll.unregister(target)
            self._poll.register(self._source.descriptor, select.POLLIN)

    def _end(self) -> None:
        for descriptor in (self._lane.input, self._source.descriptor):
            if descriptor is not None:
                try:
                    self._poll.unregister(descriptor)
                except KeyError:
                    pass
        self._lane.close_input()


def widen(descriptor: int) -> None:
    """Enlarge the buffer of a FIFO to 1 MiB if the kernel allows it."""
    try:
        fcntl.fcntl(descriptor, _F_SETPIPE_SZ, _PIPE_BYTES)
    except OSError:
        pass
