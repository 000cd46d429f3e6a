"""Record tokens, usage and time of an agent through wrappers of its model and tools."""

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


class RecordedModel:
    """Wraps a model and records its turns.

    Attributes:
        name: name of the model.
        turns: number of completed turns.
        usage: tokens of all turns.
        tokens: token record of all turns.
        conversation: the latest conversation, for the record of a trajectory that fails.
    """

    def __init__(self, model: Model, watch: Stopwatch, *, require_tokens: bool = False) -> None:
        """Wrap a model.

        Args:
            model: the model.
            watch: measures the phase ``model_s``.
            require_tokens: whether a turn without token ids and log probabilities raises ``ModelError``.
        """
        self.name = model.name
        self.usage = {"prompt_tokens": 0, "completion_tokens": 0}
        self.tokens = TokenRecord()
        self.turns = 0
        self.conversation: Sequence[Message] = ()
        self._model, self._watch, self._require_tokens = model, watch, require_tokens

    async def complete(self, messages: Sequence[Message], tools: Sequence[Message], sampling: Sampling) -> Completion:
        """Return the next turn.

        Args:
            messages: the conversation so far.
            tools: tool schemas in OpenAI's form.
            sampling: sampling parameters.

        Raises:
            ModelError: the model raises it, or the tokens of the turn are inconsistent, or required but missing.
        """
        self.conversation = messages
        with self._watch.phase("model_s"):
            completion = await self._model.complete(messages, tools, sampling)
        self.conversation = (*messages, completion.message)
        if self._require_tokens and None in (completion.prompt_ids, completion.ids, completion.logprobs):
            raise ModelError(
                f"the server of {self.name!r} does not return token ids and log probabilities; "
                "serve the model with vLLM 0.10.2 or newer, or use --wire sglang"
            )
        self.tokens.add(completion.prompt_ids, completion.ids, completion.logprobs)
        self.turns += 1
        for name in self.usage:
            self.usage[name] += completion.usage.get(name, 0)
        return completion

    async def close(self) -> None:
        """Do nothing: the owner of the model closes it."""


class RecordedTools:
    """Wraps tools and records their time and their failed calls.

    Attributes:
        errors: ``turn``, ``tool`` and ``error`` of each failed call.
    """

    def __init__(self, tools: Tools, model: RecordedModel, watch: Stopwatch) -> None:
        """Wrap tools.

        Args:
            tools: the tools.
            model: the model that calls them; its turn number is recorded with each error.
            watch: measures the phase ``tools_s``.
        """
        self.errors: list[dict[str, Any]] = []
        self._tools, self._model, self._watch = tools, model, watch

    async def handle(self, name: str, arguments: Mapping[str, Any], task_id: str) -> str:
        """Run a tool call and return its result as text.

        Args:
            name: name of the tool.
            arguments: arguments by name.
            task_id: id of the trajectory.
        """
        before = len(self._tools.errors)
        with self._watch.phase("tools_s"):
            answer = await self._tools.handler(name, arguments, task_id)
        self.errors += [
            {"turn": self._model.turns, "tool": noted.tool, "error": noted.error}
            for noted in self._tools.errors[before:]
        ]
        return answer
