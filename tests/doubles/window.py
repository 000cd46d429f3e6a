"""A window of tmux, which stands for the terminal window of a person."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

from hyperruntime.host.process import wait_until
from tests.command import program

WAIT_S = 60.0


class Window:
    """A shell of the host in a window of tmux."""

    def __init__(
        self, directory: Path, runtime_name: str, *, cols: int = 100, rows: int = 30
    ) -> None:
        self._socket, self._runtime = str(directory / "tmux"), runtime_name
        self.modes = directory / "modes"
        shell = "env -u COLUMNS -u LINES PS1='host> ' TERM=screen sh"
        size = ("-x", str(cols), "-y", str(rows))
        self._tmux("-f", "/dev/null", "new-session", "-d", *size, "-c", str(directory), shell)
        self.expect("host>")

    def _tmux(self, *args: str) -> str:
        done = subprocess.run(
            ["tmux", "-S", self._socket, *args], capture_output=True, timeout=60, check=False
        )
        return done.stdout.decode()

    def type(self, text: str, *keys: str) -> None:
        """Type a text, then press keys by their names in tmux."""
        if text:
            self._tmux("send-keys", "-l", text)
        if keys:
            self._tmux("send-keys", *keys)

    def text(self) -> str:
        return self._tmux("capture-pane", "-p", "-J")

    def lines(self) -> list[str]:
        """Return all lines, those that have scrolled off the screen too, as they were before the
        window broke them.
        """
        return [
            line.rstrip() for line in self._tmux("capture-pane", "-p", "-J", "-S", "-").splitlines()
        ]

    def expect(self, text: str) -> None:
        assert wait_until(lambda: text in self.text(), WAIT_S, 0.05), (
            f"{text!r} is not in:\n{self.text()}"
        )

    def resize(self, cols: int, rows: int) -> None:
        self._tmux("resize-window", "-x", str(cols), "-y", str(rows))

    def start(self, *args: str) -> None:
        """Run ``hyperrun``; afterwards :meth:`end` finds its exit code."""
        command = shlex.join([program(), "--runtime", self._runtime, *args])
        self.type(
            f"stty -g >modes; {command}; echo rc=$? same=$([ $(stty -g) = $(cat modes) ] && "
            "echo yes)",
            "Enter",
        )

    def expect_prompt(self) -> None:
        """Wait for the prompt of a shell in a container."""
        assert wait_until(lambda: self.text().rstrip().endswith(("#", "$")), WAIT_S, 0.05), (
            self.text()
        )

    def end(self, code: int) -> None:
        """Expect an exit code of ``hyperrun``, and a terminal as it was before."""
        self.expect(f"rc={code} same=yes")
        assert self.is_plain()
        self.type("echo a''live", "Enter")
        self.expect("alive")

    def is_plain(self) -> bool:
        """Whether the window shows its usual screen and its cursor."""
        return self._tmux("display-message", "-p", "#{alternate_on} #{cursor_flag}").split() == [
            "0",
            "1",
        ]

    def pid(self) -> int:
        """Return the pid of the running ``hyperrun``."""
        shell = int(self._tmux("list-panes", "-F", "#{pane_pid}"))
        children = Path(f"/proc/{shell}/task/{shell}/children").read_text().split()
        return int(children[0])

    def close(self) -> None:
        self._tmux("kill-server")
