"""A trial that does not end in time is no answer of the engine: it is not remembered, and two of
them end a probe.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hyperruntime.errors import EngineUnavailableError
from hyperruntime.host import engine_program
from hyperruntime.host.engine_program import Trials, is_fork_limited
from hyperruntime.host.process import ProcessResult, run_process
from hyperruntime_apptainer import probe as apptainer
from hyperruntime_bubblewrap import driver as bubblewrap
from hyperruntime_podman import probe as podman

SHORT_S = 0.1
LONG_S = 120.0
WORKS = "memory 67108864\npids 100\ncpu 50000\nids 1\nids 1\nworks"
WITHOUT_LIMITS = "memory none\npids none\ncpu none\nids 1\nids 1\nworks"
STARTS, FORKS, MEMORY = "usr-is-writable", "sleep 600", "head -c 150000000"
PODMAN = {"info": "4.3.1 overlay", "--memory": WORKS, "run": WITHOUT_LIMITS}

APPTAINER = {
    "--version": "apptainer version 1.4.5",
    STARTS: "root overlay\nlink lo\nseccomp 2\nusers\nworks",
    FORKS: "root overlay\nfirst sh: 2: Cannot fork",
    MEMORY: "root overlay\nKilled",
}
BUBBLEWRAP = {
    "--version": "bubblewrap 0.8.0",
    "echo users": "users",
    FORKS: "works\nfirst sh: 2: Cannot fork",
}
PROGRAMS = {
    "podman": (["podman"], PODMAN),
    "apptainer": (["apptainer", "unshare", "mount"], APPTAINER),
    "bubblewrap": (["bwrap", "unshare", "prlimit"], BUBBLEWRAP),
}


class Engine:
    """An engine's programs on PATH, which print something or hang. The trials of one test, in
    order.
    """

    def __init__(self, folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.trials: list[str] = []
        self._folder, self._cache = folder, cache
        self._hangs: Callable[[str], bool] = lambda _: False
        self._answers: dict[str, str] = {}
        monkeypatch.setattr(engine_program, "run_process", self._run)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache))

    def plays(
        self, programs: Sequence[str], answers: dict[str, str], hangs: Callable[[str], bool]
    ) -> None:
        """Put programs on PATH.

        Args:
            programs: their names.
            answers: what a program prints whose arguments or input hold a text; the first one
                counts.
            hangs: whether a program hangs, given its arguments and its input.
        """
        self._answers, self._hangs = answers, hangs
        for name in programs:
            (program := self._folder / name).write_text(
                '#!/bin/sh\n[ -n "$HYPERRUNTIME_TEST_ANSWER" ] || exec sleep 1000\necho '
                '"$HYPERRUNTIME_TEST_ANSWER"\n'
            )
            program.chmod(0o755)

    def _run(
        self, args: Sequence[str], *, env: dict[str, str], timeout_s: float, **options: Any
    ) -> ProcessResult:
        """Run a program. Only one that hangs has a short time limit, so that no other is late on a
        busy machine.
        """
        said = " ".join([*args, (options.get("input") or b"").decode()])
        self.trials.append(said)
        hangs = self._hangs(said)
        answer = (
            ""
            if hangs
            else next((text for word, text in self._answers.items() if word in said), "nothing")
        )
        env = {**env, "PATH": os.environ["PATH"], "HYPERRUNTIME_TEST_ANSWER": answer}
        return run_process(args, env=env, timeout_s=SHORT_S if hangs else LONG_S, **options)

    @property
    def remembered(self) -> list[Path]:
        return list(self._cache.rglob("*.json"))


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Programs of an ordinary user without remembered probes."""
    (folder := tmp_path / "bin").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    return Engine(folder, tmp_path / "cache", monkeypatch)


@pytest.mark.parametrize(
    ("name", "hangs", "probe", "trials"),
    [
        ("podman", " run ", podman.probe, 3),  # podman info, and two containers
        ("apptainer", STARTS, apptainer.probe, 3),  # apptainer --version, and two containers
        ("bubblewrap", "", bubblewrap.try_here, 2),
    ],
)
def test_an_engine_that_hangs_is_given_up_after_two_trials(
    engine: Engine, name: str, hangs: str, probe: Callable[[], Any], trials: int
) -> None:
    """The error is one sentence with the cause and the next step; nothing is remembered."""
    engine.plays(*PROGRAMS[name], lambda said: hangs in said)
    with pytest.raises(EngineUnavailableError) as found:
        probe()
    assert len(engine.trials) == trials
    message = str(found.value)
    assert "its trial containers did not end in time" in message
    assert message.endswith("; try again when the machine is less busy, or restart the engine")
    assert "\n" not in message
    assert engine.remembered == []


def test_a_podman_that_answers_is_remembered(engine: Engine) -> None:
    engine.plays(["podman"], PODMAN, lambda _: False)
    found = podman.probe()
    assert (found.version, found.settings.limits, found.settings.bridge) == (
        "4.3.1",
        {"memory_bytes": "cgroup", "pids": "cgroup", "cpus": "cgroup"},
        True,
    )
    assert len(engine.remembered) == 1
    assert podman.cached_probe() == (found, True)


def test_a_podman_whose_limits_hang_works_without_them_and_is_not_remembered(
    engine: Engine,
) -> None:
    engine.plays(["podman"], PODMAN, lambda said: "--memory" in said)
    found = podman.probe()
    assert (found.settings.limits["memory_bytes"], found.settings.limits["cpus"]) == ("no", "no")
    assert len([said for said in engine.trials if "--memory" in said]) == 2
    assert engine.remembered == []
    assert not podman.cached_probe()[1]


def test_one_late_trial_of_podman_is_made_good_by_a_second_one_and_not_remembered(
    engine: Engine,
) -> None:
    engine.plays(["podman"], PODMAN, lambda said: "--memory" in said and len(engine.trials) == 2)
    found = podman.probe()
    assert (found.settings.limits["memory_bytes"], found.settings.bridge) == ("cgroup", True)
    assert engine.remembered == []


def test_a_podman_whose_bridge_hangs_works_without_it_and_is_not_remembered(engine: Engine) -> None:
    engine.plays(
        ["podman"],
        PODMAN,
        lambda said: "--network bridge" in said or "--network slirp4netns" in said,
    )
    found = podman.probe()
    assert (found.settings.limits["memory_bytes"], found.settings.bridge) == ("cgroup", False)
    assert len(engine.trials) == 3, "podman info, one container, one with a network"
    assert engine.remembered == []


def plays_apptainer(engine: Engine, hangs: Callable[[str], bool], **answers: str) -> None:
    engine.plays(PROGRAMS["apptainer"][0], {**APPTAINER, **answers}, hangs)


def test_an_apptainer_that_answers_is_remembered(engine: Engine) -> None:
    plays_apptainer(engine, lambda _: False)
    found = apptainer.probe()
    assert found.settings.limits == {"pids": "rlimit", "memory_bytes": "cgroup", "cpus": "no"}
    assert len(engine.remembered) == 1


@pytest.mark.parametrize(("late", "field"), [(FORKS, "pids"), (MEMORY, "memory_bytes")])
def test_a_limit_of_apptainer_whose_trial_is_late_is_not_claimed_and_not_remembered(
    engine: Engine, late: str, field: str
) -> None:
    plays_apptainer(engine, lambda said: late in said)
    found = apptainer.probe()
    assert [name for name, how in found.settings.limits.items() if how == "no"] == sorted(
        [field, "cpus"], reverse=True
    )
    assert engine.remembered == []


@pytest.mark.parametrize(
    "printed", ["", "root overlay", "root overlay\nfirst", "root overlay\nfirst unlimited"]
)
def test_a_limit_on_processes_of_apptainer_needs_evidence(engine: Engine, printed: str) -> None:
    plays_apptainer(engine, lambda _: False, **{FORKS: printed or "nothing"})
    assert apptainer.probe().settings.limits["pids"] == "no"


def test_one_late_trial_of_apptainer_leaves_the_next_combination(engine: Engine) -> None:
    plays_apptainer(engine, lambda said: STARTS in said and len(engine.trials) == 2)
    found = apptainer.probe()
    assert (found.settings.users, found.settings.seccomp, found.settings.sysfs) == (
        True,
        True,
        False,
    )
    assert "did not finish a test of the engine" in found.tried[0][1]
    assert engine.remembered == []


def plays_bubblewrap(engine: Engine, hangs: Callable[[str], bool], **answers: str) -> None:
    engine.plays(PROGRAMS["bubblewrap"][0], {**BUBBLEWRAP, **answers}, hangs)


@pytest.mark.parametrize("late", [True, False])
def test_a_limit_on_processes_of_bubblewrap_needs_evidence(engine: Engine, late: bool) -> None:
    plays_bubblewrap(engine, lambda said: late and "prlimit" in said)
    found = bubblewrap.try_here()
    assert (found.version, found.users, found.limits["pids"]) == (
        "0.8.0",
        True,
        "no" if late else "rlimit",
    )
    plays_bubblewrap(engine, lambda _: False, **{FORKS: "works"})
    assert bubblewrap.try_here().limits["pids"] == "no"


@pytest.mark.parametrize(
    ("printed", "limited"),
    [
        ("works\nfirst sh: 2: Cannot fork", True),
        ("first sh: fork: retry: Resource temporarily unavailable", True),
        ("first unlimited", False),
        ("works\nfirst", False),
        ("works", False),
        ("", False),
    ],
)
def test_a_limit_on_processes_counts_only_if_a_fork_failed(printed: str, limited: bool) -> None:
    assert is_fork_limited(printed) is limited


def test_after_two_late_trials_no_other_one_runs(engine: Engine) -> None:
    engine.plays(["slow"], {}, lambda _: True)
    trials = Trials("podman")
    results = [trials.run(["slow", str(number)]) for number in range(4)]
    assert [result.is_late for result in results] == [True] * 4
    assert [result.exit_code for result in results] == [124] * 4
    assert (len(engine.trials), trials.late, trials.is_over) == (2, 2, True)
    assert "did not finish a test of the engine within" in results[0].error_text
