"""A rollout without an engine: a model that adds a word each turn, to containers that hold a list
of words.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import attrs

import hyperruntime as hr
from hyperruntime.rollout.agent.agent import Agent, Tools, run_agent
from hyperruntime.rollout.agent.model import Completion, Sampling
from hyperruntime.rollout.environment import Fresh, Item, Outcome, Verdict
from hyperruntime.rollout.run.options import RolloutOptions
from hyperruntime.rollout.run.runner import Parts, run_rollouts
from hyperruntime.rollout.run.summary import RolloutSummary
from hyperruntime.rollout.run_files.record import Trajectory
from hyperruntime.rollout.run_files.run_dir import read_trajectories
from hyperruntime.rollout.run_files.turn_journal import TURNS

COMMANDS = 4
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


class Boxes:
    """Slots whose containers hold a list of words; ``end`` may end a container at a call."""

    capacity = 100

    def __init__(
        self, end: Callable[[int, int], Exception | None] = lambda box, call: None
    ) -> None:
        self.given = 0
        self._end = end

    @asynccontextmanager
    async def lease(self, spec: hr.ContainerSpec, task_id: str) -> AsyncIterator[Any]:
        self.given += 1
        yield Box(self.given, self._end)

    fresh = lease


@attrs.define
class Box:
    number: int
    end: Callable[[int, int], Exception | None]
    words: list[str] = attrs.field(factory=list)

    async def end_processes(self) -> None: ...

    async def add(self, name: str, arguments: Mapping[str, Any], task_id: str) -> str:
        await asyncio.sleep(0)
        if (error := self.end(self.number, len(self.words))) is not None:
            raise error
        self.words.append(arguments["word"])
        return json.dumps(
            {
                "output": f"{len(self.words)} words, {arguments['word']}\udc80 took 0.{self.number}1 s"
            }
        )


class Adder:
    """A model that adds a word each turn; what it says and its tokens are never the same twice."""

    name = "adder"

    def __init__(self, log: Path | None = None, wait_s: float = 0.0) -> None:
        self.asked: list[tuple[str, int]] = []
        self.said: list[tuple[int, ...]] = []
        self._log, self._wait_s = log, wait_s
        self._numbers = itertools.count(random.randrange(1 << 30))

    async def complete(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        sampling: Sampling,
    ) -> Completion:
        who, turn = (
            str(messages[0]["content"]),
            sum(message["role"] == "assistant" for message in messages),
        )
        self.asked.append((who, turn))
        if self._log is not None:
            with self._log.open("a") as file:
                file.write(f"{who} {turn}\n")
        await asyncio.sleep(self._wait_s * random.uniform(0, 2))
        number = self.number(sampling)
        prompt = tuple(json.dumps(messages, sort_keys=True).encode())
        self.said.append((number, 7))
        arguments = json.dumps({"word": f"w{number}"})
        call = {
            "id": f"c{turn}",
            "type": "function",
            "function": {"name": "add", "arguments": arguments},
        }
        message: dict[str, Any] = {
            "role": "assistant",
            "content": "" if turn < COMMANDS else f"done \udc80 {number}",
        }
        message |= {"tool_calls": [call]} if turn < COMMANDS else {}
        usage = {"prompt_tokens": len(prompt), "completion_tokens": 2}
        return Completion(
            message=message,
            finish_reason="stop",
            usage=usage,
            prompt_ids=prompt,
            ids=self.said[-1],
            logprobs=(-0.1 / 3, -0.5),
        )

    def number(self, sampling: Sampling) -> int:
        """Return what this turn says."""
        return next(self._numbers)

    async def close(self) -> None: ...


@attrs.define
class Words:
    """An environment that gives a reward if the container has what the conversation says."""

    count: int = 1
    verify_fails: Sequence[BaseException] = ()
    name: str = "words"

    def items(self) -> Iterable[Item]:
        return [Item(id=f"i{number}") for number in range(self.count)]

    def spec(self, item: Item, base: hr.ContainerSpec, images: Any) -> hr.ContainerSpec:
        return base

    async def setup(self, item: Item, lease: Any) -> Mapping[str, Any]:
        return {}

    def messages(self, item: Item, meta: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        return [{"role": "user", "content": item.id}]

    async def verify(
        self, item: Item, outcome: Outcome, lease: Any, fresh: Fresh, meta: Mapping[str, Any]
    ) -> Verdict:
        if self.verify_fails:
            error, *self.verify_fails = self.verify_fails
            raise error
        calls = [call for message in outcome.messages for call in message.get("tool_calls", ())]
        said = [json.loads(call["function"]["arguments"])["word"] for call in calls]
        return Verdict(reward=float(said == lease.words and len(said) == COMMANDS))


class _Runtime:
    images = None


def rollouts(
    boxes: Boxes,
    model: Adder,
    run_dir: Path | None = None,
    *,
    world: Words | None = None,
    agent: Agent = run_agent,
    **given: Any,
) -> tuple[RolloutSummary, list[Trajectory]]:
    options = RolloutOptions(**{"environment": "words", "seed": 1, "parallel": 4, **given})
    tools = lambda lease: Tools(schemas=[TOOL], handler=lease.add)  # noqa: E731
    parts = Parts(
        environment=world or Words(),
        model=model,
        slots=cast(Any, boxes),
        toolset=tools,
        agent=agent,
    )
    ended: list[Trajectory] = []
    run = run_rollouts(
        cast(hr.Runtime, _Runtime()), options, run_dir=run_dir, parts=parts, keep=ended.append
    )
    return asyncio.run(run), ended


def journaled(run_dir: Path) -> set[tuple[str, int]]:
    """Return which turns are in the journals."""
    found: set[tuple[str, int]] = set()
    for path in (run_dir / TURNS).glob("*"):
        header, lines = b"", list[bytes]()
        with suppress(FileNotFoundError):  # its trajectory was recorded just now
            header, *lines = path.read_bytes().splitlines(keepends=True) or [b""]
        if header.endswith(b"\n"):
            who = json.loads(header)["trajectory"].partition("/")[0]
            whole = [line for line in lines if line.endswith(b"\n")]
            found |= {(who, turn) for turn in range(sum(b'{"is":"turn"' in line for line in whole))}
    return found


def timeless(run_dir: Path) -> list[Trajectory]:
    """Return what two runs that make the same have in common."""
    found = sorted(read_trajectories(run_dir), key=lambda trajectory: trajectory.id)
    return [attrs.evolve(each, timing={}, started_at=0.0, attempts=0, replay={}) for each in found]


if __name__ == "__main__":
    import sys

    to, asked_log, items = sys.argv[1:]
    rollouts(Boxes(), Adder(Path(asked_log), 0.01), Path(to), world=Words(count=int(items)))
