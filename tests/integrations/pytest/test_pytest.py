"""The plug-in in runs of pytest of its own, on a real engine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hyperruntime import Runtime
from tests.conftest import EngineCommand

pytest_plugins = ["pytester"]
pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("base_image")]

STRICT = ("-W", "error", "-p", "no:asyncio")  # pytest-asyncio warns by itself
EXAMPLE = Path(__file__).with_name("example.py")
OWN = """
import pytest

@pytest.fixture(autouse=True)
def _name(hyperruntime_container):
    with open("names", "a") as file:
        file.write(hyperruntime_container.slot.container + "\\n")

def test_one(hyperruntime_container, worker_id):
    container = hyperruntime_container
    assert container.exec(["sh", "-c", "echo 1 >left; echo 1 >/left; id -u"]).stdout == b"0\\n"
    assert container.read_file("left") == container.read_file("/left") == b"1\\n"
    container.write_file("a/b", b"text")
    assert (container.listdir("a"), container.stat("a/b").size_bytes) == (["b"], 4)

@pytest.mark.parametrize("number", range(3))
def test_others_find_nothing(hyperruntime_container, number):
    assert hyperruntime_container.listdir() == []
    assert "left" not in hyperruntime_container.listdir("/")
    assert hyperruntime_container.exec(["tail", "-n", "+3", "/proc/net/dev"]).stdout.split()[::17] == [b"lo:"]
    hyperruntime_container.spawn(["sleep", "1000"])
"""
KEYS = """
import pytest

pytestmark = pytest.mark.hyperruntime(env={"OF": "module", "A": "1"})
SHOW = ["sh", "-c", "echo $OF $A $B; pwd"]

@pytest.mark.hyperruntime(env={"OF": "test"}, workdir="/srv")
def test_the_closest_mark_counts(hyperruntime_container):
    assert hyperruntime_container.exec(SHOW).stdout == b"test 1 b\\n/srv\\n"

def test_arguments_come_last(hyperruntime_containers):
    one, two = hyperruntime_containers(env={"OF": "call"}), hyperruntime_containers()
    assert one.exec(SHOW).stdout == b"call 1 b\\n/workspace\\n"
    assert two.exec(SHOW).stdout == b"module 1 b\\n/workspace\\n"
    assert one.slot.container != two.slot.container

@pytest.mark.hyperruntime(slots_per_container=10)
def test_slots_may_share_a_container(hyperruntime_containers):
    one, two = hyperruntime_containers(), hyperruntime_containers()
    assert one.slot.container == two.slot.container
    one.write_file("mine", b"1")
    assert two.exec(["cat", f"{one.slot.workspace}/mine"]).exit_code != 0
"""
WRONG = """
import pytest

@pytest.mark.hyperruntime(imag="x")
def test_key(hyperruntime_container): pass

@pytest.mark.hyperruntime(image="localhost/none:1")
def test_image(hyperruntime_container): pass

@pytest.mark.hyperruntime(runtime="nope")
def test_engine(hyperruntime_container): pass

@pytest.mark.hyperruntime("alpine")
def test_form(hyperruntime_container): pass
"""
NOTHING = """
import sys

def test_nothing_is_imported():
    ours = [name for name in sys.modules if name.startswith("hyperruntime")]
    assert ours == ["hyperruntime_pytest", "hyperruntime_pytest.plugin"]
"""


HOME = os.environ["HOME"]


@pytest.fixture(autouse=True)
def _engine(pytester: pytest.Pytester, runtime_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYPERRUNTIME_RUNTIME", runtime_name)
    # where rootless engines have their images; pytester has another one
    monkeypatch.setenv("HOME", HOME)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)


def test_the_example_of_the_page_passes(pytester: pytest.Pytester, runtime: Runtime) -> None:
    pytester.makepyfile(test_example=EXAMPLE.read_text())
    result = pytester.runpytest_subprocess(*STRICT)
    if runtime.info.limits.get("memory_bytes", "no") != "no":
        result.assert_outcomes(passed=3)
    else:
        result.assert_outcomes(passed=2, errors=1)
        result.stdout.fnmatch_lines(["*no container: *cannot honour limits.memory_bytes*"])


def test_each_test_has_a_fresh_container_in_each_worker(
    pytester: pytest.Pytester, engine_command: EngineCommand
) -> None:
    pytester.makepyfile(OWN)
    pytester.runpytest_subprocess("-n", "2", *STRICT).assert_outcomes(passed=4)
    names = (pytester.path / "names").read_text().split()
    assert len(set(names)) == 4
    assert set(names) & set(engine_command.containers()) == set()


def test_keys_come_from_the_file_the_marks_and_the_call(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nhyperruntime =\n    env = A=0;B=b\n    limits_pids = 99\n")
    pytester.makepyfile(KEYS)
    pytester.runpytest_subprocess("--strict-markers", *STRICT).assert_outcomes(passed=3)


def test_what_a_test_cannot_have_is_one_sentence(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(WRONG)
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(errors=4)
    result.stdout.fnmatch_lines_random(
        [
            "*no container: profiles.pytest.imag=*did you mean 'image'*",
            "*no container: *image 'localhost/none:1' is not on this machine*",
            "*no container: unknown runtime 'nope'*",
            "*no container: the mark hyperruntime takes keys only*",
        ]
    )
    result.stdout.no_fnmatch_line("*During handling*")
    pytester.makeini("[pytest]\nhyperruntime =\n    imag = x\n")
    pytester.runpytest_subprocess("-k", "test_key").stdout.fnmatch_lines(
        ["*no container: imag='x'*image*"]
    )


def test_nothing_is_imported_unless_it_is_used(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(NOTHING)
    pytester.runpytest_subprocess(*STRICT).assert_outcomes(passed=1)
    pytester.runpytest_subprocess("--fixtures").stdout.fnmatch_lines(["hyperruntime_container *"])
    pytester.runpytest_subprocess("--markers").stdout.fnmatch_lines(["@pytest.mark.hyperruntime(*"])
