"""The lane of a persistent shell: a lane with one more FIFO, for the state after each text."""

from __future__ import annotations

import os
import re

from hyperruntime.exec.exchange_dir import EXCHANGE_TARGET
from hyperruntime.exec.exec_marks import Mark
from hyperruntime.exec.lane import Lane
from hyperruntime.exec.persistent.script import begin_script, text_line
from hyperruntime.run_as import RunAs

_STATE_LIMIT = 8 * 1024**2
_CHUNK_BYTES = 1 << 16
_MARK_BYTES = 128


class ShellLane(Lane):
    """The lane of one bash process; a persistent shell may need several in turn.

    Attributes:
        state: descriptor where bash writes its state, a script that makes another bash like it.
        left: the last complete and valid state, or None; a state above 8 MiB is skipped.
    """

    program = "shell"
    _max_rest_bytes = 0

    def __init__(self, exchange: str, mark: Mark, user: RunAs | None = None, *, checks: bool = False) -> None:
        """Make the directory; see :class:`Lane`. The caller then hands over the first script."""
        super().__init__(exchange, mark, user, checks=checks)
        self.left: bytes | None = None
        self._partial = bytearray()
        self._before: bytes | None = None
        self._heard, self._undone = 0, 1 << 62  # text numbers: of `left`; states from `_undone` on are invalid
        self._mark = re.compile(b"\n# end %s ([0-9]{1,18})\n" % re.escape(self.name.encode()))
        try:
            self._make_fifo("d")
            self.state = self._keep(self._open_fifo("d", os.O_RDWR))
        except BaseException:
            self.close()
            raise

    def prepare(self, body: bytes, mark: Mark) -> None:
        """Write the script that bash reads first.

        Args:
            body: script that bash runs.
            mark: mark of the processes that the script starts.

        Raises:
            OSError: no space.
        """
        try:
            self._write_script(begin_script(self._prologue, body, f"{EXCHANGE_TARGET}/{self.name}", mark))
        except BaseException:
            self.close()
            raise

    def begin_text(self, text: bytes, mark: Mark, exit_code: int, *, has_input: bool) -> None:
        """Hand bash its next text; raises the errors of :meth:`Lane.start`.

        Args:
            text: shell code.
            mark: mark of the processes that it starts.
            exit_code: value that it sees in ``$?``.
            has_input: whether it reads the lane's input; else ``/dev/null``.
        """
        self._write_script(text)
        os.write(self.go, text_line(self.sequence, mark, exit_code, has_input=has_input))

    def undo_text(self) -> None:
        """Restore the state from before the current text.

        A state that still arrives for this text is skipped: bash may reach its end while its processes are killed.
        """
        self.hear_state()
        self._undone = self.sequence
        if self._heard >= self.sequence:
            self.left = self._before

    def hear_state(self) -> None:
        """Read the states that have arrived; each names the number of its text."""
        while True:
            try:
                chunk = os.read(self.state, _CHUNK_BYTES)
            except BlockingIOError:
                return
            self._partial += chunk
            *whole, rest = self._mark.split(bytes(self._partial))
            for state, number in zip(whole[::2], whole[1::2], strict=True):
                self._take(state, int(number))
            if whole or len(rest) > 2 * _STATE_LIMIT:
                self._partial = bytearray(rest[: _STATE_LIMIT + 1] + rest[-_MARK_BYTES:] if not whole else rest)

    def _take(self, state: bytes, number: int) -> None:
        if len(state) > _STATE_LIMIT or number >= self._undone:
            return
        if number != self._heard:
            self._before = self.left
        self.left, self._heard = state + b"\n", number
