"""Every command under bad conditions: streams that cannot be written, a removed directory, no
memory, odd files.

A server process knows only the fake driver, and forks for each command line. One server has
imported what most commands need. The other has not, so that commands import it where memory runs
out.
"""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attrs
import click
import pytest

from hyperruntime.cli.app import app
from hyperruntime.cli.command import LazyGroup
from hyperruntime.testing.model import ScriptedModel, says, scripted_model

SERVER = """
import faulthandler, json, os, pathlib, resource, sys, threading
import attrs
from hyperruntime import cli, registry
from hyperruntime.cli.app import app
from hyperruntime.host.owner import LABEL
from hyperruntime.testing.driver import FakeDriver
import hyperruntime.cli.loop.generate, hyperruntime.cli.rollout.run, hyperruntime.runtime

if sys.argv[1:] == ["warm"]:
    import rich.progress, rich.table, structlog
    for group in (registry.DOMAINS, registry.ENVIRONMENTS, registry.EXECUTORS):
        for plugin in registry.plugins(group).values():
            plugin.load()

class Driver(FakeDriver):
    def probe(self):  # root is exempt from its limit of processes, and the loop sets one
        info = super().probe()
        return attrs.evolve(info, limits={**info.limits, "pids": "rlimit"})

    def containers(self):  # those of other tests are not for `prune`
        return tuple(one for one in super().containers() if one.labels.get(f"{LABEL}.pid") == str(os.getpid()))

FakeDriver._info = FakeDriver().probe()  # once, and not in every fork
found = registry.plugins
fake = {"fake": registry.Plugin(name="fake", group="tests", load=lambda: Driver)}
registry.plugins = lambda group: fake if group == registry.RUNTIMES else found(group)

def point(number, how, path):
    if how == "closed":
        os.close(number)
        return None
    if how == "gone":
        readable, target = os.pipe()
        os.close(readable)
    else:
        target = os.open("/dev/full" if how == "full" else how or path, os.O_RDWR | os.O_CREAT | os.O_NOCTTY)
    os.dup2(target, number)
    os.close(target)
    return open(number, "w", closefd=False)

for line in sys.stdin:
    ask = json.loads(line)
    child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(100, exit=True, file=open(ask["err"], "a"))
        os.chdir(ask["cwd"])
        if ask["removed"]:
            os.rmdir(ask["cwd"])
        os.environ.update(ask["env"])
        point(0, "/dev/null", "")
        sys.stdout = sys.__stdout__ = point(1, ask["stdout"], ask["out"])
        sys.stderr = sys.__stderr__ = point(2, ask["stderr"], ask["err"])
        sys.modules.update(dict.fromkeys(ask["without"]))
        if ask["no_threads"]:
            threading.stack_size(1 << 46)  # no address space has room for it
        if ask["memory"]:
            size = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (size + ask["memory"],) * 2)
        sys.argv[1:] = ask["args"]
        code = cli.main()
        try:  # as Python ends
            for stream in (sys.stdout, sys.stderr):
                stream is None or stream.flush()
        except OSError:
            code = 120
        os._exit(code)
    print(json.dumps(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])), flush=True)
"""
CERTIFICATE = json.dumps(
    {
        "domain": "math",
        "problem": "golomb-10",
        "value": "55",
        "answer": [0, 1, 6, 10, 23, 26, 34, 41, 53, 55],
    }
)
PLOTS = ("matplotlib",)  # drawing takes longer than the run
TRAINER = """
from hyperruntime.trainers import Receipt

class Keeps:
    name = "keeps"

    async def start(self):
        return 0
    async def submit(self, group):
        return Receipt(accepted=True)
    async def close(self):
        pass
"""


@attrs.frozen
class Done:
    """A finished command."""

    code: int
    out: str
    err: str


Call = Callable[..., Done]


@pytest.fixture(scope="module")
def call(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Call]:
    """Yield a function that runs ``hyperrun`` in a fork of a server that has imported what most
    commands need.
    """
    with serving(tmp_path_factory.mktemp("conditions"), "warm") as run:
        yield run


@pytest.fixture(scope="module")
def cold_call(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Call]:
    """Yield a function that runs ``hyperrun`` in a fork of a server that has not."""
    with serving(tmp_path_factory.mktemp("cold")) as run:
        yield run


@contextmanager
def serving(home: Path, *words: str) -> Iterator[Call]:
    env = {
        **os.environ,
        "HYPERRUNTIME_RUNTIME": "fake",
        "XDG_CACHE_HOME": str(home / "cache"),
        "COLUMNS": "200",
    }
    env |= {"XDG_STATE_HOME": str(home / "state"), "HOME": str(home)}
    env = {
        name: value
        for name, value in env.items()
        if name not in ("XDG_CONFIG_HOME", "XDG_DATA_HOME")
    }
    pipes: dict[str, Any] = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "text": True,
        "cwd": home,
    }
    server = subprocess.Popen([sys.executable, "-c", SERVER, *words], env=env, **pipes)
    assert server.stdin is not None
    assert server.stdout is not None
    talk, answers = server.stdin, server.stdout

    def run(
        *args: str,
        cwd: Path = home,
        stdout: str = "",
        stderr: str = "",
        env: Any = None,
        **how: Any,
    ) -> Done:
        out, err = home / "out", home / "err"
        for path in (out, err):
            path.write_text("")
        ask: dict[str, Any] = {
            "args": args,
            "cwd": str(cwd),
            "out": str(out),
            "err": str(err),
            "stdout": stdout,
            "stderr": stderr,
        }
        ask |= {
            "env": env or {},
            "removed": False,
            "no_threads": False,
            "memory": 0,
            "without": (),
            **how,
        }
        talk.write(json.dumps(ask) + "\n")
        talk.flush()
        return Done(json.loads(answers.readline()), out.read_text(), err.read_text())

    yield run
    talk.close()
    server.wait()
    answers.close()


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedModel]:
    """Yield a model that says that it is done."""
    with scripted_model(lambda request: says("done")) as served:
        yield served


@pytest.fixture(scope="module")
def world(call: Call, model: ScriptedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the runs that commands read."""
    path = tmp_path_factory.mktemp("world")
    (path / "keeps.py").write_text(TRAINER)
    (path / "golomb.json").write_text(CERTIFICATE)
    (path / "prompts.jsonl").write_text('{"prompt": "say done"}\n')
    loop = ("generate", "--domains=circle_packing", "--max-generation=0", "--eval-samples=1")
    assert call(*loop, "--run-id", "1", cwd=path, without=PLOTS).code == 0
    rolled = call(*rollout(model), "--output-dir", "rolled", cwd=path)
    assert rolled.code == 0, rolled.err
    return path


def rollout(model: ScriptedModel) -> tuple[str, ...]:
    words = ("--environment=toy", "--option=words=red,", "--group-size=2", "--parallel=2")
    return ("rollout", "run", *words, "--model", "m", "--base-url", model.url)


def usual(words: str, new: str, model: ScriptedModel) -> tuple[str, ...]:
    """Return usual arguments of a command; ``new`` names a new file or directory."""
    run, server = "outputs/generate_1", ("--model", "m", "--base-url", model.url)
    loop = ("--domains", "circle_packing", "--max-generation", "0", "--eval-samples", "1")
    return {
        "demo": ("--generations", "0", "--output", new),
        "runtimes": (),
        "doctor": ("fake",),
        "selfcheck": ("fake", "--only", "exec.exit-codes"),
        "image build": ("localhost/mine:1", "--file", "none"),
        "image bootstrap": ("none",),
        "image pull": ("docker.io/library/none:1",),
        "image list": (),
        "image remove": ("localhost/none:1",),
        "image save": ("localhost/hyperruntime/base:latest", new),
        "image load": ("none.tar",),
        "snapshot list": (),
        "snapshot remove": ("none",),
        "snapshot save": ("none", new),
        "snapshot diff": ("none",),
        "exec": ("--", "echo", "hello"),
        "serve": ("--with-parent",),  # it ends, because standard input does
        "ps": (),
        "prune": (),
        "domains": (),
        "generate": (*loop, "--output-dir-parent", new),
        "resume": (run,),
        "status": (run,),
        "show": (run, "best"),
        "watch": (run, "--with-parent"),  # it ends, because standard input does
        "evaluate": (run, "best", "--split", "val", "--samples", "1"),
        "export": (run, "best", new),
        "certify": ("golomb.json",),
        "cluster check": ("none.toml",),
        "cluster up": ("none.toml",),
        "cluster status": (),
        "cluster logs": ("node-1",),
        "cluster down": (),
        "rollout run": (*rollout(model)[2:], "--output-dir", new),
        "rollout preflight": server,
        "rollout environments": (),
        "rollout batch": ("prompts.jsonl", *server, "--output-dir", new),
        "rollout export": ("rolled", "--output", new),
        "rollout submit": ("rolled", "--trainer", "keeps.py:Keeps", "--equal", "keep"),
        "rollout train": (
            "--option=words=red,",
            "--updates",
            "1",
            "--group-size=2",
            f"--output-dir={new}",
        ),
        "report": (run, "--output", new),
        "shell": (),
        "mcp": (),  # the package of the protocol is not installed here
        "bug-report": ("--output", new),
    }[words]


def command_names(
    group: click.Group = app, before: str = ""
) -> Iterator[tuple[str, click.Command]]:
    """Yield the words of every command that is not a group."""
    for name in group.list_commands(click.Context(group)):
        found = group.get_command(click.Context(group), name)
        assert found is not None
        if isinstance(found, click.Group):
            yield from command_names(found, f"{before}{name} ")
        else:
            yield f"{before}{name}", found


assert isinstance(app, LazyGroup)
COMMANDS = dict(command_names())
LONG = (
    "generate",
    "demo",
    "resume",
    "evaluate",
    "selfcheck",
    "report",
    "rollout run",
    "rollout batch",
    "rollout train",
)
# their JSON: tests/e2e/test_cluster.py, and tests/contract/test_named_snapshots.py
NEEDS_MORE = ("cluster check", "snapshot diff")
WITH_JSON = [
    name
    for name, one in COMMANDS.items()
    if name not in NEEDS_MORE and any("--json" in param.opts for param in one.params)
]
QUICK = ("exec", "status", "image list")
QUICK_FIRST = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in COMMANDS
]
STREAMS = [(name, how) for how in ("closed", "full", "gone") for name in ("stdout", "stderr")]


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def texts_that_are_values(value: Any) -> Iterator[str]:
    """Yield the texts in a JSON value that print another kind of value, as ``str`` of Python writes
    it.
    """
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from texts_that_are_values(item)
    elif isinstance(value, str) and re.fullmatch(
        r"None|True|False|[\[({].*[\])}]|-?\d+\.\d+", value
    ):
        yield value


@pytest.mark.parametrize(
    "words",
    [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in WITH_JSON],
)
def test_json_has_json_types(
    call: Call, world: Path, model: ScriptedModel, words: str, tmp_path: Path
) -> None:
    done = call(*words.split(), "--json", *usual(words, str(tmp_path / "new"), model), cwd=world)
    assert done.code in (0, 1), done.err  # 1: the model here has no tokens
    assert list(texts_that_are_values(json.loads(done.out, parse_constant=refuse))) == []


@pytest.mark.parametrize("words", QUICK_FIRST)
def test_a_stream_that_cannot_be_written(
    call: Call, world: Path, model: ScriptedModel, words: str, tmp_path: Path
) -> None:
    normal = call(*words.split(), *usual(words, str(tmp_path / "0"), model), cwd=world)
    for stream, how in STREAMS:
        args = usual(words, str(tmp_path / f"{stream}-{how}"), model)
        done = call(*words.split(), *args, cwd=world, **{stream: how})
        why = f"{words}, {stream} {how}: {done}"
        if stream == "stderr" or not normal.out:
            assert (done.code, bool(done.out)) == (
                normal.code,
                stream == "stderr" and bool(normal.out),
            ), why
        else:
            assert done.code == (141 if how == "gone" else 1), why
            said = {
                "closed": ": standard output is closed",
                "full": ": No space left on device",
            }.get(how)
            lines = [line for line in done.err.splitlines() if line.startswith("hyperrun: error")]
            assert lines == ([f"hyperrun: error: cannot write the output{said}"] if said else []), (
                why
            )
        assert "Traceback" not in done.err, why
        assert "unexpected" not in done.err, why


@pytest.mark.parametrize("words", QUICK_FIRST)
def test_a_removed_directory_is_named(
    call: Call, model: ScriptedModel, words: str, tmp_path: Path
) -> None:
    (tmp_path / "here").mkdir()
    args = usual(words, "new", model)
    done = call(*words.split(), *args, cwd=tmp_path / "here", removed=True)
    assert "unexpected" not in done.err, done.err
    assert done.code == 0 or "Traceback" not in done.err
    if "hyperrun: error" in done.err:
        assert done.err.endswith(
            "the current directory does not exist any more: change to another one\n"
        ), done.err


@pytest.mark.parametrize(
    "words", [one for one in QUICK_FIRST if one.values[0] not in (*LONG, "rollout submit")]
)
def test_a_process_without_memory_or_threads_says_so(
    cold_call: Call, world: Path, model: ScriptedModel, words: str, tmp_path: Path
) -> None:
    for how in ({"memory": 1 << 22}, {"memory": 1 << 24}, {"no_threads": True}):
        done = cold_call(
            *words.split(), *usual(words, str(tmp_path / "new"), model), cwd=world, **how
        )
        assert "unexpected" not in done.err, (how, done)
        assert "Traceback" not in done.err or is_end_of_python(done.err), (how, done)
        assert "broken" not in done.err, (how, done)


def is_end_of_python(text: str) -> bool:
    """Return whether Python had no memory even for an exception, so that no handler of ours could
    run.
    """
    *_, place, error = text.splitlines()
    return error == "SystemError: error return without exception set" and place.startswith(
        '  File "<string>"'
    )


def test_a_process_without_threads_names_the_limits(call: Call, world: Path) -> None:
    done = call("ps", cwd=world, no_threads=True)
    assert (done.code, done.err.count("\n")) == (1, 1), done
    assert "no further thread or process can be started; raise `ulimit -u`" in done.err


def test_a_run_goes_on_when_its_reader_is_gone(call: Call, world: Path, tmp_path: Path) -> None:
    args = ("--domains=circle_packing", "--max-generation=1", "--eval-samples=1", "--run-id=a")
    done = call(
        "generate",
        *args,
        f"--output-dir-parent={tmp_path}",
        stdout="gone",
        stderr="gone",
        without=PLOTS,
    )
    assert done.code == 141
    view = json.loads(call("status", "--json", str(tmp_path / "generate_a")).out)
    assert (view["state"], len(view["generations"])) == ("finished", 2)


def until_closed(terminal: int) -> Iterator[bytes]:
    """Yield what is written to a terminal, until nobody has it open."""
    with suppress(OSError):
        while chunk := os.read(terminal, 65536):
            yield chunk


@pytest.mark.parametrize(
    "words", ["doctor", pytest.param("selfcheck", marks=pytest.mark.slow), "domains"]
)
def test_no_colour_if_the_user_wants_none(
    call: Call, world: Path, model: ScriptedModel, words: str
) -> None:
    coloured = []
    for no_colour in ("", "1"):
        ours, theirs = pty.openpty()
        terminal = os.ttyname(theirs)
        shown: list[bytes] = []
        reader = threading.Thread(target=lambda: shown.extend(until_closed(ours)))  # noqa: B023 - joined below
        reader.start()
        env = {"NO_COLOR": no_colour, "TERM": "xterm-256color"}
        args = ("--log-level", "debug", *words.split(), *usual(words, "new", model))
        assert call(*args, cwd=world, env=env, stdout=terminal, stderr=terminal).code == 0
        os.close(theirs)
        reader.join()
        os.close(ours)
        coloured.append(re.findall(rb"\x1b\[[0-9;]*3[0-7]m", b"".join(shown)))
    assert coloured[1] == []
    assert coloured[0] or words == "domains"


DEEP = "[" * 200_000
REPLAY = ("exec", "--gateway", "replay:a.jsonl", "--", "true")
BATCH = ("rollout", "batch", "a.jsonl", "--model", "m", "--base-url", "http://h")


@pytest.mark.parametrize(
    ("name", "text", "args"),
    [
        ("a.toml", f"x = {DEEP}", ("generate", "--config", "a.toml")),
        ("a.toml", f"x = {DEEP}", ("rollout", "run", "--config", "a.toml")),
        ("a.toml", f"x = {DEEP}", ("exec", "--gateway", "a.toml", "--", "true")),
        ("a.toml", f"x = {DEEP}", ("generate", "--domains", "table:a.toml")),
        ("hyperrun.toml", f"x = {DEEP}", ("generate", "--agent", ".")),
        ("hyperrun.toml", f"x = {DEEP}", ("--runtime", "fake")),
        ("a.jsonl", DEEP, ("generate", "--domains", "table:a.jsonl")),
        ("a.jsonl", DEEP, REPLAY),
        ("a.jsonl", DEEP, BATCH),
        ("run.json", DEEP, ("status", ".")),
        ("run.json", DEEP, ("resume", ".")),
        ("run.json", DEEP, ("rollout", "run", "--resume-from", ".")),
        pytest.param(
            "train.json", DEEP, ("rollout", "train", "--resume-from", "."),
            marks=[pytest.mark.slow, pytest.mark.skipif(find_spec("torch") is None, reason="trainers need torch")],
        ),
        ("a.jsonl", '{"key": "k", "status": 1e999, "type": "t", "body": ""}', REPLAY),
        ("a.jsonl", '{"key": "k", "status": 9, "type": "t", "body": ""}', REPLAY),
        ("a.jsonl", '{"prompt": "p", "x": 1e999}', BATCH),
        ("run.json", '{"seed": 1, "options": {"domains": ["x"], "max_generation": 1e999}}', ("status", ".")),
    ],
)  # fmt: skip
def test_a_file_that_nests_too_deeply_or_has_a_huge_number_is_named(
    call: Call, tmp_path: Path, name: str, text: str, args: tuple[str, ...]
) -> None:
    (tmp_path / name).write_text(text)
    done = call(*args, cwd=tmp_path)
    assert done.code in (1, 2), done
    assert done.err.count("\n") == 1, done
    assert re.search(
        "nests too deeply|too large for a number|no HTTP status|whole number", done.err
    ), done
    assert "unexpected" not in done.err


def test_an_unknown_run_directory_names_those_in_outputs(call: Call, world: Path) -> None:
    said = {name: call("status", name, cwd=world).err for name in ("nope", "generate_11", "1")}
    assert "known here and in outputs: " in said["nope"]
    assert "outputs/generate_1" in said["nope"]
    assert said["generate_11"].endswith("did you mean 'outputs/generate_1'?\n")
    assert said["1"].endswith("did you mean 'outputs/generate_1'?\n")


def test_an_unknown_split_names_those_that_exist(call: Call, world: Path, tmp_path: Path) -> None:
    assert call("evaluate", "outputs/generate_1", "best", "--split", "nope", cwd=world).err == (
        "hyperrun: error: split='nope' is not allowed: circle_packing has only train, val, test\n"
    )
