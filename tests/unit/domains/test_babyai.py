"""Episodes in BabyAI worlds: their observations, their score and their end."""

from __future__ import annotations

import json
import re
import sys
from statistics import stdev
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperdomain_babyai import BabyAI
from hyperdomain_babyai.episode import MAX_TURNS
from hyperruntime.errors import HyperRuntimeError, SpecError
from tests.unit.domains.answers import ANSWERS


def test_an_episode_is_described_in_words_and_ends_with_its_mission() -> None:
    domain = BabyAI()
    episode = domain.dialogue(domain.tasks("train")[0])
    first = episode.begin()
    assert first["mission"] == "go to a green ball"
    assert (
        "You see a green ball 2 steps forward and 1 step to the right."
        in first["observation"].splitlines()
    )
    second = episode.reply("go forward")
    assert second is not None
    assert (
        "You see a green ball 1 step forward and 1 step to the right."
        in second["observation"].splitlines()
    )
    assert episode.reply({"hack": 1})["note"] != ""  # type: ignore[index]
    assert episode.reply("Go  Forward") is not None
    assert episode.reply("turn right") is None
    score = domain.score(domain.tasks("train")[0], episode.outcome(None))
    episode.close()
    assert (score.value, score.valid, score.facts["failed_actions"]) == (1.0, True, 1)
    assert (
        domain.report("train", [score])["environments"]["GoToLocal-v0"]["progression_percentage"]
        == 100.0
    )


def test_an_episode_ends_after_a_limited_number_of_turns() -> None:
    domain = BabyAI("GoToLocal-v0")
    episode = domain.dialogue(domain.tasks("val")[0])
    turns = 1
    while episode.reply("turn left") is not None:
        turns += 1
    assert turns <= 64
    assert domain.score(domain.tasks("val")[0], episode.outcome("it stopped")).value == 0.0
    episode.close()


def test_worlds_print_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    domain = BabyAI("GoToSeqS5R2-v0")
    domain.dialogue(domain.tasks("train")[0]).close()
    assert capsys.readouterr().out == ""


def test_a_missing_package_raises_an_error_with_the_extra_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "minigrid", None)
    monkeypatch.setattr("hyperdomain_worlds.find_spec", lambda name: None)
    with pytest.raises(HyperRuntimeError, match=r"hyperruntime\[babyai\]"):
        BabyAI().tasks("train")


def test_an_unknown_level_is_rejected_before_a_run() -> None:
    with pytest.raises(SpecError, match="did you mean 'GoToLocal-v0'"):
        BabyAI("OpenDoor-v0+GoToLocl-v0").tasks("train")


@given(
    turns=st.lists(
        ANSWERS | st.sampled_from(("go forward", "toggle", "pick up", "drop", "turn left")),
        max_size=70,
    )
)
@settings(max_examples=10)
def test_any_turn_is_accepted_and_an_episode_is_finite(turns: list[Any]) -> None:
    domain = BabyAI("PickupLoc-v0")
    (task, *_) = domain.tasks("train")
    episode = domain.dialogue(task)
    told: Any = episode.begin()
    taken = 0
    for turn in turns:
        taken += 1
        told = episode.reply(turn)
        if told is None:
            break
        json.dumps(told, allow_nan=False)
        assert (told["turn"], told["max_turns"]) == (taken + 1, MAX_TURNS)
    episode.close()
    assert taken <= MAX_TURNS
    outcome = episode.outcome(None)
    json.dumps(outcome, allow_nan=False)
    assert 0 <= domain.score(task, outcome).value <= 1


def test_a_report_has_the_progress_in_percent_per_level() -> None:
    domain = BabyAI("OpenDoor-v0+GoToLocal-v0")
    tasks = domain.tasks("train")
    outcomes: list[dict[str, Any]] = [
        {"progress": progress, "turns": 3, "failed_actions": 1, "actions": [], "problem": None}
        for progress in (1.0, 0.0, 0.5, 0.0)
    ]
    scores = [domain.score(task, outcome) for task, outcome in zip(tasks, outcomes, strict=True)]
    report = domain.report("train", scores)
    assert report["average_progress"] == 37.5
    assert report["score"] == 0.375
    assert report["standard_error"] == pytest.approx(100 * stdev([1.0, 0.0, 0.5, 0.0]) / 2)
    assert report["environments"]["OpenDoor-v0"] == {
        "progression_percentage": 75.0,
        "standard_error": pytest.approx(25.0),
        "episodes_played": 2,
        "failed_action_candidates": 2,
    }


def test_tasks_and_observations_do_not_contain_the_seed() -> None:
    domain = BabyAI()
    first, other = domain.tasks("train")[0], domain.tasks("val")[0]
    told = []
    for task in (first, other):
        episode = domain.dialogue(task)
        told.append((json.dumps([task.id, dict(task.inputs)]), json.dumps(episode.begin())))
        episode.close()
    assert not re.search(r"\d{4}", str(told))
    assert told[0][1] != told[1][1], "two splits must not share a world"
