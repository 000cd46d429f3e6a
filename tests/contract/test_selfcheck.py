"""``hyperrun selfcheck`` with drivers of another package."""

from __future__ import annotations

import json
import os
import pty
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hyperruntime.errors import ContainerLostError, ContainerStateError
from hyperruntime.registry import load_driver
from hyperruntime.testing.conformance import open_context
from tests.command import cli
from tests.doubles.packages import install_plugin

ROOT = Path(__file__).parents[2]
ENTRY_POINTS = """[hyperruntime.runtimes]
fake = hyperruntime.testing:FakeDriver
faulty = tests.contract.faulty_drivers:HasNetwork
"""
Selfcheck = Callable[..., subprocess.CompletedProcess[str]]
pytestmark = pytest.mark.engine


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Variables of an environment in which drivers of another package are installed."""
    install_plugin(tmp_path, "other_package", ENTRY_POINTS)
    found = {
        **os.environ,
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    return {name: value for name, value in found.items() if name != "HYPERRUNTIME_RUNTIME"}


@pytest.fixture
def selfcheck(environment: dict[str, str]) -> Selfcheck:
    """Return a function that runs ``hyperrun selfcheck`` in its own process."""

    def call(*args: str, **changed: str) -> subprocess.CompletedProcess[str]:
        words, env = cli("selfcheck", *args), {**environment, **changed}
        return subprocess.run(words, capture_output=True, text=True, timeout=120, env=env, cwd="/")

    return call


def test_selfcheck_prints_a_line_for_each_check_and_a_summary(selfcheck: Selfcheck) -> None:
    done = selfcheck("fake", "--only", "network")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("pass ")
    assert "network.none: By default there is no network" in lines[0]
    assert lines[2].startswith("refused as declared  network.bridge: ")
    assert "cannot honour network" in lines[3]
    assert lines[-2].startswith("this machine is ")
    assert lines[-1].startswith("3 checks in ")
    assert lines[-1].endswith(": 2 pass, 1 refused as declared, 0 fail")


def test_a_failed_check_is_exit_code_1_with_the_reason(selfcheck: Selfcheck) -> None:
    done = selfcheck("faulty", "--only", "network.none")
    assert done.returncode == 1
    assert "FAIL" in done.stdout
    assert "the interfaces inside: " in done.stdout
    assert done.stdout.splitlines()[-1] == "failed: network.none"


def test_json_has_every_result(selfcheck: Selfcheck) -> None:
    done = selfcheck("faulty", "--only", "network", "--json")
    report = json.loads(done.stdout)
    assert done.returncode == 1
    assert (report["runtime"], report["counts"]) == ("fake", {"pass": 1, "refused": 1, "fail": 1})
    failed = next(check for check in report["checks"] if check["outcome"] == "fail")
    assert failed["name"] == "network.none"
    assert failed["detail"].startswith("the interfaces inside: ")


def test_a_missing_engine_is_exit_code_3(selfcheck: Selfcheck) -> None:
    done = selfcheck("podman", PATH="/nowhere")
    assert done.returncode == 3
    assert "podman" in done.stderr


def test_unknown_names_are_exit_code_2_with_a_close_match(selfcheck: Selfcheck) -> None:
    for args, word in ((("fake", "--only", "exec.arg"), "exec.argv"), (("fak",), "fake")):
        done = selfcheck(*args)
        assert (done.returncode, word in done.stderr) == (2, True), done.stderr


def test_a_missing_image_is_named(selfcheck: Selfcheck) -> None:
    done = selfcheck("fake", "--image", "localhost/no-such-image:1")
    assert done.returncode != 0
    assert "localhost/no-such-image:1" in done.stderr


def test_output_on_a_terminal_is_in_colour(environment: dict[str, str]) -> None:
    ours, theirs = pty.openpty()
    words = cli(
        "selfcheck",
        "fake",
        "--only",
        "network.none",
    )
    env = {**environment, "TERM": "xterm"}
    with subprocess.Popen(
        words, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env=env, cwd="/"
    ) as process:
        os.close(theirs)
        shown = b""
        try:
            while chunk := os.read(ours, 65536):
                shown += chunk
        except OSError:  # the last program on the terminal has ended
            pass
        assert process.wait() == 0
    os.close(ours)
    assert b"\x1b[32mpass" in shown
    assert b"network.none" in shown


@pytest.mark.slow
def test_simultaneous_runs_do_not_prune_each_others_containers(selfcheck: Selfcheck) -> None:
    """Each run starts a container of a dead owner and expects its removal; an engine lists those of
    all runs.
    """
    with ThreadPoolExecutor(4) as threads:
        runs = [threads.submit(selfcheck, "fake", "--only", "owner.prune") for _ in range(12)]
    said = [done.result().stdout for done in runs if done.result().returncode != 0]
    assert said == []


def test_a_closed_context_ends_its_containers_and_starts_no_more(runtime_name: str) -> None:
    """An interrupted check continues in its thread, and the program waits for this thread when it
    ends.
    """
    with ThreadPoolExecutor(2) as threads:
        with open_context(load_driver(runtime_name)) as context:
            own = context.start()
            running = [
                threads.submit(one.exec, ["sleep", "600"]) for one in (own, context.container)
            ]
        try:
            for future in running:
                with pytest.raises((ContainerLostError, ContainerStateError)):
                    future.result(60)
            with pytest.raises(ContainerStateError, match="over"):
                context.container.exec(["true"])
        finally:
            own.close()
