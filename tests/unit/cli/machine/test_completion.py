"""The completion is installed by one command, and Tab then completes in the real shells."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from hyperruntime.storage.atomic import write_atomic

SHELLS = {"bash": ["bash", "-i"], "zsh": ["zsh", "-i"], "fish": ["fish", "-i"]}
STARTUP = {"bash": ".bashrc", "zsh": ".zshrc"}
PROMPT = "READY> "
LONGEST_S = 120


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a user with an empty home directory and the program, under both
    names, on PATH.
    """
    programs = tmp_path / "bin"
    programs.mkdir()
    script = (
        f"#!{sys.executable}\nimport sys\nfrom hyperruntime.cli import main\nsys.exit(main())\n"
    )
    for name in ("hyperrun", "hyperruntime"):
        (programs / name).write_text(script)
        (programs / name).chmod(0o755)
    (tmp_path / "home").mkdir()
    path = f"{programs}:{os.environ['PATH']}"
    return {"HOME": str(tmp_path / "home"), "PATH": path, "TERM": "dumb", "LANG": "C.UTF-8"}


def test_a_private_start_up_file_is_private_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, modes = tmp_path / "startup", list[int]()
    path.write_text("export KEY=secret\n")
    replace = os.replace

    def replaced(old: Path, new: Path) -> None:
        modes.append(os.stat(old).st_mode & 0o777)
        replace(old, new)

    monkeypatch.setattr(os, "replace", replaced)
    (tmp_path / ".startup.partial").write_text("of a process that was killed")
    write_atomic(path, b"new", mode=0o600)
    assert (modes, path.read_bytes(), path.stat().st_mode & 0o777) == ([0o600], b"new", 0o600)


def hyperrun(env: Mapping[str, str], *args: str, code: int = 0) -> str:
    done = subprocess.run(
        ["hyperrun", *args], env=env, capture_output=True, text=True, timeout=LONGEST_S
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


class Terminal:
    """A shell at a terminal, into which a person types."""

    def __init__(self, master: int) -> None:
        self._master, self.shown = master, ""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait_for(self, pattern: str) -> str:
        """Read until the pattern is in the text that was shown since the last match; return the
        match.
        """
        deadline = time.monotonic() + LONGEST_S
        while not (found := re.search(pattern, self.shown)):
            ready, _, _ = select.select(
                [self._master], [], [], max(0.0, deadline - time.monotonic())
            )
            assert ready, f"{pattern!r} was not shown: {self.shown!r}"
            self.shown += os.read(self._master, 65536).decode(errors="replace")
        self.shown = self.shown[found.end() :]
        return found[0]


@contextmanager
def terminal(shell: str, env: Mapping[str, str]) -> Iterator[Terminal]:
    child, master = pty.fork()
    if child == 0:
        os.chdir(env["HOME"])
        os.execvpe(SHELLS[shell][0], SHELLS[shell], dict(env))
    try:
        yield Terminal(master)
    finally:
        os.close(master)  # the shell gets SIGHUP
        os.kill(child, 9)
        os.waitpid(child, 0)


@pytest.mark.parametrize("shell", SHELLS)
def test_tab_completes_a_command_and_its_options_in_a_new_shell(
    shell: str, home: dict[str, str]
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(
            f"NOT RUN: {shell} is not on this machine; scripts/setup test installs it as root"
        )
    said = hyperrun({**home, "SHELL": f"/usr/bin/{shell}"}, "completion", "install")
    assert f"start a new {shell} to use it" in said
    with terminal(shell, home) as screen:
        screen.type("echo started-$((1+1))\n" if shell != "fish" else "echo started-(math 1+1)\n")
        screen.wait_for("started-2")
        screen.type("hyperrun gener\t")
        screen.wait_for("hyperrun generate ?")
        screen.type("--max-gen\t")
        screen.wait_for("eration")
        screen.type("; hyperruntime gener\t")
        screen.wait_for("hyperruntime generate ?")


def test_installing_again_and_removing_leave_the_rest_of_the_start_file(
    home: dict[str, str], tmp_path: Path
) -> None:
    real = tmp_path / "settings" / "bashrc"
    real.parent.mkdir()
    real.write_bytes(b"export A=1\nalias x='\xff'\n")
    real.chmod(0o600)
    startup = Path(home["HOME"], ".bashrc")
    startup.symlink_to(real)
    hyperrun(home, "completion", "install", "bash")
    once = real.read_bytes()
    assert once.startswith(b"export A=1\nalias x='\xff'\n")
    hyperrun(home, "completion", "install", "bash")
    assert real.read_bytes() == once
    assert (startup.is_symlink(), real.stat().st_mode & 0o777) == (True, 0o600)
    hyperrun(home, "completion", "remove", "bash")
    assert real.read_bytes() == b"export A=1\nalias x='\xff'\n"
    for shell in ("zsh", "fish"):
        hyperrun(home, "completion", "install", shell)
        hyperrun(home, "completion", "remove", shell)
    left = [path for path in Path(home["HOME"]).rglob("*") if path.is_file() and path != startup]
    assert [path for path in left if path.read_bytes()] == []


def test_an_unknown_shell_is_refused_with_the_known_ones(home: dict[str, str]) -> None:
    said = hyperrun({**home, "SHELL": "/bin/tcsh"}, "completion", "install", code=2)
    assert (
        "the shell 'tcsh' is not supported; name one of bash, zsh, fish: `hyperrun completion "
        "install bash`" in said
    )


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_each_shell_is_printed(shell: str, home: dict[str, str]) -> None:
    script = hyperrun(home, "completion", "show", shell)
    assert script.count(f"_HYPERRUN_COMPLETE={shell}_complete") == 2


def test_commands_are_completed_without_importing_them(home: dict[str, str]) -> None:
    asked = {
        **home,
        "_HYPERRUN_COMPLETE": "bash_complete",
        "COMP_WORDS": "hyperrun ",
        "COMP_CWORD": "1",
    }
    script = (
        "import sys; from hyperruntime.cli import main; main()\nprint(*sorted(name for name in "
        "sys.modules if name.startswith('hyperruntime.cli.')), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], env=asked, capture_output=True, text=True)
    assert {"plain,generate", "plain,doctor", "plain,completion"} <= set(done.stdout.split())
    loaded = done.stderr.split()
    assert "hyperruntime.cli.app" in loaded
    assert not [
        name
        for name in loaded
        if name.startswith(("hyperruntime.cli.loop.", "hyperruntime.cli.machine."))
    ]
