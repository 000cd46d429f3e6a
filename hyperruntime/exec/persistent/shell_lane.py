"""The lane of a persistent shell: the shell code that its bash reads, and a FIFO for the state
after each text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from hyperruntime.errors import SpecError
from hyperruntime.exec.exchange import EXCHANGE_TARGET
from hyperruntime.exec.exec_marks import Mark
from hyperruntime.exec.exec_script import VARIABLE, ExecRequest, quote
from hyperruntime.exec.lane import Lane
from hyperruntime.run_as import RunAs

_STATE_LIMIT = 8 * 1024**2
_CHUNK_BYTES = 1 << 16
_MARK_BYTES = 128


def check_text(text: str | bytes) -> bytes:
    """Return a shell text as bytes.

    Raises:
        SpecError: it is neither str nor bytes, or holds NUL.
    """
    if not isinstance(text, (str, bytes)):
        raise SpecError("text", text, "shell code as str or bytes")
    encoded = text if isinstance(text, bytes) else os.fsencode(text)
    if b"\0" in encoded:
        raise SpecError("text", text, "shell code without NUL")
    return encoded


def first_script(env: Mapping[str, str], workdir: str | None) -> bytes:
    """Return the script that the first bash of a shell runs before the first text.

    Args:
        env: variables to export; for those with names that bash does not accept see
            :func:`late_script`.
        workdir: working directory; None keeps the container's.
    """
    names = {name: value for name, value in env.items() if VARIABLE.fullmatch(name)}
    lines = [
        b"builtin export %s=%s" % (name.encode(), quote(value)) for name, value in names.items()
    ]
    if workdir is not None:
        said = b"{ builtin printf '0 dir\\n' >\"$_hr_lane/s\"; builtin exit 126; }"
        lines.append(b"builtin cd -- %s || %s" % (quote(workdir), said))
    return b"\n".join((*lines, b""))


def late_script(env: Mapping[str, str]) -> bytes:
    """Return the script that gives bash the variables whose names it does not accept, such as
    ``a.b``; often empty.

    Bash cannot set them, but passes on those that it starts with. So it starts again, once, behind
    env(1).

    Args:
        env: variables of the shell; only those with such names are used.
    """
    words = [
        quote(f"{name}={value}") for name, value in env.items() if not VARIABLE.fullmatch(name)
    ]
    if not words:
        return b""
    again = b'bash --noprofile --norc -c "$BASH_EXECUTION_STRING" bash'
    start = b"_hr_lane=$_hr_lane _hr_late=1 builtin exec env %s %s" % (b" ".join(words), again)
    return b"[[ ${_hr_late-} ]] || %s\nbuiltin unset -v _hr_late\n" % start


def next_script(state: bytes) -> bytes:
    """Return the script that a later bash of a shell runs first: it restores the state that the
    previous bash left.
    """
    return b"builtin unset -v $(builtin compgen -e)\n" + state


class ShellLane(Lane):
    """The lane of one bash process; a persistent shell may need several in turn.

    Attributes:
        state: descriptor where bash writes its state, a script that makes another bash like it.
        left: the last complete and valid state, or None; a state above 8 MiB is skipped.
    """

    program = "shell"
    _max_rest_bytes = 0

    def __init__(
        self, exchange: str, mark: Mark, user: RunAs | None = None, *, checks: bool = False
    ) -> None:
        """Make the directory; see :class:`Lane`. The caller then hands over the first script."""
        super().__init__(exchange, mark, user, checks=checks)
        self.left: bytes | None = None
        self._partial = bytearray()
        self._searched = 0
        self._before: bytes | None = None
        # text numbers: of `left`; states from `_undone` on are invalid
        self._heard = 0
        self._undone = 1 << 62
        self._mark = re.compile(b"\n# end %s ([0-9]{1,18})\n" % re.escape(self.name.encode()))
        try:
            self._make_fifo("d")
            self.state = self._keep(self._open_fifo("d", os.O_RDWR))
        except BaseException:
            self.close()
            raise

    def prepare(self, body: bytes, mark: Mark, env: Mapping[str, str]) -> None:
        """Write the script that bash reads first.

        Args:
            body: script from :func:`first_script` or :func:`next_script`.
            env: variables of the shell, for :func:`late_script`.
            mark: mark of the processes that the script starts.

        Raises:
            OSError: no space.
        """
        ulimit = b"builtin ulimit %s\n" % mark.bash_options
        end = b"builtin trap '{ _hr_leave \"$@\"; } 2>/dev/null' EXIT\nbuiltin trap 'builtin exit 130' INT\n"
        # the body may come from a bash with another lane
        lane_dir = quote(f"{EXCHANGE_TARGET}/{self.name}")
        ready = b"_hr_lane=%s _hr_open=\nbuiltin printf '0 ready\\n' >\"$_hr_lane/s\"\n" % lane_dir
        try:
            self._write_script(late_script(env) + self._prologue + ulimit + end + body + ready)
        except BaseException:
            self.close()
            raise

    def begin_text(self, request: ExecRequest, mark: Mark, exit_code: int) -> None:
        """Hand bash its next text; raises the errors of :meth:`Lane.start`.

        Args:
            request: the text, and its streams.
            mark: mark of the processes that it starts.
            exit_code: value that it sees in ``$?``.
        """
        source = b"i" if request.has_input else b"/dev/null"
        errors = b"o" if request.merge_output else b"e"
        line = b"%d %s %d %s %s\n" % (self.sequence, mark.bash_options, exit_code, errors, source)
        self._write_script(line + request.args[0])
        os.write(self.go, b"\n")

    def undo_text(self) -> None:
        """Restore the state from before the current text.

        A state that still arrives for this text is skipped: bash may reach its end while its
        processes are killed.
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
            self._add(chunk)
            if len(chunk) < _CHUNK_BYTES:
                return

    def _add(self, chunk: bytes) -> None:
        """Take the states that the next bytes complete; each byte is searched about once."""
        self._partial += chunk
        while end := self._mark.search(self._partial, max(0, self._searched - _MARK_BYTES)):
            state = bytes(self._partial[: end.start()])
            number = int(end[1])
            length = end.end()
            del self._partial[:length]
            self._searched = 0
            self._take(state, number)
        if len(self._partial) > 2 * _STATE_LIMIT:  # the state is too large, so only its end matters
            del self._partial[_STATE_LIMIT + 1 : -_MARK_BYTES]
        self._searched = len(self._partial)

    def _take(self, state: bytes, number: int) -> None:
        if len(state) > _STATE_LIMIT or number >= self._undone:
            return
        if number != self._heard:
            self._before = self.left
        self.left = state + b"\n"
        self._heard = number
