"""Check a model's server and chat template before a run.

Two faults are silent. If the template does not render ``tools``, the model never calls a tool. If
the server returns no token ids, the trajectories cannot be used for training.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs

from hyperruntime.errors import HyperRuntimeError
from hyperruntime.rollout.agent.model import Completion, Model, Sampling
from hyperruntime.rollout.agent.tool_calls import Message, normalized_message, tool_calls
from hyperruntime.rollout.models import ModelOptions, open_model
from hyperruntime.rollout.models.server import check_server

State = Literal["ok", "warning", "failed"]
_TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Look a word up.",
        "parameters": {
            "type": "object",
            "properties": {"word": {"type": "string"}},
            "required": ["word"],
        },
    },
}
_MAX_TOKENS = 256


@attrs.frozen
class PreflightCheck:
    """The result of one check.

    Attributes:
        name: name of the check.
        state: ``failed`` if the results of a run would be useless.
        detail: one sentence for people.
    """

    name: str
    state: State
    detail: str


async def preflight(options: ModelOptions, *, require_tokens: bool = False) -> list[PreflightCheck]:
    """Return the results of all checks of a model's server and template.

    Args:
        options: the model and its server.
        require_tokens: whether turns without token ids and log probabilities fail the check; else
            they are a warning.
    """
    checks: list[PreflightCheck] = []
    if options.tokenizer is not None:
        from hyperruntime.rollout.models.tokenizer import DirectoryTokenizer

        try:
            checks.append(compare_renderings(DirectoryTokenizer(options.tokenizer)))
        except HyperRuntimeError as error:
            checks.append(PreflightCheck("template", "failed", str(error)))
    try:
        await check_server(options)
        model = open_model(options)
    except HyperRuntimeError as error:
        return [*checks, PreflightCheck("server", "failed", str(error))]
    try:
        without_tokens: State = "failed" if require_tokens else "warning"
        return checks + await _ask(
            model, served_template=options.wire == "chat", without_tokens=without_tokens
        )
    finally:
        await model.close()


def compare_renderings(tokenizer: Any) -> PreflightCheck:  # noqa: ANN401 - a ChatTokenizer
    """Render a conversation with and without tools; the check fails unless the tools' names are
    rendered.
    """
    messages = [{"role": "user", "content": "hello"}]
    with_tools = tokenizer.render(messages, [_TOOL], prompt=True)
    if with_tools == tokenizer.render(messages, [], prompt=True):
        detail = (
            "the chat template renders the same text with and without tools, so the model never "
            "sees them"
        )
        return PreflightCheck(
            "template", "failed", f"{detail}; use a template that renders `tools`"
        )
    if "look_up" not in with_tools:
        return PreflightCheck(
            "template", "failed", "the chat template does not render the names of the tools"
        )
    return PreflightCheck("template", "ok", "the chat template renders tools")


async def _ask(
    model: Model, *, served_template: bool, without_tokens: State
) -> list[PreflightCheck]:
    """Send short requests to a server, and return the results of the checks of its answers.

    Args:
        model: the model.
        served_template: whether the server renders the conversation.
        without_tokens: state of the check of a turn without token ids and log probabilities.
    """
    words = " ".join(secrets.token_hex(3) for _ in range(8))  # random, so that no cache has them
    asked: list[Message] = [
        {"role": "system", "content": "Look words up with the tool before you answer."},
        {"role": "user", "content": f"Look up these: {words}"},
    ]
    try:
        plain = await _complete(model, asked, [])
        tooled = await _complete(model, asked, [_TOOL])
    except HyperRuntimeError as error:
        return [PreflightCheck("server", "failed", str(error))]
    found = [PreflightCheck("server", "ok", f"{model.name!r} answers")]
    if served_template:
        found.append(_compare_prompts(plain, tooled))
    found.append(_tokens(tooled, without_tokens))
    found.append(_calls(tooled))
    try:
        found.append(await _going_on(model, asked, tooled))
    except HyperRuntimeError as error:
        found.append(
            PreflightCheck("conversation", "failed", f"the server rejects a second turn: {error}")
        )
    return found


async def _complete(
    model: Model, messages: Sequence[Message], tools: Sequence[Message]
) -> Completion:
    return await model.complete(messages, tools, Sampling(max_tokens=_MAX_TOKENS, seed=1))


def _tokens(turn: Completion, without: State) -> PreflightCheck:
    missing = [name for name in ("prompt_ids", "ids", "logprobs") if getattr(turn, name) is None]
    if missing:
        detail = (
            f"the server does not return {', '.join(missing)}, so its turns cannot be used for "
            "training"
        )
        return PreflightCheck("tokens", without, f"{detail}; try vLLM 0.10.2 or --wire sglang")
    ids = turn.ids or ()
    logprobs = turn.logprobs or ()
    if len(ids) != len(logprobs):
        return PreflightCheck(
            "tokens", "failed", f"{len(ids)} token ids and {len(logprobs)} logprobs"
        )
    if not all(math.isfinite(value) and value <= 1e-6 for value in logprobs):
        return PreflightCheck(
            "tokens", "failed", "some log probabilities are above zero or not finite"
        )
    if len(ids) > _MAX_TOKENS:
        return PreflightCheck(
            "tokens", "failed", f"{len(ids)} tokens, but at most {_MAX_TOKENS} were allowed"
        )
    return PreflightCheck("tokens", "ok", "the server returns each token's id and logprob")


async def _going_on(model: Model, asked: Sequence[Message], first: Completion) -> PreflightCheck:
    """Request a second turn with a tool result, and check that its prompt continues the tokens of
    the first.
    """
    message = normalized_message(first.message, 1)
    answers = [
        {
            "role": "tool",
            "tool_call_id": call["id"],
            "name": call["function"]["name"],
            "content": "nothing found",
        }
        for call in message.get("tool_calls", ())
    ]
    more = answers or [{"role": "user", "content": "Go on."}]
    second = await _complete(model, [*asked, message, *more], [_TOOL])
    if first.prompt_ids is None or first.ids is None or second.prompt_ids is None:
        return PreflightCheck("conversation", "ok", "the server answers a second turn")
    before = [*first.prompt_ids, *first.ids]
    if list(second.prompt_ids[: len(before)]) == before:
        return PreflightCheck(
            "conversation", "ok", "a second turn continues the tokens of the first"
        )
    detail = "the server renders earlier turns again, so each turn becomes a separate segment"
    return PreflightCheck(
        "conversation", "warning", f"{detail}; --wire sglang or completions avoids that"
    )


def _compare_prompts(plain: Completion, tooled: Completion) -> PreflightCheck:
    """Compare the prompts with and without tools: if they are the same, the server's template drops
    tools.
    """
    if plain.prompt_ids is not None and tooled.prompt_ids is not None:
        same: bool | None = list(plain.prompt_ids) == list(tooled.prompt_ids)
    else:
        sizes = [turn.usage.get("prompt_tokens", 0) for turn in (plain, tooled)]
        same = sizes[0] == sizes[1] if all(sizes) else None
    if same is None:
        return PreflightCheck("template", "warning", "the server does not report prompt lengths")
    if same:
        detail = (
            "the prompt is the same with and without tools, so the server's chat template drops "
            "them"
        )
        return PreflightCheck(
            "template", "failed", f"{detail}; serve the model with a template that renders `tools`"
        )
    return PreflightCheck("template", "ok", "the server's prompt grows with the tools")


def _calls(turn: Completion) -> PreflightCheck:
    message = normalized_message(turn.message, 1)
    calls = tool_calls(message, [_TOOL])
    if not calls:
        detail = (
            "the model did not call the tool that the prompt asked for; this may be the model's "
            "choice"
        )
        return PreflightCheck("tool calls", "warning", detail)
    form = (
        "in OpenAI's form"
        if turn.message.get("tool_calls")
        else "in its text, from which they are parsed"
    )
    problem = next((call.problem for call in calls if call.problem), "")
    if problem:
        return PreflightCheck(
            "tool calls", "warning", f"the model calls tools {form}, but {problem}"
        )
    return PreflightCheck("tool calls", "ok", f"the model calls tools {form}")
