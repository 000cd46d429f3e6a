"""The agent loop: a model, its tools, and the limits of their conversation.

An agent is ``async (AgentTask) -> AgentResult``. The default agent is :func:`run_agent`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from hyperruntime.concurrency.blocking import check_cancelled
from hyperruntime.errors import ContextLengthError, HyperRuntimeError
from hyperruntime.gateway.formats.turn_end import TurnEnd, turn_end
from hyperruntime.option_fields import AtLeast, option
from hyperruntime.rollout.agent.model import Completion, Model, Sampling
from hyperruntime.rollout.agent.tool_calls import Message, ToolCall, normalized_message, tool_calls

if TYPE_CHECKING:
    from hyperruntime.sandbox import Sandbox

DEFAULT_TOOLS = ("bash", "read_file", "write_file", "edit_file", "list_files", "search")
FINISHED = "finished"
TURN_LIMIT = "turn_limit"
TOKEN_LIMIT = "token_limit"  # noqa: S105 - a name, no secret
CONTEXT_LIMIT = "context_limit"
TIME_LIMIT = "time_limit"
CONTENT_FILTER = "content_filter"
_STOPPED: Mapping[TurnEnd, str] = {TurnEnd.FULL: CONTEXT_LIMIT, TurnEnd.FILTERED: CONTENT_FILTER}
_CUT_CALL = "the call did not run: the server stopped this turn before its end"
_OUT_OF_TIME = "the call did not finish: this conversation has reached its time limit"

T = TypeVar("T")
ToolHandler = Callable[[str, Mapping[str, Any], str], Awaitable[str]]


@attrs.frozen(kw_only=True)
class AgentLimits:
    """The limits that end a conversation; None means no limit.

    Attributes:
        turns: assistant turns.
        tokens: tokens that the model may emit in all turns together.
        context_tokens: tokens of prompt and answer together; the context length that the model is
            served with.
        time_s: seconds of the whole conversation, tool calls included.
    """

    turns: int = option(
        30, "Turns of one conversation.", flag="--max-turns", check=AtLeast(1), harmless=True
    )
    tokens: int | None = option(
        None,
        "Tokens that the model may emit in one conversation; default: no limit.",
        flag="--token-limit",
        check=AtLeast(1),
        harmless=True,
    )
    context_tokens: int | None = option(
        None,
        "Context length of the served model, in tokens; default: unknown.",
        flag="--context",
        check=AtLeast(1),
        harmless=True,
    )
    time_s: float | None = option(
        None,
        "Time limit of one conversation; default: no limit.",
        flag="--time-limit",
        harmless=True,
    )


@attrs.frozen(kw_only=True)
class AgentTask:
    """The input of an agent.

    Attributes:
        id: id of the trajectory.
        model: the model.
        messages: the opening messages.
        tools: schemas of the tools, in OpenAI's form.
        tool_handler: ``await tool_handler(name, arguments, id)`` runs a call and returns its result
            as text.
        limits: limits of the conversation.
        sampling: sampling parameters.
    """

    id: str
    model: Model
    messages: Sequence[Message] = attrs.field(hash=False)
    tools: Sequence[Message] = attrs.field(default=(), hash=False)
    tool_handler: ToolHandler
    limits: AgentLimits = attrs.field(factory=AgentLimits)
    sampling: Sampling = attrs.field(factory=Sampling)


@attrs.frozen(kw_only=True)
class AgentResult:
    """The result of a conversation.

    Attributes:
        messages: all messages, the opening ones included.
        stop_reason: ``finished``, ``turn_limit``, ``token_limit``, ``context_limit``,
            ``time_limit`` or ``content_filter``.
        turns: number of assistant turns.
        tool_calls: number of tool calls that ran.
        tool_errors: the failed calls: ``turn``, ``tool`` and ``error`` of each.
    """

    messages: Sequence[Message] = attrs.field(hash=False)
    stop_reason: str
    turns: int
    tool_calls: int = 0
    tool_errors: Sequence[Mapping[str, Any]] = attrs.field(default=(), hash=False)


Agent = Callable[[AgentTask], Awaitable[AgentResult]]


@attrs.define(kw_only=True)
class Tools:
    """The tools of one trajectory.

    Attributes:
        schemas: tool schemas in OpenAI's form, for the model.
        handler: runs the calls.
        errors: the failed calls that the handler records: ``tool`` and ``error`` of each.
    """

    schemas: Sequence[Message]
    handler: ToolHandler
    errors: Sequence[Any] = ()


Toolset = Callable[["Sandbox"], Tools]


def slot_tools(names: Sequence[str] = DEFAULT_TOOLS) -> Toolset:
    """Return the named slot tools; they run in the slot, never on the host.

    Raises:
        SpecError: a tool name is unknown.
    """
    from hyperruntime.pool.tools import tool_schemas
    from hyperruntime.pool.tools.agent_tools import SlotTools

    schemas = tuple(tool_schemas(tuple(names)))

    def given(lease: Sandbox) -> Tools:
        tools = SlotTools(lease.tool, raise_lost=True)
        return Tools(schemas=schemas, handler=tools.tool_handler, errors=tools.errors)

    return given


async def run_agent(task: AgentTask) -> AgentResult:
    """Alternate between the model and its tools until the model calls no tool or a limit is
    reached.

    Tool calls run one after the other. The result of a failed call is its error, and the
    conversation continues.

    Raises:
        ModelError: the model's server fails, or the opening messages are too long for the model.
        HyperRuntimeError: the tools have lost their slot or container.
    """
    return await _Conversation(task).run()


class _Conversation:
    """One run of the loop."""

    def __init__(self, task: AgentTask) -> None:
        self._task = task
        self._messages: list[Message] = [dict(message) for message in task.messages]
        self._errors: list[Mapping[str, Any]] = []
        self._turns = self._calls = self._emitted = self._context = 0
        limit = task.limits.time_s
        self._deadline = None if limit is None else asyncio.get_running_loop().time() + limit

    async def run(self) -> AgentResult:
        reason = ""
        while not reason:
            reason = self._limit() or await self._turn()
        return AgentResult(
            messages=tuple(self._messages),
            stop_reason=reason,
            turns=self._turns,
            tool_calls=self._calls,
            tool_errors=tuple(self._errors),
        )

    def _limit(self) -> str:
        limits = self._task.limits
        if self._turns >= limits.turns:
            return TURN_LIMIT
        if limits.tokens is not None and self._emitted >= limits.tokens:
            return TOKEN_LIMIT
        if limits.context_tokens is not None and self._context >= limits.context_tokens:
            return CONTEXT_LIMIT
        late = self._deadline is not None and asyncio.get_running_loop().time() >= self._deadline
        return TIME_LIMIT if late else ""

    async def _turn(self) -> str:
        """Run one assistant turn and its tool calls; return the stop reason, or "" to continue."""
        try:
            completion = await self._ask()
        except ContextLengthError:
            if self._turns == 0:
                raise  # the opening messages are too long; this is not the agent's fault
            return CONTEXT_LIMIT
        except _OutOfTimeError:
            return TIME_LIMIT
        self._turns += 1
        emitted = completion.usage.get("completion_tokens", 0)
        self._emitted += emitted
        self._context = completion.usage.get("prompt_tokens", 0) + emitted
        turn = 1 + sum(message["role"] == "assistant" for message in self._messages)
        message = normalized_message(completion.message, turn)
        self._messages.append(message)
        end = turn_end(completion.finish_reason)
        stopped = _STOPPED.get(end, "")
        calls = tool_calls(message, self._task.tools)
        for call in calls:
            content = self._refuse(call, _CUT_CALL) if stopped else await self._answer(call)
            answer = {
                "role": "tool",
                "tool_call_id": call.id,
                "name": call.name,
                "content": content,
            }
            self._messages.append(answer)
        if calls or stopped:
            return stopped
        return TOKEN_LIMIT if end is TurnEnd.CUT else FINISHED

    async def _ask(self) -> Completion:
        sampling = self._task.sampling
        room = sampling.max_tokens
        limits = self._task.limits
        if limits.tokens is not None:
            room = min(room, limits.tokens - self._emitted)
        if limits.context_tokens is not None:
            room = min(room, limits.context_tokens - self._context)
        seed = None if sampling.seed is None else (sampling.seed + self._turns) % 2**31
        asked = attrs.evolve(sampling, max_tokens=room, seed=seed)
        return await self._in_time(
            self._task.model.complete(tuple(self._messages), self._task.tools, asked)
        )

    async def _answer(self, call: ToolCall) -> str:
        """Run a call and return its result, or its error, as text."""
        if call.problem:
            return self._refuse(call, call.problem)
        try:
            answer = await self._in_time(
                self._task.tool_handler(call.name, call.arguments, self._task.id)
            )
        except _OutOfTimeError:
            return self._refuse(call, _OUT_OF_TIME)
        except HyperRuntimeError:
            raise  # the slot is lost; this is not a tool result
        except Exception as error:  # noqa: BLE001 - a handler may raise anything; the model gets the error
            check_cancelled()
            return self._refuse(call, f"{call.name!r} failed: {type(error).__name__}: {error}")
        self._calls += 1
        return answer

    def _refuse(self, call: ToolCall, problem: str) -> str:
        self._errors.append({"turn": self._turns, "tool": call.name, "error": problem})
        return json.dumps({"error": problem}, ensure_ascii=False)

    async def _in_time(self, work: Awaitable[T]) -> T:
        timeout = asyncio.timeout_at(self._deadline)
        try:
            async with timeout:
                return await work
        except TimeoutError:
            if timeout.expired():
                raise _OutOfTimeError from None
            raise


class _OutOfTimeError(Exception):
    """The conversation has reached its time limit."""
