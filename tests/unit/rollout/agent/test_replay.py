"""Replay: a trajectory that is made again plays its recorded turns back, and its commands run
again.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import hyperruntime as hr
from hyperruntime.errors import NodeLostError, SandboxLostError
from hyperruntime.rollout.agent.agent import Agent, AgentResult, AgentTask, run_agent
from hyperruntime.rollout.agent.replay import same_output
from hyperruntime.rollout.run_files.run_dir import TRAJECTORIES, read_trajectories
from hyperruntime.rollout.run_files.turn_journal import TURNS
from tests.doubles.tokenserver import emitted
from tests.doubles.words import COMMANDS, Adder, Box, Boxes, Words, rollouts


class Killed(BaseException):
    """Ends a run as a kill would: nothing is recorded."""


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyperruntime.rollout.run.runner._RETRY_S", 0.001)


@pytest.mark.parametrize("with_files", [True, False])
@pytest.mark.parametrize("k", range(COMMANDS))
def test_a_sandbox_that_is_lost_at_any_turn_costs_no_model_call(
    k: int, with_files: bool, tmp_path: Path
) -> None:
    boxes = Boxes(lambda box, call: SandboxLostError("gone") if (box, call) == (1, k) else None)
    model = Adder()
    _, (found,) = rollouts(boxes, model, tmp_path / "run" if with_files else None)
    assert model.asked == [("i0", turn) for turn in range(COMMANDS + 1)]
    assert (found.status, found.reward, found.attempts, boxes.given) == ("scored", 1.0, 2, 2)
    assert found.replay == {"turns": k + 1, "tool_calls": k, "restarts": []}
    assert emitted(found.segments) == tuple(token for ids in model.said for token in ids)
    assert [lp for s in found.segments for lp in s.logprobs if lp is not None] == [
        -0.1 / 3,
        -0.5,
    ] * (COMMANDS + 1)
    assert (found.turns, found.usage["completion_tokens"]) == (COMMANDS + 1, 2 * (COMMANDS + 1))
    assert (tmp_path / "run" / TURNS).exists() is False


def killed_run(run_dir: Path, **given: Any) -> tuple[Path, Adder]:
    """Return the journal and the model of a run that was killed before its end, at the verdict."""
    model, world = Adder(), Words(verify_fails=[Killed()])
    with pytest.raises(Killed):
        rollouts(Boxes(), model, run_dir, world=world, **given)
    (journal,) = (run_dir / TURNS).iterdir()
    return journal, model


def test_a_journal_cut_at_any_byte_is_played_back_up_to_its_last_whole_line(tmp_path: Path) -> None:
    journal, first = killed_run(tmp_path / "run")
    data = journal.read_bytes()
    assert len(first.asked) == COMMANDS + 1
    ends = [at + 1 for at in range(len(data)) if data[at : at + 1] == b"\n"]
    for cut in sorted(
        {0, 1, ends[0] - 1, ends[2] - 1, *ends, *random.Random(1).sample(range(len(data)), 5)}
    ):
        (tmp_path / "run" / TURNS).mkdir(exist_ok=True)
        journal.write_bytes(data[:cut])
        turns = data[:cut].count(b'{"is":"turn"') - (
            b'{"is":"turn"' in data[:cut].rpartition(b"\n")[2]
        )
        model = Adder()
        _, (found,) = rollouts(Boxes(), model, tmp_path / "run")
        assert model.asked == [("i0", turn) for turn in range(turns, COMMANDS + 1)], cut
        assert (found.reward, found.attempts) == (
            1.0,
            1 + (b'"attempt"' in data[:cut].rpartition(b"\n")[0]),
        )
        assert emitted(found.segments) == tuple(
            t for ids in [*first.said[:turns], *model.said] for t in ids
        )
        (tmp_path / "run" / TRAJECTORIES).unlink()


@pytest.mark.parametrize(
    "noise", [b"\0" * 50, b"\xff{\n", b"[]\n", b'{"is":"turn","key":3}\n', b'{"is":"x"}\n', b"\r\n"]
)
def test_a_journal_with_garbage_is_played_back_up_to_it_and_goes_on_after_a_second_kill(
    noise: bytes, tmp_path: Path
) -> None:
    journal, first = killed_run(tmp_path / "run")
    lines = journal.read_bytes().splitlines(keepends=True)
    # header, attempt, turn, call
    journal.write_bytes(b"".join(lines[:4]) + noise + b"".join(lines[4:]))
    _, second = killed_run(tmp_path / "run")
    assert second.asked == [("i0", turn) for turn in range(1, COMMANDS + 1)]
    third = Adder()
    _, (found,) = rollouts(Boxes(), third, tmp_path / "run")
    assert (third.asked, found.attempts, found.reward) == ([], 3, 1.0)
    assert emitted(found.segments) == tuple(
        token for ids in [first.said[0], *second.said] for token in ids
    )


def test_a_journal_of_other_options_is_not_played_back(tmp_path: Path) -> None:
    journal, _ = killed_run(tmp_path / "run")
    for old, new in ((b'"options":"', b'"options":"0'), (b'"schema":1', b'"schema":2')):
        data = journal.read_bytes()
        journal.write_bytes(data.replace(old, new))
        model = Adder()
        _, (found,) = rollouts(Boxes(), model, tmp_path / "run")
        assert (len(model.asked), found.attempts, found.replay) == (COMMANDS + 1, 1, {})
        (tmp_path / "run" / TRAJECTORIES).unlink()
        journal.parent.mkdir()
        journal.write_bytes(data)


def swallowing(agent: Agent) -> Agent:
    """Return an agent that ends well whatever happens."""

    async def run(task: AgentTask) -> AgentResult:
        try:
            return await agent(task)
        except hr.HyperRuntimeError:
            return AgentResult(messages=(), stop_reason="finished", turns=0)

    return run


@pytest.mark.parametrize("agent", [run_agent, swallowing(run_agent)])
def test_another_output_on_replay_is_noted_and_the_trajectory_is_begun_anew(
    agent: Agent, tmp_path: Path
) -> None:
    killed_run(tmp_path / "run")

    class Odd(Box):
        async def add(self, name: str, arguments: Mapping[str, Any], task_id: str) -> str:
            answer = await super().add(name, arguments, task_id)
            return answer if len(self.words) < 3 else answer.replace("3 words", "4 words")

    class OddOnce(Boxes):
        @asynccontextmanager
        async def lease(self, spec: hr.ContainerSpec, task_id: str) -> AsyncIterator[Any]:
            self.given += 1
            kind: type[Box] = Odd if self.given == 1 else Box
            yield kind(self.given, lambda box, call: None)

    model, boxes = Adder(), OddOnce()
    _, (found,) = rollouts(boxes, model, tmp_path / "run", agent=agent)
    assert model.asked == [("i0", turn) for turn in range(COMMANDS + 1)]
    assert (found.status, found.reward, found.attempts, boxes.given) == ("scored", 1.0, 3, 2)
    assert (found.replay["turns"], found.replay["tool_calls"]) == (0, 0)
    (why,) = found.replay["restarts"]
    assert (why["attempt"], why["turn"], why["tool"]) == (2, 3, "add")
    assert why["recorded"].startswith('{"output": "3 words')
    assert why["again"].startswith('{"output": "4 words')
    assert emitted(found.segments) == tuple(token for ids in model.said for token in ids)
    assert read_trajectories(tmp_path / "run")[0].replay == found.replay


@pytest.mark.parametrize(
    ("error", "asked"), [(SandboxLostError, 2 + COMMANDS + 1), (NodeLostError, COMMANDS + 1)]
)
def test_a_conversation_that_ends_its_container_twice_is_begun_anew_but_not_after_lost_nodes(
    error: type[Exception], asked: int
) -> None:
    boxes, model = (
        Boxes(lambda box, call: error("gone") if box < 3 and call == 1 else None),
        Adder(),
    )
    _, (found,) = rollouts(boxes, model)
    assert (len(model.asked), found.reward, found.attempts) == (asked, 1.0, 3)
    assert [why.get("error") for why in found.replay["restarts"]] == ["SandboxLostError: gone"] * (
        asked > COMMANDS + 1
    )


def test_a_failed_verification_costs_no_model_call_unless_it_fails_twice() -> None:
    for fails, asked in ((1, COMMANDS + 1), (2, 2 * (COMMANDS + 1))):
        model, world = Adder(), Words(verify_fails=[OSError("disk full")] * fails)
        _, (found,) = rollouts(Boxes(), model, world=world)
        assert (len(model.asked), found.reward, found.attempts) == (asked, 1.0, fails + 1)


def test_a_failed_trajectory_that_is_retried_on_request_is_played_back(tmp_path: Path) -> None:
    def gone(box: int, call: int) -> Exception | None:
        return NodeLostError("gone") if call == 3 else None

    first = Adder()
    assert rollouts(Boxes(gone), first, tmp_path)[1][0].attempts == 3
    assert rollouts(Boxes(), Adder(), tmp_path)[0].scored == 0
    second = Adder()
    summary, (found,) = rollouts(Boxes(), second, tmp_path, retry_failed=True)
    assert (first.asked, second.asked) == ([("i0", n) for n in range(4)], [("i0", 4)])
    assert (summary.scored, found.attempts, (tmp_path / TURNS).exists()) == (1, 4, False)


def test_calls_that_run_at_once_are_played_back() -> None:
    async def agent(task: AgentTask) -> AgentResult:
        first, second = await asyncio.gather(
            *(
                task.model.complete(
                    [*task.messages, {"role": "user", "content": who}], (), task.sampling
                )
                for who in "ab"
            )
        )
        words = [
            str(turn.message["tool_calls"][0]["function"]["arguments"]) for turn in (first, second)
        ]
        await asyncio.gather(
            *(task.tool_handler("add", json.loads(word), task.id) for word in words)
        )
        await task.model.complete(
            [*task.messages, first.message, second.message], (), task.sampling
        )
        return AgentResult(messages=(), stop_reason="finished", turns=3)

    model = Adder()
    world = Words(verify_fails=[OSError("no")])
    _, (found,) = rollouts(Boxes(), model, agent=agent, world=world)
    assert (len(model.asked), found.replay["turns"], found.replay["tool_calls"]) == (3, 3, 2)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("3 passed in 0.12s", "3 passed in 1.05s", True),
        ("\\n12 ms", "\\n9 ms", True),
        ("-rw-r--r-- 1 a a 5 Nov  3 09:15 x", "-rw-r--r-- 1 a a 5 Nov 13 21:04 x", True),
        ("2026-11-03T09:15:01.5Z up", "2026-11-03T09:15:02Z up", True),
        ("2026-11-03 09:15 x", "2026-11-04 10:00 x", True),
        ("real\t0m0.003s", "real\t1m2.5s", True),
        ("at 0x7f12ab34cd56>", "at 0x7fe012345678>", True),
        ("42 MB/s", "13.5 MB/s", True),
        ("3 passed, 5 failed in 0.1s", "5 passed, 3 failed in 0.1s", False),
        ("a.py:12:34: E501", "a.py:12:35: E501", False),
        ("pid 120", "pid 121", False),
        ("/tmp/tmp.Ab12", "/tmp/tmp.Cd34", False),
        ('exit_code": 0', 'exit_code": 1', False),
        ("1.2.3", "1.2.4", False),
        ("5 sandboxes", "6 sandboxes", False),
        ("", "x", False),
    ],
)
def test_times_durations_and_addresses_may_differ_and_nothing_else(
    one: str, other: str, same: bool
) -> None:
    assert same_output(one, other) is same
    assert same_output(one, one)
