"""The command line without an engine: help, wrong usage, JSON, lazy imports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import hyperruntime
from hyperruntime.cli import main
from hyperruntime.cli.app import COMMANDS, app
from hyperruntime.cli.command import State
from hyperruntime.cli.signals import last_signal
from hyperruntime.errors import ImageNotFoundError
from hyperruntime.loop.workbench.open_containers import on_interrupt
from hyperruntime.registry import auto_order
from tests.doubles.packages import install_plugin
from tests.doubles.shown_runs import loop_run

HEAVY = (
    "podman",
    "docker",
    "rich",
    "stevedore",
    "asyncio",
    "structlog",
    "openai",
    "torch",
    "requests",
    "attrs",
)
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs ``hyperrun`` in this process; it returns exit code, standard
    output and error.
    """

    def call(*args: str) -> tuple[int, str, str]:
        code = main(args)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Set up a machine on which no engine is installed."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HYPERRUNTIME_RUNTIME", raising=False)


def every_command(
    group: click.Command = app, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command and group."""
    if isinstance(group, click.Group):
        context = click.Context(group)
        for name in group.list_commands(context):
            found = group.get_command(context, name)
            assert found is not None
            yield from every_command(found, (*path, name))
    yield path


@pytest.mark.parametrize("words", sorted(set(every_command())), ids=" ".join)
def test_the_help_of_every_command_has_an_example_with_its_name(words: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*words, "--help"], prog_name="hyperrun", obj=State())
    assert result.exit_code == 0, result.output
    assert "Example" in result.output
    assert " ".join(("hyperrun", *words)) in result.output.partition("Example")[2]


def test_the_group_help_lists_each_command_without_importing_it(run: Run) -> None:
    code, out, _ = run("--help")
    assert code == 0
    for name, (_, _, text) in COMMANDS.items():
        assert f"  {name} " in out
        assert text in out


def modules_of(*args: str) -> list[str]:
    """Return the modules that a process has loaded after a command."""
    code = (
        f"import sys; from hyperruntime.cli import main; assert main({list(args)!r}) == 0;"
        "print('MODULES', *sorted(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.partition("MODULES ")[2].split()


def test_the_status_of_a_run_loads_no_heavy_module(tmp_path: Path) -> None:
    loaded = modules_of("status", str(loop_run(tmp_path / "generate_1", 3)))
    assert "hyperruntime.loop.run_files.archive" in loaded
    assert set(HEAVY) & set(loaded) == {"attrs"}


def test_the_package_is_a_program_that_imports_nothing_from_the_current_directory(
    tmp_path: Path,
) -> None:
    for name in ("click", "attrs", "attr", "structlog", "json"):
        (tmp_path / f"{name}.py").write_text(
            "raise SystemExit('imported from the current directory')\n"
        )
    command = [sys.executable, "-m", "hyperruntime", "--version"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        f"hyperrun {hyperruntime.__version__}\n",
        "",
    )


@pytest.mark.parametrize("args", [("--help",), ("--version",), ()])
def test_help_and_version_import_no_command_and_no_heavy_module(args: tuple[str, ...]) -> None:
    loaded = modules_of(*args)
    assert not set(HEAVY) & set(loaded)
    ours = [name for name in loaded if name.startswith("hyperruntime")]
    cli = [
        f"hyperruntime.cli{name}"
        for name in ("", ".app", ".command", ".messages", ".signals", ".streams")
    ]
    host = ["hyperruntime.host", "hyperruntime.host.python"]
    assert ours == ["hyperruntime", *cli, "hyperruntime.errors", *host, "hyperruntime.pickling"]


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("exe",), "unknown command 'exe'; did you mean 'exec'?"),
        (("exec", "-e", "A=b", "base", "true"), "no such option '-e'; did you mean '--env'?"),
        (("exec", "-v", "/a:/b", "base", "true"), "no such option '-v'; did you mean '--mount'?"),
        (("image", "bild"), "unknown command 'bild'; did you mean 'build'?"),
        (("exec", "--memry", "1g", "--", "true"), "no such option"),
        (("exec",), "missing argument"),
        (("exec", "--memory", "5q", "--", "true"), "--memory='5q' is not allowed"),
        (("exec", "--memory", "1m", "--", "true"), "at least 6291456"),
        (("exec", "--timeout", "soon", "--", "true"), "--timeout='soon' is not allowed"),
        (("exec", "--timeout", "0", "--", "true"), "a duration above zero"),
        (("exec", "--cpus=-1", "--", "true"), "cpus=-1.0 is not allowed: a number of cores"),
        (("exec", "--mount", "/no/such:/x", "--", "true"), "--mount: '/no/such' does not exist on this machine"),
        (("exec", "--mount", "/tmp", "--", "true"), "SOURCE:TARGET"),
        (("exec", "--mount", "/tmp:relative", "--", "true"), "an absolute path inside the container"),
        (("exec", "--put", "/no/such:/x", "--", "true"), "--put: '/no/such' does not exist on this machine"),
        (("exec", "--env", "NO_SUCH_VARIABLE", "--", "true"), "NAME=VALUE"),
        (("exec", "--image", "bad image", "--", "true"), "an image reference"),
        (("exec", "--network", "wifi", "--", "true"), "'wifi' is not one of"),
        (("image", "build", "x", "--context", "/"), "--context needs --file"),
        (("image", "build", "x", "--short-names", "docker.io"), "--short-names needs --file"),
        (("image", "build", "x", "--requirements", "r", "--file", "f"), "--requirements and --file exclude each other"),
        (("image", "build", "x", "--sdist"), "--sdist needs --requirements"),
        (("generate",), "name what to evaluate on with --domains"),
        (("generate", "--domains", "circle_paking"), "did you mean 'circle_packing'?"),
        (("generate", "--domains", "circle_packing", "--max-generation", "-1"), "-1 is not in the range"),
        (("generate", "--domains", "circle_packing", "--parallel", "0"), "0 is not in the range"),
        (("generate", "--domains", "circle_packing", "--parent-selection", "bset"), "did you mean 'best'?"),
        (("generate", "--domains", "circle_packing", "--executor", "lcal"), "did you mean 'local'?"),
        (("generate", "--domains", "circle_packing", "--eval-samples", "few"), "whole numbers"),
        (("generate", "--domains", "circle_packing", "--run-id", "a b"), "run_id='a b' is not allowed"),
        (("generate", "--domains", "circle_packing", "--agent", "mutatr"), "did you mean 'mutator'?"),
        (("generate", "--domains", "circle_packing", "--agent", "/no/such"), "is not a directory"),
        (("generate", "--domains", "circle_packing", "--output-dir-parent", "/proc/x"), "cannot be written"),
        (("status", "/no/such"), "unknown run directory '/no/such'"),
        (("resume", "/"), "is not a run directory"),
        (("doctor", "podmn"), "unknown runtime 'podmn'; did you mean 'podman'?"),
        (("--runtime", "podmn", "ps"), "unknown runtime 'podmn'; did you mean 'podman'?"),
    ],
)  # fmt: skip
def test_wrong_usage_prints_one_line_and_exits_with_2(
    run: Run, args: tuple[str, ...], sentence: str
) -> None:
    code, out, err = run(*args)
    assert code == 2, err
    assert out == ""
    assert err.startswith("hyperrun: error: ")
    assert sentence in err
    assert err.count("\n") == 1


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize("args", [("exec", "--", "true"), ("ps",), ("prune",), ("image", "list")])
def test_commands_exit_with_3_if_the_engine_cannot_be_used(run: Run, args: tuple[str, ...]) -> None:
    code, out, err = run(*args)
    assert (code, out) == (3, "")
    assert "cannot be used" in err
    if err.count("\n") > 1:  # of `auto`: a line for each engine, the reason
        first, *lines = err.splitlines()
        assert first.endswith(":")
        assert [line.partition(":")[0].strip() for line in lines] == auto_order()
        assert all(line.startswith("  ") for line in lines)


@pytest.mark.usefixtures("no_engine")
def test_runtimes_lists_a_missing_engine_with_the_next_step(run: Run) -> None:
    code, out, _ = run("runtimes", "--json")
    podman = next(row for row in json.loads(out) if row["runtime"] == "podman")
    assert code == 0
    assert not podman["usable"]
    assert podman["why_not"]
    assert "apt-get install" in podman["next_step"]
    code, out, _ = run("runtimes")
    assert code == 0
    assert "apt-get install" in out


@pytest.mark.usefixtures("no_engine")
def test_doctor_exits_with_3_if_no_runtime_works(run: Run) -> None:
    code, out, _ = run("doctor", "--json")
    told = json.loads(out)
    assert code == 3
    assert told["usable"] == []
    assert {found["subject"] for found in told["findings"]["machine"]} >= {
        "python",
        "git",
        "memory",
    }
    code, out, _ = run("doctor")
    assert code == 3
    assert "FAIL" in out
    assert "next step: " in out


def test_a_broken_domain_is_listed_with_its_problem_beside_the_others(tmp_path: Path) -> None:
    """So it is with drivers: tests/e2e/test_plugins.py."""
    point = "[hyperruntime.domains]\nbroken_domain = no_such_module:Domain\n"
    install_plugin(tmp_path, "broken_plugin", point)
    args = [sys.executable, "-m", "hyperruntime.cli", "domains", "--json"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(args, capture_output=True, text=True, timeout=60, env=env, cwd="/")
    assert done.returncode == 0, done.stderr
    problems = {row["domain"]: row["problem"] for row in json.loads(done.stdout)}
    assert problems["broken_domain"]
    assert problems["circle_packing"] == ""


def test_domains_lists_splits_image_and_agent(run: Run) -> None:
    code, out, _ = run("domains", "--json")
    assert code == 0
    packing = next(row for row in json.loads(out) if row["domain"] == "circle_packing")
    assert packing["splits"] == {"train": 4, "val": 2, "test": 2}
    assert (packing["image"], packing["agent"], packing["needs_gpu"]) == ("base", "mutator", False)
    code, out, _ = run("domains")
    assert "train 4, val 2, test 2" in out


def test_hyperrun_without_a_command_prints_the_help(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for args in ((), ("--runtime", "podman")):
        code, out, _ = run(*args)
        assert code == 0
        assert "Commands:" in out


@pytest.mark.usefixtures("no_engine")
def test_the_option_runtime_alone_starts_generate_in_the_directory_of_an_agent(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hyperrun.toml").write_text("[generate]\nmax-generatin = 3\n")
    code, _, err = run("--runtime", "podman")
    assert code == 2
    assert "[generate]: unknown option 'max-generatin'; did you mean 'max-generation'?" in err
    Path("hyperrun.toml").write_text('[agent]\ndomains = ["circle_paking"]\n')
    code, _, err = run("--runtime", "podman")
    assert code == 2
    assert "unknown domain 'circle_paking'" in err
    Path("hyperrun.toml").write_text('[agent]\ndomains = ["table:/private"]\n')
    code, _, err = run("--runtime", "podman")
    assert code != 0
    assert (
        "agent.domains has 'table:/private', whose argument may name a file of this machine" in err
    )
    assert "Commands:" in run()[1]


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize(
    "line",
    [
        'network = "host"',
        'gateway = "g.toml"',
        'output-dir-parent = "/else"',
        'gpus = "all"',
        'executor = "x"',
        'domains = "evil.py:D"',
        'domains = ["evil.py:D"]',
        'domains = ["circle_packing", "table:/private"]',
        'domains = [["evil.py:D"]]',
        'disk = "1000g"',
        "limits = {pids = 1000000}",
        'image = "docker-archive:x"',
    ],
)
def test_the_file_of_an_agent_chooses_nothing_of_the_host_by_itself(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hyperrun.toml").write_text(f"[generate]\nmax-generation = 3\nparallel = 2\n{line}\n")
    code, _, err = run("--runtime", "podman")
    name, _, value = line.partition(" = ")
    assert code == 2
    assert "is a file of the agent and asks for --" in err
    if value.startswith('"'):
        assert f"--{name} {value.strip(chr(34))}; give them yourself" in " ".join(err.split())
    assert "max-generation 3" not in err


def test_the_advice_to_use_the_file_of_an_agent_says_that_its_gateway_is_used_too(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = (
        '[generate]\nnetwork = "host"\n[gateway]\nupstreams = [{name = "x", url = "http://x", '
        'key_env = "SECRET"}]\n'
    )
    Path("hyperrun.toml").write_text(table)
    _, _, err = run("--runtime", "podman")
    assert (
        "--config hyperrun.toml`, which also uses the keys and addresses in its table [gateway]"
        in " ".join(err.split())
    )


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize(
    "line",
    [
        'network = "none"',
        'executor = "local"',
        'disk = "1g"',
        "limits = {pids = 64}",
        'domains = ["circle_packing"]',
    ],
)
def test_the_file_of_an_agent_may_choose_defaults_and_lower_limits(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hyperrun.toml").write_text(f"[generate]\n{line}\n")
    _, _, err = run("--runtime", "podman")
    assert "is a file of the agent" not in err
    assert "unexpected" not in err


def test_an_unexpected_error_prints_one_line_unless_debug_is_set(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(COMMANDS, "odd", ("no_such_module", "odd", ""))
    code, out, err = run("odd")
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert "run again with --debug" in err
    code, _, err = run("--debug", "odd")
    assert code == 1
    assert "Traceback" in err


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_interrupts_a_command(
    run: Run, monkeypatch: pytest.MonkeyPatch, number: int, code: int
) -> None:
    import hyperruntime.cli.loop.domains as module

    @click.command()
    def slow() -> None:
        os.kill(os.getpid(), number)
        time.sleep(5)

    # under nohup, the tests may ignore it
    of_tests = signal.signal(number, signal.default_int_handler)
    try:
        monkeypatch.setattr(module, "slow", slow, raising=False)
        monkeypatch.setitem(COMMANDS, "slow", ("loop.domains", "slow", ""))
        done, _, err = run("slow")
        assert done == code
        assert "interrupted" in err
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, of_tests)


def test_an_error_after_an_interrupt_keeps_the_exit_code_of_the_interrupt(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    import hyperruntime.cli.loop.domains as module

    @click.command()
    def slow() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        finally:
            raise ImageNotFoundError("x", "it could not be looked for")

    @click.command()
    @click.pass_obj
    def stopped(state: State) -> None:
        with last_signal(state), on_interrupt(lambda: None):
            os.kill(os.getpid(), signal.SIGTERM)
            raise ImageNotFoundError("x", "it could not be looked for")

    for command in (slow, stopped):
        monkeypatch.setattr(module, "slow", command, raising=False)
        monkeypatch.setitem(COMMANDS, "slow", ("loop.domains", "slow", ""))
        done, _, err = run("slow")
        assert done == 143
        assert "it could not be looked for" in err


def test_log_lines_go_to_standard_error_in_the_chosen_level_and_format(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from hyperruntime.cli.messages import configure_logging
    from hyperruntime.logs import get_logger

    configure_logging("warning", as_json=False)
    get_logger("x").info("quiet")
    get_logger("x").warning("loud", generation=3)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "quiet" not in captured.err
    assert "loud" in captured.err
    configure_logging("info", as_json=True)
    get_logger("x").info("told", generation=3)
    line = json.loads(capsys.readouterr().err)
    assert (line["event"], line["generation"], line["level"]) == ("told", 3, "info")
