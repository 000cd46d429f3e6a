"""No command, and no process that a command starts, runs code of the directory in which the command
is called.

An agent may have written that directory: ``hyperrun export`` makes one. A user may get one from
somebody else.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
import sysconfig
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import attrs
import click
import psutil
import pytest

from hyperruntime.cli.app import app
from hyperruntime.host.process import run_process
from hyperruntime.registry import load_driver
from hyperruntime.runtime import Runtime
from hyperruntime.testing.model import says, scripted_model
from tests.doubles.fake_runtime import make_agent_repository
from tests.doubles.hostile_directory import PLUGIN, HostileDirectory, make_hostile_directory
from tests.e2e.rollout_world import WORLD
from tests.params import first_quick

pytestmark = pytest.mark.engine

HYPERRUN = str(Path(sysconfig.get_path("scripts"), "hyperrun"))
MARK = "HYPERRUNTIME_TEST_MARK"
# Python has read PYTHONPATH before `hyperrun` begins; so here only the processes that `hyperrun`
# starts meet the value.
INSIDE = (
    "import os, sys; from hyperruntime.cli import main; os.chdir(sys.argv[1]); "
    "os.environ['PYTHONPATH'] = sys.argv[2]; sys.exit(main(sys.argv[3:]))"
)
VALUES = ("set", "not set", "empty")  # of PYTHONPATH


@attrs.frozen
class Made:
    """What the commands are called with.

    Attributes:
        here: the current directory of the commands.
        folder: for what the commands write.
        words: for each word in braces of :data:`COMMANDS`, its value.
    """

    here: HostileDirectory
    folder: Path
    words: Mapping[str, str]

    def env(self, command: str, value: str) -> dict[str, str]:
        """Return the environment of a command, with one of :data:`VALUES`."""
        kept = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
        path = {"set": {"PYTHONPATH": str(self.folder)}, "not set": {}, "empty": {"PYTHONPATH": ""}}
        if command.startswith("cluster"):  # else `down` would end a cluster of another test
            kept["XDG_CACHE_HOME"] = str(self.folder / "cache")
        return {**kept, **path[value], "XDG_STATE_HOME": str(self.folder / "state")}


# command: its arguments. They make it go as far as it can in a few seconds; its success is tested
# elsewhere.
COMMANDS = {
    "bug-report": "{run} --output {new}.tar.gz",
    "certify": "{certificate}",
    "cluster check": "{cluster}",
    "cluster down": "",
    "cluster logs": "node-1",
    "cluster status": "",
    "cluster up": "missing.toml",
    "demo": "--generations 0 --output {new}",
    "doctor": "{engine}",
    "domains": "",
    "evaluate": "{run} initial --samples 1",
    "exec": "-- true",
    "export": "{run} best {new}",
    "generate": "--domains circle_packing --agent {agent} --eval-samples 1 --max-generation 0 --run-id "
    "a --watch --logger trackio --output-dir-parent {new}",
    "image bootstrap": "",
    "image build": "base",
    "image list": "",
    "image load": "{archive}",
    "image pull": "localhost:9/missing",
    "image remove": "localhost/hyperruntime-test/missing",
    "image save": "localhost/hyperruntime-test/missing {new}.tar",
    "mcp": "",
    "prune": "",
    "ps": "",
    "report": "{run} --output {new}.html",
    "resume": "{run} --max-generation 0",
    "rollout batch": "{prompts} --model m --base-url {model} --max-turns 1 --output-dir {new}",
    "rollout environments": "",
    "rollout export": "{rollouts} --output {new}",
    "rollout preflight": "--model m --base-url {model}",
    "rollout run": "--environment {world} --option count=1 --group-size 1 --model m --base-url {model} "
    "--output-dir {new}",
    "rollout submit": "{rollouts} --trainer-option url=http://127.0.0.1:9",
    "rollout train": "--policy missing.py:Policy --output-dir {new}",
    "runtimes": "",
    "selfcheck": "{engine} --only exec.exit-codes",
    "serve": "--with-parent --token-file {new}",
    "shell": "",
    "show": "{run} initial",
    "snapshot diff": "missing",
    "snapshot list": "",
    "snapshot remove": "missing",
    "snapshot save": "missing {new}.tar",
    "status": "{run}",
    "watch": "{run} --with-parent",
}
FAILS = {"cluster down", "cluster logs", "cluster up", "image pull", "image remove", "image save"}
FAILS |= {"image load", "rollout submit", "rollout train", "rollout preflight"}
FAILS |= {"snapshot diff", "snapshot remove", "snapshot save"}
FAILS |= set() if importlib.util.find_spec("mcp") else {"mcp"}
# These take long, and start the same processes as another command.
SLOW = {"cluster check", "demo", "resume", "rollout batch", "rollout train"}


def commands(group: click.Command, *before: str) -> Iterator[str]:
    """Yield the names of all commands."""
    if not isinstance(group, click.Group):
        yield " ".join(before)
        return
    with click.Context(group) as ctx:
        for name in group.list_commands(ctx):
            below = group.get_command(ctx, name)
            assert below is not None
            yield from commands(below, *before, name)


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory, runtime: Runtime, base_image: str
) -> Iterator[Made]:
    """Yield a hostile directory with a run, rollouts, an agent and a model for the commands."""
    folder = tmp_path_factory.mktemp("here")
    make_agent_repository(folder / "agent")
    (folder / "prompts.jsonl").write_text('{"prompt": "hello"}\n')
    (folder / "cluster.toml").write_text('[cluster]\nprovider = "local"\n')
    (folder / "archive.tar").write_bytes(b"")
    (folder / "certificate.json").write_text(
        '{"domain": "math", "problem": "golomb-10", "value": "55", '
        '"answer": [0, 1, 6, 10, 23, 26, 34, 41, 53, 55]}'
    )
    files = {
        "agent": "agent",
        "prompts": "prompts.jsonl",
        "cluster": "cluster.toml",
        "archive": "archive.tar",
        "certificate": "certificate.json",
    }
    paths = {**files, "run": "new/generate_a", "rollouts": "rollouts"}
    with scripted_model(lambda _: says("done")) as model:
        words = {"engine": runtime.name, "model": model.url, "world": WORLD}
        words |= {word: str(folder / path) for word, path in paths.items()}
        made = Made(make_hostile_directory(folder), folder, words)
        for command, more in (
            ("rollout run", {"new": words["rollouts"]}),
            ("generate", {"new": str(folder / "new")}),
        ):
            arguments = COMMANDS[command].format_map({**words, **more}).split()
            done = call(made, command, arguments, "set")
            assert (done.returncode, made.here.ran()) == (0, {}), done.stderr
        yield made


@pytest.fixture(autouse=True)
def no_marks(made: Made) -> None:
    """Remove the marks of an earlier test that failed."""
    for mark in made.here.marks.iterdir():
        mark.unlink()


def filled(made: Made, command: str) -> list[str]:
    return (
        COMMANDS[command]
        .format_map({**made.words, "new": str(made.folder / uuid.uuid4().hex)})
        .split()
    )


def call(
    made: Made, command: str, words: Sequence[str], value: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in the hostile directory."""
    args = [HYPERRUN, "--runtime", made.words["engine"], *command.split(), *words]
    if command == "shell":  # which needs a terminal
        args = ["script", "--quiet", "--return", "--command", shlex.join(args), os.devnull]
    return subprocess.run(
        args, cwd=made.here.path, env=made.env(command, value), input="exit\n", capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("path", [":{}", "../hostile:{}", ""])
def test_a_path_with_empty_and_relative_elements_runs_nothing_of_the_directory(
    made: Made, path: str
) -> None:
    words = filled(made, "doctor")
    env = {**made.env("doctor", "not set"), "PATH": path.format(os.environ["PATH"])}
    args = [HYPERRUN, "--runtime", made.words["engine"], "doctor", *words]
    done = run_process(args, cwd=made.here.path, env=env, timeout_s=300)
    assert (made.here.ran(), done.exit_code) == ({}, 0), done.stderr


def test_every_command_has_arguments_here() -> None:
    assert sorted(commands(app)) == sorted(COMMANDS)


@pytest.mark.parametrize("value", first_quick(*VALUES))
@pytest.mark.parametrize(
    "command", first_quick(*sorted(COMMANDS, key=SLOW.__contains__), quick=-len(SLOW))
)
def test_a_command_runs_nothing_of_its_directory(made: Made, command: str, value: str) -> None:
    done = call(made, command, filled(made, command), value)
    assert made.here.ran() == {}, done.stderr
    assert PLUGIN not in done.stdout
    assert (done.returncode != 0) == (command in FAILS), done.stdout + done.stderr


@attrs.frozen
class Helper:
    """A Python process that a command started.

    Attributes:
        args: its argv.
        path: its ``PYTHONPATH``.
    """

    args: tuple[str, ...]
    path: str

    @property
    def is_safe(self) -> bool:
        """Whether it cannot import from its current directory. Source: python(1)."""
        options = []
        for word in self.args[1:]:
            if not word.startswith("-") or word in ("-m", "-c"):
                break
            options.append(word)
        elements = self.path.split(os.pathsep) if self.path else []
        # `-I` ignores PYTHONPATH; `-P` does not.
        return "-I" in options or ("-P" in options and all(map(os.path.isabs, elements)))


@contextmanager
def helpers_of(mark: str) -> Iterator[set[Helper]]:
    """Collect all Python processes whose environment has a mark, while the block runs."""
    found: set[Helper] = set()
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.05):
            for process in psutil.process_iter():
                with suppress(psutil.Error):
                    args, env = tuple(process.cmdline()), process.environ()
                    if env.get(MARK) == mark and args and Path(args[0]).name.startswith("python"):
                        found.add(Helper(args, env.get("PYTHONPATH", "")))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


PARTS = (
    "hyperruntime.cli watch",
    "hyperruntime.loop.loggers.follow",
    "node_job",
)


@pytest.mark.parametrize("value", first_quick("with empty and relative elements", "set", "empty"))
def test_the_processes_of_a_run_on_nodes_import_nothing_from_its_directory(
    made: Made, value: str
) -> None:
    words = ["--runtime", made.words["engine"], "generate", *filled(made, "generate")]
    words += ["--cluster", made.words["cluster"], "--max-generation", "1"]
    mark = uuid.uuid4().hex
    env = {**made.env("generate", value if value in VALUES else "not set"), MARK: mark}
    args = [HYPERRUN, *words]
    if value not in VALUES:
        args = [
            sys.executable,
            "-P",
            "-c",
            INSIDE,
            str(made.here.path),
            f":{made.folder}::not_here",
            *words,
        ]
    with helpers_of(mark) as helpers:
        done = run_process(args, cwd=made.here.path, env=env, timeout_s=300)
    assert (done.exit_code, made.here.ran()) == (0, {}), done.stderr
    started = {
        helper for helper in helpers if HYPERRUN not in helper.args and INSIDE not in helper.args
    }
    assert {part for part in PARTS if any(part in " ".join(one.args) for one in started)} == set(
        PARTS
    ), started
    assert {one for one in started if not one.is_safe} == set()


@pytest.mark.slow
def test_an_open_cluster_and_the_commands_for_it_run_nothing_of_their_directory(made: Made) -> None:
    env = {**made.env("cluster up", "set"), "XDG_CACHE_HOME": str(made.folder / "cache")}
    words = [HYPERRUN, "--runtime", made.words["engine"], "cluster"]
    here, args = made.here.path, [*words, "up", made.words["cluster"]]
    with subprocess.Popen(args, cwd=here, env=env, stdout=subprocess.PIPE) as up:
        assert up.stdout is not None
        assert up.stdout.readline().startswith(b"node-1: ready on ")
        for command in (["status"], ["logs", "node-1"], ["down"]):
            done = run_process([*words, *command], cwd=here, env=env, timeout_s=100)
            assert done.exit_code == 0, done.stderr
    assert made.here.ran() == {}


@pytest.mark.parametrize("name", ["podman", "docker", "apptainer", "bubblewrap", "charliecloud"])
def test_what_removes_the_containers_of_a_dead_owner_runs_nothing_of_its_directory(
    made: Made, name: str
) -> None:
    """Its guard starts it in another directory; a driver need not rely on that."""
    run_process(load_driver(name).cleanup_args("no-such=label"), cwd=made.here.path, timeout_s=100)
    assert made.here.ran() == {}
