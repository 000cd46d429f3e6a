"""Record tokens, usage and time of an agent through wrappers of its model and tools.

All token ids come from the server. No text is tokenised here, so the tokens cannot differ from the
server's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from hyperruntime.errors import ModelError
from hyperruntime.gateway.formats.turn_end import TurnEnd, turn_end
from hyperruntime.rollout.agent.agent import ToolHandler, Tools
from hyperruntime.rollout.agent.model import Completion, Model, Sampling
from hyperruntime.rollout.agent.replay import Replay, request_key
from hyperruntime.rollout.agent.tool_calls import Message
from hyperruntime.rollout.run_files.record import Segment


class Stopwatch:
    """Measures seconds by phase.

    Attributes:
        seconds: seconds so far, by phase.
    """

    def __init__(self) -> None:
        """Start the total time."""
        self.seconds: dict[str, float] = {}
        self._started = time.monotonic()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the duration of a block to a phase, even if the block raises."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - began

    def total(self) -> dict[str, float]:
        """Return the seconds of all phases, and ``total_s`` since the start."""
        seconds = {**self.seconds, "total_s": time.monotonic() - self._started}
        return {name: round(value, 6) for name, value in seconds.items()}


class TokenRecord:
    """The tokens of one trajectory, turn by turn.

    A turn extends the last segment if its prompt starts with all tokens of the segment; else it
    starts a new segment. So each emitted token is unmasked exactly once, even if a chat template
    renders earlier turns differently.

    Attributes:
        missing: number of turns without the token ids of the prompt or of the emitted tokens.
    """

    def __init__(self, segments: Sequence[Segment] = (), missing: int = 0) -> None:
        """Create a record that begins with the segments of other turns."""
        self.missing = missing
        self._segments = list(segments)

    def add(
        self,
        prompt_ids: Sequence[int] | None,
        ids: Sequence[int] | None,
        logprobs: Sequence[float] | None,
    ) -> None:
        """Add a turn.

        Args:
            prompt_ids: token ids of the whole prompt, or None if the server does not return them.
            ids: the emitted token ids, or None.
            logprobs: one log probability for each of ``ids``, or None.

        Raises:
            ModelError: the numbers of logprobs and ids differ, or a logprob is not finite.
        """
        if prompt_ids is None or ids is None:
            self.missing += 1
            return
        if logprobs is not None and len(logprobs) != len(ids):
            raise ModelError(
                f"the server sent {len(ids)} token ids and {len(logprobs)} log probabilities "
                "for one turn; these numbers must be equal, so check the server with `hyperrun "
                "rollout preflight`"
            )
        if logprobs is not None and not all(math.isfinite(value) for value in logprobs):
            raise ModelError(
                "the server sent log probabilities that are not finite; check the model that it "
                "serves"
            )
        last = self._segments[-1] if self._segments else None
        if last is None or list(prompt_ids[: len(last.ids)]) != last.ids:
            last = Segment(ids=[], mask=[], logprobs=[])
            self._segments.append(last)
        fresh = len(prompt_ids) - len(last.ids)
        self._segments[-1] = Segment(
            ids=[*prompt_ids, *ids],
            mask=[*last.mask, *[0] * fresh, *[1] * len(ids)],
            logprobs=[
                *last.logprobs,
                *[None] * fresh,
                *([None] * len(ids) if logprobs is None else logprobs),
            ],
        )

    def fork(self) -> TokenRecord:
        """Return a record that begins with the turns so far."""
        return TokenRecord(self._segments, self.missing)

    def segments(self) -> tuple[Segment, ...]:
        """Return the segments, or an empty tuple if the token ids of any turn are missing."""
        return () if self.missing else tuple(self._segments)


class RecordedModel:
    """Wraps a model and records its turns; turns of an earlier attempt are played back.

    Attributes:
        name: name of the model.
        turns: number of completed turns.
        usage: tokens of all turns.
        tokens: token record of all turns.
        conversation: the latest conversation, for the record of a trajectory that fails.
    """

    def __init__(
        self, model: Model, watch: Stopwatch, replay: Replay, *, require_tokens: bool = False
    ) -> None:
        """Wrap a model.

        Args:
            model: the model.
            watch: measures the phase ``model_s``.
            replay: plays turns back, and journals new ones.
            require_tokens: whether a turn without token ids and log probabilities raises
                ``ModelError``.
        """
        self.name = model.name
        self.usage = {"prompt_tokens": 0, "completion_tokens": 0}
        self.tokens = TokenRecord()
        self.turns = 0
        self.conversation: Sequence[Message] = ()
        self._model = model
        self._watch = watch
        self._replay = replay
        self._require_tokens = require_tokens

    def fork(self, model: Model, watch: Stopwatch, replay: Replay) -> RecordedModel:
        """Return a record of a model that begins with the turns so far; see the constructor."""
        other = RecordedModel(model, watch, replay, require_tokens=self._require_tokens)
        other.usage = {**self.usage}
        other.tokens = self.tokens.fork()
        other.turns = self.turns
        other.conversation = self.conversation
        return other

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[Message], sampling: Sampling
    ) -> Completion:
        """Return the next turn.

        Args:
            messages: the conversation so far.
            tools: tool schemas in OpenAI's form.
            sampling: sampling parameters.

        Raises:
            ModelError: the model raises it, the turn broke off, or its tokens are inconsistent, or
                required but missing.
            ReplayDivergedError: the conversation must start again.
        """
        self.conversation = messages
        key = request_key(self.name, messages, tools, sampling)
        played = completion = self._replay.turn(key)
        if completion is None:
            with self._watch.phase("model_s"):
                completion = await self._model.complete(messages, tools, sampling)
            _check_end(completion)
        self.conversation = (*messages, completion.message)
        if self._require_tokens and None in (
            completion.prompt_ids,
            completion.ids,
            completion.logprobs,
        ):
            raise ModelError(
                f"the server of {self.name!r} does not return token ids and log probabilities; "
                "serve the model with vLLM 0.10.2 or newer, or use --wire sglang"
            )
        self.tokens.add(completion.prompt_ids, completion.ids, completion.logprobs)
        self.turns += 1
        for name in self.usage:
            self.usage[name] += completion.usage.get(name, 0)
        if played is None:
            await self._replay.add_turn(key, completion)
        elif (remember := getattr(self._model, "remember", None)) is not None:
            remember(messages, tools, completion)
        return completion

    async def close(self) -> None:
        """Do nothing: the owner of the model closes it."""


def _check_end(completion: Completion) -> None:
    """Check that a turn did not break off; its text would be scored as the agent's answer.

    Raises:
        ModelError: it broke off; or its reason is unknown, and it has no calls.
    """
    reason = completion.finish_reason
    end = turn_end(reason)
    if end is TurnEnd.BROKEN:
        raise ModelError(
            f"the model's turn broke off (finish_reason {reason!r}); check the model's server"
        )
    if end is TurnEnd.UNKNOWN and not completion.message.get("tool_calls"):
        raise ModelError(
            f"the model's turn ended with the unknown finish_reason {reason!r}, so it may not "
            "be complete; use a server that sends one of the reasons in docs/rollouts.md"
        )


def recorded_handler(
    tools: Tools,
    model: RecordedModel,
    watch: Stopwatch,
    replay: Replay,
    errors: list[Mapping[str, Any]],
) -> ToolHandler:
    """Return the handler of tools, wrapped to record their time, their outputs and their failed
    calls.

    Args:
        tools: the tools.
        model: the model that calls them; its turn number is recorded with each error.
        watch: measures the phase ``tools_s``.
        replay: compares outputs with those of an earlier attempt, and journals new ones.
        errors: gets ``turn``, ``tool`` and ``error`` of each failed call.
    """

    async def handle(name: str, arguments: Mapping[str, Any], task_id: str) -> str:
        before = len(tools.errors)
        with watch.phase("tools_s"):
            answer = await replay.call(
                model.turns, name, arguments, lambda: tools.handler(name, arguments, task_id)
            )
        failed = tools.errors[before:]
        errors.extend(
            {"turn": model.turns, "tool": noted.tool, "error": noted.error} for noted in failed
        )
        return answer

    return handle
