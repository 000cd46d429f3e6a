"""The model of a run for its nodes: they ask the head, which asks the model's server and holds its
key.

The head journals each turn before it forwards it, and a node that is lost ends no request. So no
model call is paid twice.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any
from urllib.parse import urlsplit

import attrs

from hyperruntime.concurrency.background_tasks import BackgroundTasks
from hyperruntime.errors import HyperRuntimeError
from hyperruntime.logs import get_logger
from hyperruntime.rollout.agent.model import Completion, Model, Sampling
from hyperruntime.rollout.agent.replay import request_key
from hyperruntime.rollout.agent.tool_calls import Message
from hyperruntime.rollout.models import ModelOptions
from hyperruntime.rollout.run_files.turn_journal import TurnJournal
from hyperruntime.wire.checks import Line
from hyperruntime.wire.messages import PeerFaultError
from hyperruntime.wire.peer import Answer, Call, Handler, Peer

log = get_logger(__name__)

_TOKENS = ("prompt_ids", "ids", "logprobs")
# on a node: the one that asks
trajectory: ContextVar[str] = ContextVar("trajectory", default="")


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
        asked = {
            **_conversation(messages, tools),
            "sampling": attrs.asdict(sampling),
            "trajectory": trajectory.get(),
            "key": request_key(self.name, messages, tools, sampling),
        }
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
        trajectory: the id of the one that asks; "" for none.
        key: of the request, in the journal.
        played: a turn that the model remembers, in place of a request for one.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    sampling: Sampling = attrs.field(factory=Sampling)
    trajectory: str = attrs.field(default="", validator=Line(10_000))
    key: str = attrs.field(default="", validator=Line(100))
    played: Mapping[str, Any] | None = None


class PaidTurns:
    """The turns of one trajectory that nodes have asked the head for.

    Attributes:
        node: name of the one that makes the trajectory now.
    """

    def __init__(self, model: Model, journal: TurnJournal) -> None:
        """Ask for nothing yet.

        Args:
            model: the head's.
            journal: that of the trajectory; it gets each turn before a node does.
        """
        self.node = ""
        self._model = model
        self._journal = journal
        self._asked: defaultdict[str, list[asyncio.Task[Completion]]] = defaultdict(list)
        self._next: Counter[str] = Counter()
        self._attempt = 0

    def begin(self, attempt: int, node: str) -> None:
        """Begin an attempt on a node, which plays back all turns that are in the journal now.

        Args:
            attempt: its number.
            node: name of the node.
        """
        self.node = node
        self._attempt = attempt
        self._next.clear()
        for key, tasks in self._asked.items():
            self._asked[key] = [task for task in tasks if not task.done()]

    async def complete(
        self,
        key: str,
        messages: Sequence[Message],
        tools: Sequence[Message],
        sampling: Sampling,
    ) -> Completion:
        """Return the next turn. If an attempt on a lost node has asked for it, it is that one.

        Args:
            key: of the request, from :func:`~hyperruntime.rollout.agent.replay.request_key`.
            messages: the conversation so far.
            tools: tool schemas.
            sampling: sampling parameters.

        Raises:
            ModelError: see ``Model.complete``.
            StorageError: the journal cannot be written.
        """
        asked = self._asked[key]
        at = self._next[key]
        self._next[key] += 1
        if at >= len(asked):
            asked.append(asyncio.ensure_future(self._ask(key, messages, tools, sampling)))
        task = asked[at]
        try:
            return await asyncio.shield(task)
        finally:
            if task.done() and (task.cancelled() or task.exception() is not None):
                if task in asked:
                    asked.remove(task)
                self._next[key] = min(self._next[key], len(asked))

    async def _ask(
        self,
        key: str,
        messages: Sequence[Message],
        tools: Sequence[Message],
        sampling: Sampling,
    ) -> Completion:
        completion = await self._model.complete(messages, tools, sampling)
        turn = attrs.asdict(completion, recurse=False)
        await self._journal.add_turn_of(self._attempt, key, turn)
        return completion

    async def close(self) -> None:
        """End the requests that nobody waits for any more."""
        tasks = [task for asked in self._asked.values() for task in asked]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def model_handler(model: Model, turns: Callable[[str], PaidTurns | None]) -> Handler:
    """Return the head's handler of a model for its nodes.

    Args:
        model: the model.
        turns: returns the turns of a trajectory; None if it has ended, or has none.
    """
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
        paid = turns(asked.trajectory)
        if paid is None or paid.node != call.caller:  # of another node
            raise HyperRuntimeError(f"trajectory {asked.trajectory!r} is not made on this node")
        completion = await paid.complete(asked.key, messages, tools, asked.sampling)
        return Answer(completion_to_json(completion))

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
