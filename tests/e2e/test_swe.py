"""The environment ``swe`` on a real engine: the rewards of honest agents."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

import hyperruntime as hr
from hyperenvironment_swe import Swe
from hyperenvironment_swe.judging import JudgeError
from hyperruntime.rollout.environment import Verdict
from tests.params import first_quick
from tests.swecase import (
    PYTEST,
    judged,
    make_repository,
    make_site,
    make_wheelhouse,
    rewards,
    row_of,
    swe_of,
    with_site,
)

pytestmark = pytest.mark.engine

ODD = """
import pytest

from odd import half

@pytest.mark.parametrize("word", ["a b", "c[d]", "it's", 'q"q', "x::y", "$(touch z)"])
def test_words(word):
    assert half(4) == 2, word

@pytest.mark.skip(reason="not now")
def test_skipped():
    pass

@pytest.mark.xfail
def test_expected():
    assert False

class TestClass:
    def test_method(self, request):
        assert half(3) == 1.5
"""
ODD_IDS = [
    f"tests/test odd.py::test_words[{word}]"
    for word in ("a b", "c[d]", "it's", 'q"q', "x::y", "$(touch z)")
]


CUT = """
import pytest
from odd import half

@pytest.mark.parametrize("word", ["a b", "a c"])
def test_odd(word):
    assert half(3) == 1.5

@pytest.mark.parametrize("word", ["a b", "c"])
def test_even(word):
    assert half(4) == 2

def test_network():
    raise OSError("no network")
"""
CUT_EVEN = "tests/test_cut.py::test_even[a"


def solution(task: str) -> str:
    """Return a shell program that applies the shipped solution of a task."""
    row = json.loads(
        resources.files("hyperenvironment_swe").joinpath("tasks", task, "task.json").read_text()
    )
    return f"git apply - <<'PATCH'\n{row['patch']}PATCH\n"


@pytest.mark.parametrize("task", first_quick("split-bill", "title-slugs"))
def test_a_repair_scores_one_and_an_inspection_zero(
    task: str, runtime: hr.Runtime, base_image: str, tmp_path: Path
) -> None:
    """R1, R10: the shipped tasks need only the base image."""
    agents = {
        "fixes": solution(task),
        "looks": "cat */*.py; git log",
        "writes beside": "echo a note > notes.txt",
    }
    environment = Swe(cache_dir=str(tmp_path / "cache"))
    verdicts = judged(runtime, base_image, environment, agents, task)
    assert {name: (verdict.reward, verdict.phase) for name, verdict in verdicts.items()} == {
        "fixes": (1.0, "tests"),
        "looks": (0.0, "agent"),
        "writes beside": (0.0, "tests"),
    }
    parts = {"install": 1.0, "pass_to_pass": 1.0, "fail_to_pass": 0.0}
    assert verdicts["writes beside"].parts == parts


@pytest.mark.slow
def test_pytest_ids_reach_pytest_unchanged(
    runtime: hr.Runtime, base_image: str, tmp_path: Path
) -> None:
    """W24: ids with spaces, brackets, quotes and dollars, or cut at a space as SWE-bench's are.

    A test of PASS_TO_PASS that the base skips, or expects to fail, does not count; one that does
    not exist is an error.
    """
    files = {
        "odd/__init__.py": "def half(n):\n    return n // 2\n",
        "tests/test odd.py": ODD,
        "tests/test_cut.py": CUT,
    }
    common = row_of(tmp_path / "odd repo", files, repo_dir="odd")
    ok = [*ODD_IDS, "tests/test odd.py::TestClass::test_method"]
    skips = ["tests/test odd.py::test_skipped"]
    wanted: dict[str, tuple[Any, Any]] = {
        "plain": (json.dumps(ok), []),
        "skip": (ok, skips),
        "xfail": (ok, ["tests/test odd.py::test_expected"]),
        "cut": (["tests/test_cut.py::test_odd[a"], [CUT_EVEN]),
        "wants-a-skip": (skips, None),
        "absent": (["tests/test odd.py::test_gone"], None),
        "fails": (ok, ["tests/test_cut.py::test_network"]),
    }
    rows = [
        {**common, "id": name, "FAIL_TO_PASS": fails}
        | ({} if passes is None else {"PASS_TO_PASS": passes})
        for name, (fails, passes) in wanted.items()
    ]
    base = with_site(hr.ContainerSpec(image=base_image), make_site(tmp_path / "site"))
    environment = swe_of(tmp_path, *rows)
    agents = {"agent": "sed -i s,//,/, odd/__init__.py", "half": "echo half > notes"}
    found = {name: judged(runtime, base, environment, agents, name) for name in [*wanted][:5]}
    once = (1.0, 0.0)
    assert {name: tuple(rewards(verdicts).values()) for name, verdicts in found.items()} == {
        **dict.fromkeys(("plain", "skip", "xfail", "cut"), once),
        "wants-a-skip": (0.0, 0.0),
    }, found
    assert found["skip"]["agent"].facts["skipped_on_base"] == skips
    for name, why in (
        ("absent", "test_gone"),
        ("fails", r"do not pass on its base: .*test_network .*no network"),
    ):
        with pytest.raises(JudgeError, match=rf"(?s)item {name} cannot be judged here.*{why}"):
            judged(runtime, base, environment, agents, name)


PACKAGE = {
    "pyproject.toml": """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "fruit"
version = "1"
[tool.setuptools]
packages = ["fruit"]
package-dir = {fruit = "src/fruit"}
[tool.pytest.ini_options]
addopts = "-x"
""",
    "src/fruit/__init__.py": "def count(basket):\n    return len(set(basket))\n",
    "tests/test_count.py": "import fruit\n\ndef test_count():\n    assert fruit.count('aab') == 3\n",
    ".gitignore": ".venv\n*.egg-info\nbuild\n",
}


def judge_package(
    runtime: hr.Runtime, image: str, tmp_path: Path, agents: dict[str, str], **row: str
) -> dict[str, Verdict]:
    """Return the verdicts on agents that work on a package whose tests need it to be installed."""
    wheelhouse = make_wheelhouse(tmp_path / "wheels", (*PYTEST, "pip", "setuptools"))
    tests = {"FAIL_TO_PASS": '["tests/test_count.py::test_count"]', "PASS_TO_PASS": "[]"}
    made = row_of(tmp_path / "own" / "fruit", PACKAGE, **tests)
    environment = swe_of(
        tmp_path,
        {**made, "repo": "own/fruit", **row},
        repo_base_url=str(tmp_path),
        wheelhouse=str(wheelhouse),
    )
    return judged(runtime, image, environment, agents)


REPAIR = "sed -i 's/len(set(basket))/len(basket)/' src/fruit/__init__.py"


@pytest.mark.slow
def test_packages_are_installed_from_a_wheelhouse_without_network(
    runtime: hr.Runtime, base_image: str, tmp_path: Path
) -> None:
    """R10: pip takes wheels from a directory; an agent that breaks the installation gets 0 in the
    phase ``install``.
    """
    agents = {
        "fixes": REPAIR,
        "breaks": f"{REPAIR}; echo '[' >> pyproject.toml",
        "needs what is not there": f"{REPAIR}; sed -i 's/.setuptools..$/[\"nowhere\"]/' pyproject.toml",
    }
    verdicts = judge_package(runtime, base_image, tmp_path, agents)
    assert {name: (verdict.phase, verdict.reward) for name, verdict in verdicts.items()} == {
        "fixes": ("tests", 1.0),
        "breaks": ("install", 0.0),
        "needs what is not there": ("install", 0.0),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("install", "why"),
    [
        ("echo no compiler here; exit 1", r"item fruit cannot be judged.*no compiler here"),
        ("true", "has no pytest"),
    ],
)
def test_a_base_that_cannot_be_tested_raises_and_gives_no_reward(
    runtime: hr.Runtime, base_image: str, tmp_path: Path, install: str, why: str
) -> None:
    """W23: the agent is not at fault, so there is no reward."""
    with pytest.raises(JudgeError, match=why):
        judge_package(runtime, base_image, tmp_path, {"fixes": REPAIR}, install=install)


def test_the_judge_adds_tests_that_the_agent_never_sees(
    runtime: hr.Runtime, base_image: str, tmp_path: Path
) -> None:
    """A test_patch is applied to the agent's result; the agent can reach neither it nor the
    solution.
    """
    files = {"odd/__init__.py": "def half(n):\n    return n // 2\n", "tests/old.py": "import odd\n"}
    test_patch = """--- /dev/null
+++ b/tests/test_new.py
@@ -0,0 +1,4 @@
+import unittest, odd
+class Half(unittest.TestCase):
+    def test_odd(self):
+        assert odd.half(3) == 1.5
"""
    wanted = ["tests/test_new.py::Half::test_odd"]
    row = row_of(
        tmp_path / "odd", files, runner="unittest", test_patch=test_patch, FAIL_TO_PASS=wanted,
        patch="the solution",
    )  # fmt: skip
    environment = swe_of(tmp_path, row)
    agents = {
        "fixes": "test ! -e tests/test_new.py && sed -i s,//,/, odd/__init__.py",
        "stands in its way": "sed -i s,//,/, odd/__init__.py; rm -r tests; echo 1 > tests",
        "writes the test": "mkdir -p tests; echo pass > tests/test_new.py",
    }
    verdicts = judged(runtime, base_image, environment, agents)
    assert rewards(verdicts) == {"fixes": 1.0, "stands in its way": 1.0, "writes the test": 0.0}
    assert "solution" not in str(next(iter(environment.items())).data)


@pytest.mark.slow
def test_a_row_of_swe_smith_begins_with_its_bug(
    runtime: hr.Runtime, base_image: str, tmp_path: Path
) -> None:
    """It has an image and no commit; its patch is the bug. The ids are those that unittest
    prints.
    """
    files = {
        "odd/__init__.py": "def half(n):\n    return n / 2\n",
        "tests/__init__.py": "",
        "tests/test_half.py": "import unittest, odd\n\nclass Half(unittest.TestCase):\n"
        "    def test_odd(self):\n        assert odd.half(3) == 1.5\n\n"
        "    def test_even(self):\n        assert odd.half(4) == 2\n",
    }
    make_repository(tmp_path / "swesmith" / "own__odd.0a1b2c3d", files)
    bug = "--- a/odd/__init__.py\n+++ b/odd/__init__.py\n@@ -1,2 +1,2 @@\n def half(n):\n"
    bug += "-    return n / 2\n+    return n // 2\n"
    row = {
        "instance_id": "own__odd.0a1b2c3d.func__1", "repo": "swesmith/own__odd.0a1b2c3d", "image_name": base_image,
        "patch": bug, "problem_statement": "halve", "FAIL_TO_PASS": ["test_odd (tests.test_half.Half)"],
        "PASS_TO_PASS": ["test_even (tests.test_half.Half.test_even)"], "runner": "unittest",
    }  # fmt: skip
    environment = swe_of(tmp_path, row, repo_base_url=str(tmp_path), repo_dir="work")
    agents = {
        "fixes": "sed -i s,//,/, odd/__init__.py",
        "finds the solution": "git checkout HEAD~1 -- odd || git show origin/main:odd/__init__.py "
        "> odd/__init__.py",
    }
    verdicts = judged(runtime, "localhost/none", environment, agents)
    assert rewards(verdicts) == {"fixes": 1.0, "finds the solution": 0.0}
    assert verdicts["fixes"].parts == {"install": 1.0, "pass_to_pass": 1.0, "fail_to_pass": 1.0}


@pytest.mark.slow
def test_files_that_are_too_large_are_in_the_facts(
    runtime: hr.Runtime, base_image: str, tmp_path: Path
) -> None:
    """A file that is not even read out stays as in the base; its name and the reason are
    reported.
    """
    repair = solution("split-bill")
    agents = {
        "leaves a dump": f"{repair}truncate -s 300M core",
        "swells": f"{repair}truncate -s 300M README.md; truncate -s 20M notes",
    }
    environment = Swe(cache_dir=str(tmp_path / "cache"))
    verdicts = judged(runtime, base_image, environment, agents, "split-bill")
    assert rewards(verdicts) == {"leaves a dump": 1.0, "swells": 1.0}
    dropped = {name: dict(verdict.facts["dropped"]) for name, verdict in verdicts.items()}
    assert dropped["leaves a dump"].keys() == {"core"}
    assert dropped["swells"].keys() == {"README.md", "notes"}
    assert "max_member_bytes" in dropped["swells"]["README.md"] + dropped["leaves a dump"]["core"]


@pytest.mark.slow
def test_a_repository_may_be_at_a_path_of_the_image(
    runtime: hr.Runtime, base_image: str, tmp_path: Path
) -> None:
    """SWE-bench images have it in /testbed, with built files that must stay and a history that must
    go.
    """
    if runtime.name == "bubblewrap":
        pytest.skip("bubblewrap has no images")
    reference = f"{base_image.rpartition('/')[0]}/test-testbed:latest"
    (tmp_path / "image").mkdir()
    (tmp_path / "image" / "Containerfile").write_text(
        f"FROM {base_image}\nRUN mkdir -p /testbed/.git && echo later > /testbed/.git/future && "
        "echo 3.5 > /testbed/built && echo old > /testbed/gone.py\n"
    )
    runtime.images.build(reference, containerfile=tmp_path / "image" / "Containerfile")
    files = {"odd.py": "def half(n):\n    return n // 2\n", "gone.py": "x = 1\n"}
    test = (
        "import os, unittest, odd\nclass Half(unittest.TestCase):\n    def test_odd(self):\n    "
        "    assert odd.half(7) == float(open('built').read())\n        assert not "
        "os.path.exists('gone.py')\n"
    )
    wanted = ["tests/test_half.py::Half::test_odd"]
    row = row_of(
        tmp_path / "odd", {**files, "tests/test_half.py": test}, repo_dir="/testbed",
        image=reference, runner="unittest", FAIL_TO_PASS=wanted,
    )  # fmt: skip
    environment = swe_of(tmp_path, row)
    agents = {
        "fixes": "sed -i s,//,/, odd.py; rm gone.py; test ! -e .git/future && git diff --quiet HEAD "
        "-- tests",
        "leaves a file": "sed -i s,//,/, odd.py",
    }
    programs = {name: f"{program} || rm odd.py" for name, program in agents.items()}
    try:
        verdicts = judged(runtime, base_image, environment, programs)
    finally:
        runtime.images.remove(reference)
    assert rewards(verdicts) == {"fixes": 1.0, "leaves a file": 0.0}
