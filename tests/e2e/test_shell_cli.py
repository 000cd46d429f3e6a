"""``hyperrun shell`` and ``hyperrun exec -it`` as a person uses them: in tmux, which stands for the
terminal window.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import hyperruntime as hr
from hyperruntime.host.process import wait_until
from tests.command import hyperrun
from tests.conftest import EngineCommand, ProcessTable
from tests.doubles.window import WAIT_S, Window

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("base_image")]


@pytest.fixture
def window(tmp_path: Path, runtime_name: str) -> Iterator[Window]:
    """Return a window with a shell of the host."""
    opened = Window(tmp_path, runtime_name)
    yield opened
    opened.close()


def test_a_shell_has_an_editor_ctrl_c_the_windows_size_and_an_exit_code(
    window: Window, busybox_image: str
) -> None:
    window.start("shell", busybox_image, "--env", "PS1=inside> ")
    window.expect("inside>")
    window.type("stty size; tty", "Enter")
    window.expect("30 100\n/dev/pts/0")
    window.type("vi /tmp/text", "Enter")
    window.expect("~")
    window.type("iin the editor")
    window.expect("in the editor")
    window.type("", "Escape")
    # A key right after Escape would be one key with it. The last line is that of busybox, or of vim
    # with its cursor.
    assert wait_until(
        lambda: re.search(r"- /tmp/text|1,13 +All$", window.text().rstrip()) is not None,
        WAIT_S,
        0.05,
    )
    window.type(":wq", "Enter")
    window.expect("inside>")
    window.type("clear; sed 's/the/an/' /tmp/text", "Enter")
    window.expect("in an editor")
    window.type("echo begun; sleep 300 || echo code $?", "Enter")
    window.expect("\nbegun")  # before, Ctrl-C would be a letter for the shell's editor
    window.type("", "C-c")
    window.type("echo still $((40 + 2))", "Enter")
    window.expect("still 42")
    window.resize(91, 27)
    window.type("stty size", "Enter")
    window.expect("27 91")
    window.type("exit 9", "Enter")
    window.end(9)


@pytest.mark.parametrize("how", ["kill -9 of PID 1", "removal"])
def test_the_terminal_is_sane_after_the_container_was_killed(
    window: Window,
    runtime: hr.Runtime,
    engine_command: EngineCommand | ProcessTable,
    busybox_image: str,
    how: str,
) -> None:
    """The program has another screen and a hidden cursor, as an editor has."""
    window.start("shell", busybox_image)
    window.expect_prompt()
    window.type("printf '\\033[?1049h\\033[?25lfull''screen'; cat", "Enter")
    window.expect("fullscreen")
    assert not window.is_plain()
    own = [owned.record.id for owned in runtime.containers() if owned.owner.pid == window.pid()]
    assert len(own) == 1
    if how == "removal":
        engine_command.remove(own[0])
    else:
        os.kill(engine_command.init_pid(own[0]), signal.SIGKILL)
    window.end(1)
    window.expect("the container ended")


def test_the_terminal_is_sane_after_sigterm(window: Window, busybox_image: str) -> None:
    window.start("exec", "-it", "--image", busybox_image, "--", "vi", "/tmp/text")
    window.expect("~")
    os.kill(window.pid(), 15)
    window.end(143)


def test_exec_it_passes_on_keys_and_the_exit_code_and_keeps_its_deadline(
    window: Window, busybox_image: str
) -> None:
    script = "echo TERM=$TERM; read -r word; echo got $word; exit 7"
    window.start("exec", "-it", "--image", busybox_image, "--", "sh", "-c", script)
    window.expect("TERM=screen")
    window.type("keys", "Enter")
    window.expect("got keys")
    window.end(7)
    window.type("clear", "Enter")
    window.start("exec", "-t", "--timeout", "1s", "--image", busybox_image, "--", "sleep", "300")
    window.end(124)


def test_a_terminal_without_input_is_interrupted_and_its_keys_reach_no_shell(
    window: Window, busybox_image: str
) -> None:
    script = "stty size; read -r word; echo got $word"
    window.start("exec", "-t", "--image", busybox_image, "--", "sh", "-c", script)
    window.expect("30 100")
    window.type("echo un''wanted", "Enter")
    window.type("", "C-c")
    window.end(130)
    assert "unwanted" not in window.text()
    assert "got" not in window.text().partition("30 100")[2]


def test_a_terminal_needs_a_terminal() -> None:
    for args in (("shell",), ("exec", "-it", "--", "true")):
        done = hyperrun(*args)
        assert (done.returncode, b"needs a terminal" in done.stderr) == (2, True)
