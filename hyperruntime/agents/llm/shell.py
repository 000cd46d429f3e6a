"""A persistent bash: the directory, variables and functions of one command are there for the next.

The shell sources each command from a file. Output comes on one pipe and the exit code on another,
so no output of a command can be mistaken for an exit code. After each command the shell saves its
state; a new shell starts from the saved state if the old one has ended or was killed.
"""

import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import settings

# Descriptor 0 carries the number of a command, 1 its output, 2 the exit codes; commands do not see
# these three.
DRIVER = r"""
exec 3<&0 4>&2 5>&1 </dev/null >/dev/null 2>&1
cd -- "$HYPERRUN_SHELL_START"
[ -f "$HYPERRUN_SHELL/state" ] && . "$HYPERRUN_SHELL/state"
while IFS= builtin read -r -u 3 HYPERRUN_SHELL_NUMBER; do
  builtin . "$HYPERRUN_SHELL/command" </dev/null >&5 2>&1 3<&- 4>&- 5>&-
  HYPERRUN_SHELL_CODE=$?
  { builtin declare -p; builtin declare -f; builtin umask -p; builtin printf 'cd -- %q\n' "$PWD"; } \
    >"$HYPERRUN_SHELL/state.new" || builtin :
  builtin printf '%s %s\n' "$HYPERRUN_SHELL_NUMBER" "$HYPERRUN_SHELL_CODE" >&4
done
"""

_POLL_S = 0.05
_CHUNK = 1 << 16
_LAST_BYTES = 1 << 20  # how much is read from a pipe that a background process keeps filling
_ROUNDS = 100
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


class Result:
    """The result of a command: its output, its exit code (None if it was killed at its deadline),
    and a note or ''.
    """

    def __init__(self, output, exit_code, note=""):
        self.output = output
        self.exit_code = exit_code
        self.note = note


class Kept:
    """The beginning and the end of a stream of bytes, up to a limit."""

    def __init__(self, limit):
        self.half = limit // 2
        self.head, self.tail, self.total = bytearray(), bytearray(), 0

    def add(self, data):
        self.total += len(data)
        room = self.half - len(self.head)
        self.head += data[:room]
        self.tail += data[room:]
        if len(self.tail) > 4 * self.half:
            del self.tail[: -self.half]

    def text(self):
        tail = self.tail[-self.half :]
        left_out = self.total - len(self.head) - len(tail)
        if not left_out:
            return shown(self.head + tail)
        return f"{shown(self.head)}\n[... {left_out} bytes left out ...]\n{shown(tail)}"


def shown(data):
    """Return bytes as text; bytes that are not UTF-8, and control characters, become escapes."""
    text = bytes(data).decode("utf-8", "backslashreplace")
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


class Shell:
    """One shell; the first command starts it."""

    def __init__(self, workdir):
        self.folder = os.path.abspath(tempfile.mkdtemp(prefix="shell-"))
        mark = Path(self.folder).name
        self._mark = f":{mark}:".encode()
        self._env = {
            **os.environ,
            "HYPERRUN_SHELL": self.folder,
            "HYPERRUN_SHELL_START": str(workdir),
            # A shell inside a shell has the marks of both.
            "HYPERRUN_SHELL_MARKS": f"{os.environ.get('HYPERRUN_SHELL_MARKS', '')}:{mark}:",
            "PAGER": "cat",
            "GIT_PAGER": "cat",
            "GIT_TERMINAL_PROMPT": "0",
            "TERM": "dumb",
        }
        self._process = None
        self._number = 0

    def run(self, command, timeout_s):
        """Run a command and return its Result.

        Args:
            command: any number of lines of bash.
            timeout_s: the deadline in seconds; then the shell and all its processes are killed.
        """
        deadline = time.monotonic() + timeout_s
        if self._process is None or self._process.poll() is not None:
            self._start()
        self._number += 1
        os.makedirs(self.folder, mode=0o700, exist_ok=True)  # a command may have removed it
        Path(self.folder, "command").write_text(
            command + "\n", encoding="utf-8", errors="surrogateescape"
        )
        kept = Kept(settings.OUTPUT_BYTES)
        try:
            os.write(self._process.stdin.fileno(), b"%d\n" % self._number)
        except BrokenPipeError:
            pass  # the shell has ended; _wait reports that
        code = self._wait(kept, deadline)
        if code is not None:
            self._drain(kept)
            self._keep_state()
            return Result(kept.text(), code)
        return self._ended(kept, timeout_s)

    def close(self):
        """Kill all processes and remove the state."""
        self._end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self):
        self._release()
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc", "-c", DRIVER, "bash"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._env,
            cwd="/",
            bufsize=0,
            start_new_session=True,
        )
        for stream in (self._process.stdout, self._process.stderr):
            os.set_blocking(stream.fileno(), False)

    def _wait(self, kept, deadline):
        """Return the exit code, or None if the shell ends or the deadline passes first."""
        output, codes, said = self._process.stdout.fileno(), self._process.stderr.fileno(), b""
        watched = select.poll()  # select() cannot watch file descriptors from 1024 on
        for number in (output, codes):
            watched.register(number, select.POLLIN)
        while (left := deadline - time.monotonic()) > 0:
            ended = self._process.poll() is not None
            for number, _ in watched.poll(min(left, _POLL_S) * 1000):
                data = _read(number)
                if data == b"":
                    watched.unregister(number)
                elif number == output:
                    kept.add(data or b"")
                else:
                    said += data or b""
            if found := re.search(rb"(?m)^%d (\d+)\n" % self._number, said):
                return int(found[1])
            if ended:
                return None
        return None

    def _keep_state(self):
        try:
            os.replace(Path(self.folder, "state.new"), Path(self.folder, "state"))
        except FileNotFoundError:
            pass  # there was no space to write it; the older state stays

    def _drain(self, kept):
        """Read the available output: the command printed all of it before the exit code."""
        before = kept.total
        while kept.total - before < _LAST_BYTES and (data := _read(self._process.stdout.fileno())):
            kept.add(data)

    def _ended(self, kept, timeout_s):
        code = self._process.poll()
        if code is None:
            self._end(kept)
            note = (
                "ended, with all that the shell had started, because it took more than "
                f"{timeout_s:g} s; "
            )
        else:
            self._drain(kept)
            code = code if code >= 0 else 128 - code
            note = "the command ended the shell; "
        note += (
            "a new shell goes on with the directory, variables and functions from before this "
            "command"
        )
        return Result(kept.text(), code, note)

    def _end(self, kept=None):
        """Kill the shell and all processes that it started, even those that left its process
        group.
        """
        if self._process is not None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            for _ in range(_ROUNDS):
                if not self._kill_marked():
                    break
            self._process.wait()
            if kept is not None:
                self._drain(kept)
        self._release()

    def _release(self):
        if self._process is not None:
            for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
                stream.close()
            self._process.wait()
        self._process = None

    def _kill_marked(self):
        found = False
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) != os.getpid():
                try:
                    if self._mark in Path("/proc", name, "environ").read_bytes():
                        os.kill(int(name), signal.SIGKILL)
                        found = True
                except OSError:
                    pass
        return found


def _read(number):
    """Return the available bytes: b'' at the end of the stream, None if none have arrived yet."""
    try:
        return os.read(number, _CHUNK)
    except BlockingIOError:
        return None
