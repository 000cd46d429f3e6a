"""A reward for a robot: what is measured, and what an answer that cheats gets."""

from __future__ import annotations

import base64
import math
from array import array
from typing import Any

import pytest

from hyperdomain_genesis import ROBOTS, SECONDS, WEIGHTS_BYTES, Genesis
from hyperruntime.domain import Score, Task, Trial, TrialResult
from hyperruntime.errors import SpecError


@pytest.fixture
def domain() -> Genesis:
    return Genesis()


@pytest.fixture
def task(domain: Genesis) -> Task:
    return domain.tasks("train")[0]


def ended(data: bytes = b"", code: int = 0, stderr: bytes = b"") -> TrialResult:
    return TrialResult(exit_code=code, stdout=base64.b64encode(data), stderr=stderr)


def seconds(*row: float) -> array[float]:
    """Return what is printed if each robot did the same in each second."""
    return array("f", row * ROBOTS * SECONDS)


def trained(domain: Genesis, task: Task, result: TrialResult) -> Trial | Score:
    """Return what follows a training with this result."""
    first = domain.trial(task, dict(task.inputs))
    assert isinstance(first, Trial)
    assert first.then is not None
    return first.then(result)


@pytest.mark.parametrize(
    ("goal", "row", "value"),
    [
        ("walk", (0.5, 0.0, 0.3, 1.0), 1.0),
        ("walk", (0.25, 0.0, 0.3, 1.0), 0.5),
        ("walk", (0.5, -0.25, 0.3, 1.0), 0.5),
        ("walk", (0.0, 0.0, 0.3, 1.0), 0.0),
        ("walk", (9.0, 0.0, 0.3, 1.0), 0.0),
        ("back", (-0.5, 0.0, 0.3, 1.0), 1.0),
        ("back", (0.5, 0.0, 0.3, 1.0), 0.0),
        ("hop", (0.0, 0.0, 0.59, 1.0), 0.5),
        ("hop", (0.0, 0.0, 0.3, 1.0), 0.0),
        ("hop", (0.0, 0.0, 9.0, 1.0), 1.0),
        ("walk", (0.5, 0.0, 0.3, 0.0), 0.0),
        ("walk", (math.nan, 0.0, 0.3, 1.0), 0.0),
        ("hop", (0.0, 0.0, math.inf, 1.0), 0.0),
        ("walk", (0.5, 0.0, 0.3, 1e30), 0.0),
    ],
)
def test_a_second_is_scored_by_the_goal_and_a_fall_by_zero(
    goal: str, row: tuple[float, ...], value: float
) -> None:
    domain = Genesis(goal)
    task = domain.tasks("train")[0]
    score = domain.verdict(task, None, ended(seconds(*row).tobytes()))
    assert score.valid
    assert score.value == pytest.approx(value, abs=1e-6)


def test_robots_that_fall_half_way_keep_what_they_walked(domain: Genesis, task: Task) -> None:
    one = (0.5, 0.0, 0.3, 1.0) * 5 + (0.5, 0.0, 0.1, 0.0) * (SECONDS - 5)
    score = domain.verdict(task, None, ended(array("f", one * ROBOTS).tobytes()))
    assert score.value == pytest.approx(0.5)
    assert score.metrics == {"on_feet": 0.0}


def test_the_agents_file_is_only_where_robots_are_trained(domain: Genesis, task: Task) -> None:
    first = domain.trial(task, "a reward")
    assert isinstance(first, Trial)
    assert first.files["reward.py"] == "a reward"
    weights = bytes(WEIGHTS_BYTES)
    second = trained(domain, task, ended(weights))
    assert isinstance(second, Trial)
    assert set(first.files) - set(second.files) == {"reward.py"}
    assert set(second.files) - set(first.files) == {"weights.bin"}
    assert second.files["weights.bin"] == weights


def test_the_splits_measure_from_other_poses(domain: Genesis) -> None:
    trials = [
        trained(domain, domain.tasks(split)[0], ended(bytes(WEIGHTS_BYTES)))
        for split in ("train", "test")
    ]
    assert all(isinstance(trial, Trial) for trial in trials)
    assert len({trial.args for trial in trials if isinstance(trial, Trial)}) == 2


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (ended(), "no policy"),
        (ended(bytes(WEIGHTS_BYTES + 4)), "no policy"),
        (TrialResult(exit_code=0, stdout=b"walks well", stderr=b""), "no policy"),
        (ended(code=152), "used more than 900 processor seconds"),
        (ended(code=1, stderr=b"Traceback\nNameError: tensor"), "NameError: tensor"),
        (TrialResult(exit_code=137, stdout=b"", stderr=b"", timed_out=True), "did not end"),
    ],
)
def test_a_training_without_a_policy_scores_nothing(
    domain: Genesis, task: Task, result: TrialResult, reason: str
) -> None:
    score = trained(domain, task, result)
    assert isinstance(score, Score)
    assert (score.value, score.valid) == (0.0, False)
    assert reason in score.detail


def test_a_measurement_of_another_size_scores_nothing(domain: Genesis, task: Task) -> None:
    whole = seconds(0.5, 0.0, 0.3, 1.0).tobytes()
    for data in (b"", whole[:-4], whole + whole[:4]):
        score = domain.verdict(task, None, ended(data))
        assert (score.value, score.valid) == (0.0, False)


@pytest.mark.parametrize(
    ("goal", "name", "gpu"),
    [
        (None, "genesis", False),
        ("walk", "genesis_walk", False),
        ("hop,gpu", "genesis_hop_gpu", True),
    ],
)
def test_the_argument_sets_the_goal(goal: str | None, name: str, gpu: bool) -> None:
    domain = Genesis(goal)
    task = domain.tasks("test")[0]
    trial = domain.trial(task, "a reward")
    assert isinstance(trial, Trial)
    assert (domain.name, domain.needs_gpu, trial.gpu) == (name, gpu, gpu)
    assert trial.args[7] == ("gpu" if gpu else "cpu")
    asked = trained(domain, task, ended(bytes(WEIGHTS_BYTES)))
    assert isinstance(asked, Trial)
    assert not asked.gpu


@pytest.mark.parametrize("goal", ["", "fly", "gpu", "walk,cpu", "walk,gpu,gpu", "walk,"])
def test_another_argument_is_refused(goal: str) -> None:
    with pytest.raises(SpecError, match="walk, back or hop"):
        Genesis(goal)


@pytest.mark.parametrize("prediction", [None, 3, [], {"files": {"runner.py": ""}}, "\ud800"])
def test_an_answer_that_is_no_program_is_not_run(
    domain: Genesis, task: Task, prediction: Any
) -> None:
    score = domain.trial(task, prediction)
    assert isinstance(score, Score)
    assert (score.value, score.valid) == (0.0, False)
