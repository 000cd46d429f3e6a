"""Git of the host on repositories, run directories and patterns that somebody else wrote, on a real
engine.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from hyperruntime.cli import main
from hyperruntime.host.process import wait_until
from hyperruntime.loop.run_files.archive import load_run
from hyperruntime.testing import make_agent_repository
from tests.processes import end

pytestmark = pytest.mark.engine

# Git needs exponential time to compare these patterns with paths below these directories.
_SLOW_PATTERNS = """
import os
for name, rest in ((".gitignore", ""), (".gitattributes", " text")):
    with open(name, "w") as file:
        file.write("**/a/" * 9 + "x" + rest + "\\n")
os.makedirs("a/" * 90)
open("a/" * 90 + "first", "w").close()
improve()  # and no git of the agent: by_tree
"""
_BELOW = "open('a/' * 90 + 'second', 'w').close()\nimprove()  # by_tree"


def generate(runtime_name: str, image: str, agent: Path, *more: str) -> list[str]:
    named = ["--domains", "circle_packing", "--agent", str(agent), "--image", image, "--seed", "3"]
    place = ["--output-dir-parent", str(agent.parent / "out"), "--run-id", f"{agent.parent.name}.r"]
    return ["--runtime", runtime_name, "generate", *named, *place, "--eval-samples", "1", *more]


def lose_head(git_dir: Path, program: Path) -> None:
    """Make a repository a partial clone that lacks all objects, and whose remote names a
    program.
    """
    shutil.rmtree(git_dir / "objects")
    (git_dir / "objects").mkdir()
    for name, value in (
        ("core.repositoryFormatVersion", "1"),
        ("extensions.partialClone", "e"),
        ("remote.e.promisor", "true"),
        ("remote.e.url", str(program.parent)),
        ("remote.e.uploadpack", str(program)),
    ):
        subprocess.run(
            ["git", "config", "--file", str(git_dir / "config"), name, value], check=True
        )


def test_a_repository_and_a_received_run_make_git_run_no_program(
    runtime_name: str, base_image: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program, mark = tmp_path / "program", tmp_path / "mark"
    program.write_text(f"#!/bin/sh\ntouch '{mark}'\n")
    program.chmod(0o755)
    agent = make_agent_repository(tmp_path / "agent", {1: "improve()"})
    command = generate(runtime_name, base_image, agent, "--max-generation", "1")
    assert main(command) == 0
    run_dir = tmp_path / "out" / f"generate_{tmp_path.name}.r"
    lose_head(run_dir / "repository.git", program)
    engine = ["--runtime", runtime_name]
    uses = (
        ["export", str(run_dir), "1", str(tmp_path / "exported")],
        [*engine, "evaluate", str(run_dir), "1", "--split", "train"],
        [*engine, "resume", str(run_dir), "--max-generation", "2"],
    )
    for use in uses:
        capsys.readouterr()
        assert main(use) != 0
        assert "repository.git' was changed by another program" in capsys.readouterr().err
    lose_head(agent / ".git", program)
    assert main([*command[:-1], "2", "--run-id", "second"]) != 0
    assert "is a partial clone" in capsys.readouterr().err
    assert not mark.exists()


def test_patterns_that_keep_git_busy_for_ever_cost_a_run_nothing(
    runtime_name: str, base_image: str, tmp_path: Path
) -> None:
    agent = make_agent_repository(
        tmp_path / "agent", {1: _SLOW_PATTERNS, 2: _BELOW, 3: "improve()  # by_tree"}
    )
    latest = ("--parent-selection", "latest", "--max-generation")
    assert main(generate(runtime_name, base_image, agent, *latest, "2")) == 0
    run_dir = tmp_path / "out" / f"generate_{tmp_path.name}.r"
    assert main(["--runtime", runtime_name, "resume", str(run_dir), "--max-generation", "3"]) == 0
    assert [record.failure for record in load_run(run_dir).generations] == [None] * 4
    assert main(["export", str(run_dir), "3", str(tmp_path / "exported")]) == 0
    assert (tmp_path / "exported" / ("a/" * 90) / "second").is_file()


def naps(argument: str) -> list[psutil.Process]:
    return [
        one for one in psutil.process_iter(["cmdline"]) if argument in (one.info["cmdline"] or ())
    ]


# after an interrupt, hyperrun waits 30 s for what it began; see tests/machine/git/test_command.py
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_git_is_left_when_hyperrun_ends_while_it_runs(
    runtime_name: str, base_image: str, tmp_path: Path, number: signal.Signals
) -> None:
    real, nap = shutil.which("git"), f"98765.{os.getpid()}"
    programs = tmp_path / "programs"
    programs.mkdir()
    wrapper = (
        f'#!/bin/sh\ncase "$*" in *fast-import*) sleep {nap} & wait;; esac\nexec {real} "$@"\n'
    )
    (programs / "git").write_text(wrapper)
    (programs / "git").chmod(0o755)
    agent = make_agent_repository(tmp_path / "agent", {1: "improve()  # by_tree"})
    command = generate(runtime_name, base_image, agent, "--max-generation", "1")
    env = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    process = subprocess.Popen([sys.executable, "-P", "-m", "hyperruntime.cli", *command], env=env)
    try:
        assert wait_until(lambda: bool(naps(nap)) or process.poll() is not None, 300, 0.2)
        assert process.poll() is None
        process.send_signal(number)
        process.wait(300)
        assert wait_until(lambda: not naps(nap), 120, 0.2)
    finally:
        process.kill()
        end(naps(nap))
