"""Broken model servers, turns that broke off and full contexts, as rollouts meet them: scripted
servers on sockets.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hyperruntime.errors import ModelError
from hyperruntime.gateway.formats import turn_end
from hyperruntime.gateway.formats.turn_end import TurnEnd
from hyperruntime.rollout.agent.agent import AgentResult, AgentTask, run_agent
from hyperruntime.rollout.agent.model import Model
from hyperruntime.rollout.agent.recorder import RecordedModel, Stopwatch
from hyperruntime.rollout.agent.replay import Replay
from hyperruntime.rollout.models import ModelOptions, Wire, open_model
from hyperruntime.rollout.models.token_model import TokenModel
from hyperruntime.rollout.run_files.turn_journal import TurnJournal
from tests.doubles.byte_tokenizer import ByteTokenizer
from tests.doubles.episodes import BASH
from tests.doubles.server_errors import TOO_LONG, Error
from tests.doubles.upstream import Reply, chat_stream, json_reply, scripted_upstream

PAGE = Path(__file__).parents[4] / "docs/rollouts.md"


def said(message: Mapping[str, Any], reason: object = "stop") -> Reply:
    return json_reply(
        {
            "choices": [
                {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason}
            ]
        }
    )


def call(text: str = "") -> dict[str, Any]:
    function = {"name": "bash", "arguments": json.dumps({"command": "ls"})}
    return {
        "content": text or None,
        "tool_calls": [{"id": "c1", "type": "function", "function": function}],
    }


DONE = said({"content": "done"})
HTML = Reply(pieces=(b"<html>Welcome</html>",), headers={"Content-Type": "text/html"})


def opened(url: str, wire: Wire = "chat", **options: Any) -> Model:
    chosen = ModelOptions(
        name="m", base_url=url, wire=wire, tokenizer="-", **{"patience_s": 5.0, **options}
    )
    return open_model(chosen) if wire == "chat" else TokenModel(chosen, ByteTokenizer())


def converse(model: Model) -> AgentResult:
    """Run the default agent as an episode does; return its result."""

    async def handle(name: str, arguments: Mapping[str, Any], task_id: str) -> str:
        return f"ran {arguments['command']}"

    async def run() -> AgentResult:
        recorded = RecordedModel(model, Stopwatch(), Replay(TurnJournal()))
        hello = [{"role": "user", "content": "hello"}]
        try:
            return await run_agent(
                AgentTask(id="t", model=recorded, messages=hello, tools=[BASH], tool_handler=handle)
            )
        finally:
            await model.close()

    return asyncio.run(run())


BROKEN = {
    "HTML": HTML,
    "an event stream": chat_stream("hello"),
    "no choices": json_reply({"choices": []}),
    "a list": json_reply([]),
    "a choice without a message": json_reply({"choices": [{}]}),
    "null content": said({"content": None}),
    "an error of code 429": json_reply({"error": {"code": 429, "message": "slow down"}}),
    "an error of code 502": json_reply({"error": {"code": 502, "message": "bad gateway"}}),
    "an error without a code": json_reply({"error": "boom"}),
    "abort": said({"content": "half"}, "abort"),
    "aborted with a call": said(call("half"), "aborted"),
    "error": said({"content": "half"}, "error"),
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyperruntime.rollout.models.server._BACKOFF_S", 0.01)


@pytest.mark.parametrize("reply", BROKEN.values(), ids=BROKEN)
def test_a_broken_answer_is_asked_for_again_within_the_attempt(reply: Reply) -> None:
    replies = iter([reply, said(call()), reply, reply, DONE])
    with scripted_upstream(lambda _: next(replies)) as server:
        result = converse(opened(server.url))
    assert (result.stop_reason, result.turns, result.tool_calls) == ("finished", 2, 1)
    assert [message["content"] for message in result.messages[1:]] == ["", "ran ls", "done"]


@pytest.mark.parametrize("reply", BROKEN.values(), ids=BROKEN)
def test_a_server_that_stays_broken_fails_the_attempt_after_a_few_requests(reply: Reply) -> None:
    with scripted_upstream(lambda _: reply) as server:
        with pytest.raises(ModelError, match=r"failed 4 times \(.*check that it runs there"):
            converse(opened(server.url, patience_s=60.0))
        assert len(server.received) == 4


@pytest.mark.parametrize("wire", ["sglang", "vllm", "completions"])
def test_a_turn_of_tokens_that_broke_off_is_asked_for_again(wire: Wire) -> None:
    ids = ByteTokenizer().encode("done")
    logprobs = {"tokens": [], "token_logprobs": [-1.0] * len(ids)}

    def turn(reason: str) -> Reply:
        entries = [[-1.0, token, None] for token in ids]
        if wire == "sglang":
            meta = {"finish_reason": {"type": reason}, "output_token_logprobs": entries}
            return json_reply({"text": "done", "meta_info": meta})
        if wire == "vllm":
            pairs = [{str(token): -1.0} for token in ids]
            return json_reply({"text": ["done"], "logprobs": [pairs], "finish_reasons": [reason]})
        choice = {
            "index": 0,
            "text": "done",
            "token_ids": ids,
            "logprobs": logprobs,
            "finish_reason": reason,
        }
        return json_reply({"choices": [choice]})

    replies = iter([turn("abort"), turn("stop")])
    with scripted_upstream(lambda _: next(replies)) as server:
        result = converse(opened(server.url, wire))
        assert len(server.received) == 2
    assert result.messages[-1]["content"] == "done"


@pytest.mark.parametrize("error", TOO_LONG.values(), ids=TOO_LONG)
def test_a_conversation_that_fills_the_context_of_any_server_ends_with_the_context_limit(
    error: Error,
) -> None:
    status, body = error
    full = (
        Reply(pieces=(body.encode(),), status=status)
        if isinstance(body, str)
        else json_reply(body, status)
    )
    replies = iter([said(call()), full])
    with scripted_upstream(lambda _: next(replies)) as server:
        result = converse(opened(server.url))
        assert len(server.received) == 2
    assert (result.stop_reason, result.turns) == ("context_limit", 1)


def test_a_legacy_function_call_is_a_tool_call() -> None:
    function = {"name": "bash", "arguments": '{"command": "ls"}'}
    replies = iter([said({"content": None, "function_call": function}, "function_call"), DONE])
    with scripted_upstream(lambda _: next(replies)) as server:
        result = converse(opened(server.url))
        answered = server.received[1].body["messages"]
    assert (result.stop_reason, result.tool_calls) == ("finished", 1)
    assert "function_call" not in answered[1]
    assert answered[1]["tool_calls"][0]["function"] == function
    assert answered[2]["content"] == "ran ls"


@pytest.mark.parametrize("message", [{"content": "I should not"}, {"content": None}, call("half")])
def test_a_content_filter_ends_a_conversation_and_runs_no_call(message: dict[str, Any]) -> None:
    with scripted_upstream(lambda _: said(message, "content_filter")) as server:
        result = converse(opened(server.url))
        assert len(server.received) == 1
    assert (result.stop_reason, result.turns, result.tool_calls) == ("content_filter", 1, 0)
    answers = [each for each in result.messages if each["role"] == "tool"]
    assert len(answers) == len(message.get("tool_calls", ()))
    assert all("did not run" in each["content"] for each in answers)


@pytest.mark.parametrize(
    ("reason", "ends"),
    [
        ("stop", "finished"),
        (None, "finished"),
        ("", "finished"),
        ("EOS", "finished"),
        ("length", "token_limit"),
        ("max_tokens", "token_limit"),
        ("model_context_window_exceeded", "context_limit"),
    ],
)
def test_a_turn_without_calls_ends_the_conversation_by_its_reason(
    reason: object, ends: str
) -> None:
    with scripted_upstream(lambda _: said({"content": "text"}, reason)) as server:
        assert converse(opened(server.url)).stop_reason == ends


def test_an_unknown_reason_is_not_scored_unless_the_turn_has_calls() -> None:
    replies = iter([said(call(), "a_new_word"), said({"content": "half?"}, "a_new_word")])
    with scripted_upstream(lambda _: next(replies)) as server:
        with pytest.raises(ModelError, match="unknown finish_reason 'a_new_word'"):
            converse(opened(server.url))
        assert len(server.received) == 2


def test_an_error_about_a_parameter_inside_an_answer_of_status_200_is_learned_from() -> None:
    unknown = json_reply(
        {"error": {"code": 400, "message": "Unknown parameter: 'return_token_ids'"}}
    )
    with scripted_upstream(lambda r: unknown if "return_token_ids" in r.body else DONE) as server:
        assert converse(opened(server.url)).stop_reason == "finished"


def test_the_page_about_rollouts_has_each_reason_in_its_row() -> None:
    rows: dict[str, str] = {}
    for line in PAGE.read_text().splitlines():
        if line.startswith("| `") and line.count("|") == 5 and "finish_reason" not in line:
            words, *_ = line.strip("| ").split(" | ")
            rows |= dict.fromkeys(re.findall(r"`([a-z_]+)`", words), line)
    for end, words in turn_end._WORDS.items():
        lines = {rows.get(word, f"{word} is missing") for word in words.split()}
        assert len(lines) == 1, (end, lines)
    assert set(rows) == {word for words in turn_end._WORDS.values() for word in words.split()}
    assert TurnEnd.UNKNOWN not in turn_end._WORDS
