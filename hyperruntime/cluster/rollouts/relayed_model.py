"""The model of a run for its nodes: they ask the head, which asks the model's server and holds its
key.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import attrs

from hyperruntime.concurrency.background_tasks import BackgroundTasks
from hyperruntime.logs import get_logger
from hyperruntime.rollout.agent.model import Completion, Model, Sampling
from hyperruntime.rollout.agent.tool_calls import Message
from hyperruntime.rollout.models import ModelOptions
from hyperruntime.wire.messages import PeerFaultError
from hyperruntime.wire.peer import Answer, Call, Handler, Peer

log = get_logger(__name__)

_TOKENS = ("prompt_ids", "ids", "logprobs")


class RelayedModel:
    """A model that the head asks.

    Attributes:
        name: name of the model.
        remember: as of a ``Model``; None if the head's model has no such method.
    """

    def __init__(self, name: str, head: Peer, method: str, *, remembers: bool) -> None:
        """Ask nothing yet.

        Args:
            name: name of the model.
            head: the head.
            method: its handler, from :func:`model_handler`.
            remembers: whether the head's model has the method ``remember``.
        """
        self.name = name
        self.remember = self._remember if remembers else None
        self._head = head
        self._method = method
        self._telling = BackgroundTasks("a model of rollouts")

    async def complete(
        self, messages: Sequence[Message], tools: Sequence[Message], sampling: Sampling
    ) -> Completion:
        """Return the next turn.

        Args:
            messages: the conversation so far.
            tools: tool schemas in OpenAI's form.
            sampling: sampling parameters.

        Raises:
            ModelError: see ``Model.complete``.
            NodeLostError: the head is lost.
        """
        asked = {**_conversation(messages, tools), "sampling": attrs.asdict(sampling)}
        answer = await self._head.call(self._method, asked)
        return _completion_of_json(answer.value)

    async def close(self) -> None:
        """Do nothing: the head closes the model."""

    def _remember(
        self, messages: Sequence[Message], tools: Sequence[Message], completion: Completion
    ) -> None:
        told = {**_conversation(messages, tools), "played": completion_to_json(completion)}
        # the head handles it before later calls
        self._telling.start(self._head.call(self._method, told))


def _conversation(messages: Sequence[Message], tools: Sequence[Message]) -> dict[str, Any]:
    return {"messages": list(messages), "tools": list(tools)}


@attrs.frozen(kw_only=True)
class _Asked:
    """The arguments of a node's request to the model.

    Attributes:
        messages: the conversation so far.
        tools: tool schemas.
        sampling: sampling parameters.
        played: a turn that the model remembers, in place of a request for one.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    sampling: Sampling = attrs.field(factory=Sampling)
    played: Mapping[str, Any] | None = None


def model_handler(model: Model) -> Handler:
    """Return the head's handler of a model for its nodes."""
    remember = getattr(model, "remember", None)

    async def complete(call: Call) -> Answer:
        asked = call.values(_Asked)
        messages = list(asked.messages)
        tools = list(asked.tools)
        if asked.played is not None:
            if remember is None:
                raise PeerFaultError("it sent a turn to a model that remembers none")
            try:
                # of a journal, which may have numbers that are not finite
                played = _completion_of_json(asked.played)
            except (KeyError, TypeError) as error:
                raise PeerFaultError(f"it sent a turn that cannot be read: {error}") from error
            remember(messages, tools, played)
            return Answer()
        return Answer(completion_to_json(await model.complete(messages, tools, asked.sampling)))

    return complete


def completion_to_json(completion: Completion) -> dict[str, Any]:
    """Return a turn as JSON values."""
    fields = attrs.asdict(completion, recurse=False)
    tokens = {name: found and list(found) for name, found in fields.items() if name in _TOKENS}
    plain = {"message": dict(completion.message), "usage": dict(completion.usage)}
    return {**fields, **plain, **tokens}


def _completion_of_json(value: Mapping[str, Any]) -> Completion:
    """Return the turn of :func:`completion_to_json`."""
    tokens = {name: None if value[name] is None else tuple(value[name]) for name in _TOKENS}
    return Completion(**{**value, **tokens})


def is_reachable_from_nodes(options: ModelOptions) -> bool:
    """Return whether nodes may ask a model's server themselves: it needs no key, and is not on the
    head's loopback.
    """
    host = urlsplit(options.base_url).hostname or ""
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = host == "localhost" or host.endswith(".localhost")
    return options.key_env is None and not is_loopback
