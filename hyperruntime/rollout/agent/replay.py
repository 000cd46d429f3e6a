"""Play back what a trajectory did in earlier attempts, so that no model call is paid twice.

A model call with the same request as a recorded one returns the recorded turn. A tool call runs
again in the new container, and its output is compared with the recorded one. The agent gets the
recorded output, so its conversation and its tokens stay those of the journal. If the outputs
differ, the container is not in the state that the conversation describes, and the conversation
starts again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import attrs

from hyperruntime.errors import HyperRuntimeError, NodeLostError, SandboxLostError
from hyperruntime.rollout.agent.model import Completion, Sampling
from hyperruntime.rollout.agent.tool_calls import Message
from hyperruntime.rollout.run_files.turn_journal import ANEW, CALL, FAILED, TURN, TurnJournal

_SHOWN = 200
# Output that differs in every run of a command: durations, times, memory addresses. Names that the
# agent may use later, such as pids, ports and temporary files, are compared.
_MEASURED = re.compile(
    r"""
    (?:(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\s+\d{1,2}\s+\d\d:\d\d(?::\d\d)?)  # ls -l, date
    | (?:\d{4}-\d\d-\d\d[T\s])?\d\d:\d\d:\d\d(?:[.,]\d+)?
    | \d{4}-\d\d-\d\d\s\d\d:\d\d
    | \d+m\d+(?:\.\d+)?s                                        # the shell's time
    | (?<![\d.])\d+(?:\.\d+)?\s?(?:ns|us|µs|ms|s|secs?|seconds?)(?![A-Za-z\d])
    | (?<![\d.])\d+(?:\.\d+)?\s?[kKMGT]?i?B/s
    | 0x[0-9a-f]{6,16}
    """,
    re.VERBOSE,
)


@attrs.frozen
class _Recorded:
    """A recorded turn; the prompts of most turns begin with the tokens of the turn before, so these
    share a list.

    Attributes:
        entry: from the journal.
        tokens: list that begins with the tokens of the prompt.
        size: number of these tokens, or None if they are unknown.
    """

    entry: Mapping[str, Any]
    tokens: Sequence[int]
    size: int | None

    def completion(self) -> Completion:
        ids = self.entry["ids"]
        logprobs = self.entry["logprobs"]
        return Completion(
            message=self.entry["message"],
            finish_reason=self.entry["finish_reason"],
            usage=self.entry["usage"],
            prompt_ids=None if self.size is None else tuple(self.tokens[: self.size]),
            ids=None if ids is None else tuple(ids),
            logprobs=None if logprobs is None else tuple(logprobs),
        )


class ReplayDivergedError(HyperRuntimeError):
    """A command that was run again had another output; the conversation must start again."""


class Replay:
    """Plays back the recorded turns of a trajectory in one attempt, and journals new ones.

    Attributes:
        attempt: number of this attempt, from 1.
        turns: number of turns played back.
        calls: number of tool calls that were run again, with the recorded output.
        diverged: whether the output of one of them differed.
    """

    def __init__(self, journal: TurnJournal) -> None:
        """Read the recorded turns.

        Args:
            journal: journal of the trajectory; its ``begin`` was called.
        """
        self.turns = self.calls = 0
        self.diverged = False
        self.attempt = journal.attempts
        self._journal = journal
        self._turns: dict[str, deque[_Recorded]] = {}
        self._calls: dict[str, deque[str]] = {}
        self._failed: set[str] = set()
        self._last: list[int] = []
        for entry in journal.entries():
            self._read(entry)

    def facts(self) -> dict[str, Any]:
        """Return what the record of the trajectory says about replays; empty if there were none."""
        restarts = self._journal.restarts()
        if not self.turns and not restarts:
            return {}
        return {"turns": self.turns, "tool_calls": self.calls, "restarts": restarts}

    def check(self) -> None:
        """Raise an error if the conversation must start again.

        Raises:
            ReplayDivergedError: a command had another output.
        """
        if self.diverged:
            raise ReplayDivergedError("a command that was run again had another output than before")

    def turn(self, key: str) -> Completion | None:
        """Return the recorded turn of a request, or None if the model must be asked.

        Args:
            key: from :func:`request_key`.

        Raises:
            ReplayDivergedError: a command had another output.
        """
        self.check()
        found = self._turns.get(key)
        if not found:
            return None
        self.turns += 1
        return found.popleft().completion()

    async def add_turn(self, key: str, completion: Completion) -> None:
        """Add a turn of the model to the journal.

        Args:
            key: from :func:`request_key`.
            completion: what the model answered.
        """
        await self._journal.add_turn(key, attrs.asdict(completion, recurse=False))

    async def call(
        self, turn: int, name: str, arguments: Mapping[str, Any], run: Callable[[], Awaitable[str]]
    ) -> str:
        """Run a tool call and return its recorded output, or its output if none is recorded.

        Args:
            turn: number of the turn that made the call.
            name: name of the tool.
            arguments: its arguments.
            run: runs the call.

        Raises:
            ReplayDivergedError: the output differs from the recorded one, or an earlier one did.
        """
        self.check()
        key = _digest([turn, name, arguments])
        found = self._calls.get(key)
        recorded = found.popleft() if found else None
        try:
            answer = await run()
        except SandboxLostError as error:
            if recorded is None:
                await self.failed(key, error)
            raise
        if recorded is None:
            await self._journal.add(CALL, key=key, answer=answer)
            return answer
        if not same_output(recorded, answer):
            self.diverged = True
            await self._restart(turn=turn, tool=name, **_difference(recorded, answer))
            self.check()
        self.calls += 1
        return recorded

    async def failed(self, step: str, error: BaseException) -> None:
        """Record that a step failed; after its second failure the conversation starts again.

        An agent may end its own container, and a replay would end it each time.

        Args:
            step: key of the step.
            error: the cause; the loss of a node does not count.
        """
        if isinstance(error, NodeLostError):
            return
        if step in self._failed:
            await self._restart(error=f"{type(error).__name__}: {error}"[:_SHOWN], twice=True)
        else:
            await self._journal.add(FAILED, key=step)

    async def _restart(self, **why: Any) -> None:  # noqa: ANN401 - JSON values
        await self._journal.add(ANEW, attempt=self.attempt, **why)

    def _read(self, entry: Mapping[str, Any]) -> None:
        key = entry["key"]
        if entry["is"] == TURN:
            self._turns.setdefault(key, deque()).append(self._recorded(entry))
        elif entry["is"] == CALL:
            self._calls.setdefault(key, deque()).append(entry["answer"])
        else:
            self._failed.add(key)

    def _recorded(self, entry: Mapping[str, Any]) -> _Recorded:
        prompt = entry["prompt_ids"]
        ids = entry["ids"]
        shared = entry["shared"]
        if prompt is None:
            return _Recorded(entry, (), None)
        tokens = (
            self._last if ids is not None and shared == len(self._last) else self._last[:shared]
        )
        tokens.extend(prompt)
        size = len(tokens)
        if ids is not None:
            tokens.extend(ids)
            self._last = tokens
        return _Recorded(entry, tokens, size)


def request_key(
    model: str, messages: Sequence[Message], tools: Sequence[Message], sampling: Sampling
) -> str:
    """Return a key that two model calls share only if they ask the same.

    Args:
        model: name of the model.
        messages: the conversation.
        tools: the schemas of the tools.
        sampling: sampling parameters.
    """
    return _digest([model, messages, tools, attrs.asdict(sampling)])


def same_output(recorded: str, again: str) -> bool:
    """Return whether two outputs of a tool call are the same but for times, durations and addresses
    of memory.
    """
    return recorded == again or _MEASURED.sub("\0", recorded) == _MEASURED.sub("\0", again)


def _difference(recorded: str, again: str) -> dict[str, str]:
    pairs = enumerate(zip(recorded, again, strict=False))
    first = next((n for n, (one, other) in pairs if one != other), min(len(recorded), len(again)))
    begin = max(0, first - _SHOWN // 2)
    return {"recorded": recorded[begin : begin + _SHOWN], "again": again[begin : begin + _SHOWN]}


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, default=_plain)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, Sequence) else repr(value)
