"""Worlds: the levels of HyperAgents, the keys of NetHack, and the agents of the examples."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator, Mapping
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hyperdomain_babyai import BabyAI
from hyperdomain_nethack import NLE, MiniHack
from hyperdomain_nethack.game import Game, depth_or_experience
from hyperruntime.errors import HyperRuntimeError

AGENTS = Path(__file__).parents[3] / "examples/agents"


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield the module of the scripted agent; its other modules are forgotten afterwards."""
    monkeypatch.syspath_prepend(str(AGENTS / "scripted"))
    before = set(sys.modules)
    yield importlib.import_module("task_agent")
    for name in set(sys.modules) - before:
        if str(AGENTS) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_the_levels_of_the_original_are_played_by_rules(scripted: Any) -> None:
    domain = BabyAI("original")
    tasks = domain.tasks("train")
    assert (len(tasks), len({task.inputs["level"] for task in tasks})) == (50, 5)
    scores = []
    for task in tasks[:10]:
        episode = domain.dialogue(task)
        agent = scripted.TaskAgent()
        told: Mapping[str, Any] | None = episode.begin()
        while told is not None:
            told = episode.reply(agent.forward(told)[0])
        scores.append(domain.score(task, episode.outcome(None)))
        episode.close()
    report = domain.report("train", scores)
    assert report["score"] >= 0.6
    assert sum(score.facts["failed_actions"] for score in scores) == 0


def test_a_missing_game_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyperdomain_worlds.find_spec", lambda name: None)
    for domain in (NLE(), MiniHack("Room-5x5-v0")):
        with pytest.raises(HyperRuntimeError, match=rf"hyperruntime\[{domain.name}\]"):
            domain.tasks("train")


class CompassDirection(IntEnum):
    N = ord("k")


class CompassDirectionLonger(IntEnum):
    N = ord("K")


class MiscAction(IntEnum):
    MORE = 13


class Command(IntEnum):
    EAT = ord("e")
    SAVE = ord("S")


class FakeGame:
    """Screens in turn, and the keys that were pressed."""

    def __init__(self, *screens: str, depths: tuple[int, ...] = ()) -> None:
        self.unwrapped = self
        kinds: list[Any] = [CompassDirection, CompassDirectionLonger, MiscAction, Command]
        self.actions = tuple(action for kind in kinds for action in kind)
        self.pressed: list[str] = []
        self.seeds: dict[str, Any] = {}
        self._screens = list(screens)
        self._depths = list(depths)

    def seed(self, **seeds: Any) -> None:
        self.seeds = seeds

    def reset(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return self._seen(), {}

    def step(self, place: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.pressed.append(chr(self.actions[place]))
        status = SimpleNamespace(name="RUNNING" if self._screens else "DEATH")
        over = not self._screens
        return ({} if over else self._seen()), 0.0, over, False, {"end_status": status}

    def close(self) -> None:
        pass

    def _seen(self) -> dict[str, Any]:
        text = self._screens.pop(0)
        depth = self._depths.pop(0) if self._depths else 1
        statistics = [0] * 27
        statistics[12], statistics[18] = depth, 1  # fmt: skip
        rows = [line.ljust(80).encode("latin-1") for line in text.split("\n")]
        return {"tty_chars": rows, "blstats": statistics}


def test_single_keys_are_actions_only_while_the_game_asks() -> None:
    game = FakeGame("Hello.", "What do you want to eat? [ab or ?*]", "You eat.")
    played = Game(game, 3, 10, "eat", depth_or_experience)
    first = played.begin()
    assert first["actions"] == ["north", "far north", "more", "eat"]
    assert "S" not in first["actions"], "it would save and leave the game"
    asked = played.reply("Eat")
    assert asked is not None
    assert {"k", "S"} <= set(asked["actions"])
    last = played.reply("S")
    assert last is not None
    assert last["actions"] == first["actions"]
    assert game.pressed == ["e", "S"]
    assert game.seeds == {"core": 3, "disp": 3, "reseed": False}


def test_messages_that_go_on_are_read_at_once_and_kept() -> None:
    game = FakeGame("Hello.", "You fall.--More--", "It hurts.--More--", "Ouch.", depths=(1, 1, 3))
    played = Game(game, 3, 10, "fall", depth_or_experience)
    told = played.reply("north")
    assert told is not None
    assert told["messages"] == ["You fall.", "It hurts."]
    assert told["observation"].startswith("Ouch.")
    assert played.reply("north") is None, "the game is over"
    outcome = played.outcome(None)
    json.dumps(outcome, allow_nan=False)
    assert outcome["progress"] == pytest.approx(2 / 50)
    assert game.pressed == ["k", "\r", "\r", "k"]
