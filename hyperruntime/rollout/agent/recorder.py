"""Write down what an agent does while it does it: tokens, usage, time. The agent sees a model and tools, as ever."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from hyperruntime.errors import ModelError
from hyperruntime.rollout.agent.model import Completion, Model, Sampling
from hyperruntime.rollout.agent.segments import TokenRecord
from hyperruntime.rollout.agent.tool_calls import Message
from hyperruntime.rollout.agent.toolset import Tools


class Stopwatch:
    """Seconds by phase.

    Attributes:
        seconds: so far.
    """

    def __init__(self) -> None:
        """Begin."""
        self.seconds: dict[str, float] = {}
        self._started = time.monotonic()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of a block to a phase, also where it fails."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - began

    def total(self) -> dict[str, float]:
        """Return all phases, and ``total_s`` since the beginning."""
        seconds = {**self.seconds, "total_s": time.monotonic() - self._started}
        return {name: round(value, 6) for name, value in seconds.items()}


class RecordedModel:
    """A model whose turns are written down.

    Attributes:
        name: of the model.
        turns: that were answered.
        usage: tokens of all turns.
        tokens: their record.
        conversation: what was said last, for the record of one that breaks off.
    """

    def __init__(self, model: Model, watch: Stopwatch, *, require_tokens: bool = False) -> None:
        """Ask a model, and write down what it answers; ``require_tokens`` refuses a turn without its tokens."""
        self.name = model.name
        self.usage = {"prompt_tokens": 0, "completion_tokens": 0}
        self.tokens = TokenRecord()
        self.turns = 0
        self.conversation: Sequence[Message] = ()
        self._model, self._watch, self._require_tokens = model, watch, require_tokens

    async def complete(self, messages: Sequence[Message], tools: Sequence[Message], sampling: Sampling) -> Completion:
        """Return the next turn.

        Raises:
            ModelError: as the model does; or the turn's tokens do not go together, or are wanted and not there.
        """
        self.conversation = messages
        with self._watch.phase("model_s"):
            completion = await self._model.complete(messages, tools, sampling)
        self.conversation = (*messages, completion.message)
        if self._require_tokens and None in (completion.prompt_ids, completion.ids, completion.logprobs):
            raise ModelError(
                f"the server of {self.name!r} does not say which tokens it saw and emitted, with log probabilities; "
                "serve it with vLLM 0.10.2 or newer, or use --wire sglang"
            )
        self.tokens.add(completion.prompt_ids, completion.ids, completion.logprobs)
        self.turns += 1
        for name in self.usage:
            self.usage[name] += completion.usage.get(name, 0)
        return completion

    async def close(self) -> None:
        """Do nothing: the model is not ours."""


class RecordedTools:
    """Tools whose time is counted, and what they could not carry out noted.

    Attributes:
        errors: ``turn``, ``tool`` and ``error`` of each such call.
    """

    def __init__(self, tools: Tools, model: RecordedModel, watch: Stopwatch) -> None:
        """Call tools for a model."""
        self.errors: list[dict[str, Any]] = []
        self._tools, self._model, self._watch = tools, model, watch

    async def handle(self, name: str, arguments: Mapping[str, Any], task_id: str) -> str:
        """Carry a call out."""
        before = len(self._tools.errors)
        with self._watch.phase("tools_s"):
            answer = await self._tools.handler(name, arguments, task_id)
        self.errors += [
            {"turn": self._model.turns, "tool": noted.tool, "error": noted.error}
            for noted in self._tools.errors[before:]
        ]
        return answer
