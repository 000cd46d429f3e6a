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
from hyperruntime.host.process import ProcessResult
from hyperruntime_apptainer import probe as apptainer
from hyperruntime_bubblewrap import probe as bubblewrap
from hyperruntime_podman import probe as podman
from hyperruntime_podman.args import SLIRP

WORKS = "memory 67108864\npids 100\ncpu 50000\nids 1\nids 1\nseccomp 2\nworks"
WITHOUT_LIMITS = "memory none\npids none\ncpu none\nids 1\nids 1\nseccomp 2\nworks"
STARTS, FORKS, MEMORY = "usr-is-writable", "sleep 600", "head -c 150000000"
PODMAN = {"info": "4.3.1 overlay", "--memory": WORKS, "run": WITHOUT_LIMITS}

APPTAINER = {
    "--version": "apptainer version 1.4.5",
    STARTS: "root overlay\nlink lo\nseccomp 2\nusers\nuid 0\nworks",
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
    """An engine's programs, which print something or hang. The trials of one test, in order."""

    def __init__(self, folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.trials: list[str] = []
        self._folder, self._cache = folder, cache
        self._hangs: Callable[[str], bool] = lambda _: False
        self._answers: dict[str, str] = {}
        monkeypatch.setattr(engine_program, "run_process", self._run)
        monkeypatch.setenv("PATH", str(folder))
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
        # a PATH without rm leaves the trials' files: let pytest remove them
        monkeypatch.setenv("APPTAINER_TMPDIR", str(folder))

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
            (self._folder / name).touch(0o755)

    def _run(
        self,
        args: Sequence[str],
        *,
        input: bytes | None = None,  # noqa: A002 - of run_process
        **_: Any,
    ) -> ProcessResult:
        said = " ".join([*args, (input or b"").decode()])
        self.trials.append(said)
        if self._hangs(said):
            raise TimeoutError(f"{args[0]} was ended")
        answer = next((text for word, text in self._answers.items() if word in said), "nothing")
        return ProcessResult(
            args=tuple(args), exit_code=0, stdout=f"{answer}\n".encode(), stderr=b""
        )

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
        ("apptainer", STARTS, apptainer.probe, 4),  # --version, an overlay, and two containers
        ("bubblewrap", "", bubblewrap.probe, 2),
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


def never(said: str) -> bool:
    return False


@pytest.mark.parametrize(
    ("hangs", "first_only", "memory", "bridge", "trials"),
    [
        ("nothing", False, "cgroup", SLIRP, 4),
        ("--memory", False, "no", "", 4),  # no network is tried after two late trials
        ("--memory", True, "cgroup", SLIRP, 6),  # the combination is tried again in the end
        ("--network slirp4netns,--network pasta", False, "cgroup", "", 5),
    ],
)
def test_what_podman_does_not_answer_in_time_is_not_claimed_and_not_remembered(
    engine: Engine, hangs: str, first_only: bool, memory: str, bridge: str, trials: int
) -> None:
    def hang(said: str) -> bool:
        is_meant = any(word in said for word in hangs.split(","))
        return is_meant and not (first_only and len(engine.trials) > 2)

    engine.plays(["podman"], PODMAN, hang)
    found = podman.probe()
    assert found.version == "4.3.1"
    assert (found.settings.limits["memory_bytes"], found.settings.bridge) == (memory, bridge)
    assert len(engine.trials) == trials
    assert len(engine.remembered) == (hangs == "nothing")
    if hangs == "nothing":
        assert podman.cached_probe() == (found, True)


@pytest.mark.parametrize(("late", "field"), [(None, ""), (FORKS, "pids"), (MEMORY, "memory_bytes")])
def test_a_limit_of_apptainer_whose_trial_is_late_is_not_claimed_and_not_remembered(
    engine: Engine, late: str | None, field: str
) -> None:
    engine.plays(*PROGRAMS["apptainer"], lambda said: late is not None and late in said)
    found = apptainer.probe()
    wanted = {"pids": "rlimit", "memory_bytes": "cgroup", "cpus": "no"}
    assert found.settings.limits == {**wanted, **({field: "no"} if field else {})}
    assert len(engine.remembered) == (late is None)


def test_one_late_trial_of_apptainer_leaves_the_next_combination(engine: Engine) -> None:
    engine.plays(*PROGRAMS["apptainer"], lambda said: STARTS in said and len(engine.trials) == 3)
    found = apptainer.probe().settings
    assert (found.users, found.seccomp, found.sysfs) == (True, True, False)
    assert engine.remembered == []


@pytest.mark.parametrize("late", [True, False])
def test_a_limit_on_processes_of_bubblewrap_needs_evidence(engine: Engine, late: bool) -> None:
    engine.plays(
        *PROGRAMS["bubblewrap"], lambda said: late and FORKS in said and len(engine.trials) == 3
    )
    found = bubblewrap.probe()
    limit = "no" if late else "rlimit"
    assert (found.version, found.users, found.pids) == ("0.8.0", True, limit)
    engine.plays(PROGRAMS["bubblewrap"][0], {**BUBBLEWRAP, FORKS: "works"}, never)
    assert bubblewrap.probe().pids == "no"


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
