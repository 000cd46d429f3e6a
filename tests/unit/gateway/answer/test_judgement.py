"""Judge the documented errors of many model servers, and answers of status 200 that are broken or
only odd.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperruntime.gateway.answer.judgement import (
    GENERATE_PATH,
    Kind,
    judge,
    judge_end,
    judge_event,
    read_body,
)
from hyperruntime.gateway.formats.anthropic import COUNT_PATH, MESSAGES_PATH
from hyperruntime.gateway.formats.openai import (
    CHAT_PATH,
    COMPLETIONS_PATH,
    EMBEDDINGS_PATH,
    RESPONSES_PATH,
)
from hyperruntime.gateway.formats.turn_end import TurnEnd, turn_end
from tests.doubles.server_errors import OTHERS, TOO_LONG, Error

CALL = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": "{}"}}


def judged(path: str, status: int, body: object) -> Kind:
    text = body if isinstance(body, str) else json.dumps(body)
    return judge(path, status, read_body(text.encode()), text).kind


def chat(message: object, reason: object = "stop", **choice: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": message, "finish_reason": reason, **choice}]}


@pytest.mark.parametrize("error", TOO_LONG.values(), ids=TOO_LONG)
@pytest.mark.parametrize("path", [CHAT_PATH, RESPONSES_PATH, GENERATE_PATH])
def test_a_full_context_is_recognised_in_the_words_of_each_server(path: str, error: Error) -> None:
    assert judged(path, *error) is Kind.TOO_LONG


@pytest.mark.parametrize("error", OTHERS.values(), ids=OTHERS)
def test_an_error_that_only_resembles_a_full_context_is_not_one(error: Error) -> None:
    status, body = error
    meant = body["error"]["code"] if status == 200 else status
    assert judged(CHAT_PATH, *error) is (Kind.BROKEN if meant in (401, 402, 429) else Kind.REFUSED)


@pytest.mark.parametrize(
    "status", [401, 402, 408, 409, 425, 429, 500, 501, 502, 503, 504, 520, 529]
)
def test_the_server_or_the_account_is_at_fault_for_these_statuses(status: int) -> None:
    found = judge(CHAT_PATH, status, {"error": {"message": "no"}})
    assert found.kind is Kind.BROKEN
    assert found.retry is (status not in (401, 402))


@pytest.mark.parametrize("status", [400, 403, 404, 405, 413, 415, 422])
def test_the_client_is_at_fault_for_the_other_statuses(status: int) -> None:
    assert judged(CHAT_PATH, status, {"error": {"message": "no"}}) is Kind.REFUSED


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT_PATH, "<html>Welcome</html>"),
        (CHAT_PATH, 'data: {"choices": []}\n\n'),
        (CHAT_PATH, ""),
        (CHAT_PATH, []),
        (CHAT_PATH, {}),
        (CHAT_PATH, {"choices": []}),
        (CHAT_PATH, {"choices": None}),
        (CHAT_PATH, {"choices": [None]}),
        (CHAT_PATH, {"choices": [{}]}),
        (CHAT_PATH, chat({})),
        (CHAT_PATH, chat({"content": None})),
        (CHAT_PATH, chat({"content": None, "tool_calls": []}, "tool_calls")),
        (CHAT_PATH, chat({"content": "half"}, "abort")),
        (CHAT_PATH, chat({"content": "half", "tool_calls": [CALL]}, "aborted")),
        (CHAT_PATH, chat({"content": "half"}, "error")),
        (CHAT_PATH, chat({"content": "half"}, "stop", error={"code": 502, "message": "lost"})),
        (CHAT_PATH, {"error": "boom"}),
        (CHAT_PATH, {"error": {"code": 429, "message": "slow down"}}),
        (CHAT_PATH, {"error": {"code": "502", "message": "bad gateway"}}),
        (CHAT_PATH, {"error": {"type": "rate_limit_error", "message": "slow down"}}),
        (CHAT_PATH, {"object": "error", "message": "it broke"}),
        (COMPLETIONS_PATH, {"choices": [{"index": 0, "finish_reason": "stop"}]}),
        (EMBEDDINGS_PATH, {"object": "list"}),
        (
            MESSAGES_PATH,
            {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}},
        ),
        (MESSAGES_PATH, {"type": "message", "stop_reason": "end_turn"}),
        (COUNT_PATH, "<html>"),
        (
            RESPONSES_PATH,
            {"status": "failed", "error": {"code": "server_error", "message": "x"}, "output": []},
        ),
        (RESPONSES_PATH, {"status": "cancelled", "error": None, "output": []}),
        (RESPONSES_PATH, {"status": "completed", "error": None, "output": []}),
        (
            GENERATE_PATH,
            {"text": "", "meta_info": {"finish_reason": {"type": "abort", "message": "shutdown"}}},
        ),
        (GENERATE_PATH, {"text": [""], "finish_reasons": ["abort"]}),
    ],
)
def test_an_answer_of_status_200_without_what_was_asked_for_is_broken(
    path: str, body: object
) -> None:
    text = body if isinstance(body, str) else json.dumps(body)
    found = judge(path, 200, read_body(text.encode()), text)
    assert (found.kind, found.retry) == (Kind.BROKEN, True)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT_PATH, chat({"content": ""})),
        (CHAT_PATH, chat({"content": "hi"}, None)),
        (CHAT_PATH, chat({"content": "hi"}, "")),
        (CHAT_PATH, chat({"content": "hi"}, "some new word")),
        (CHAT_PATH, {**chat({"content": "hi"}), "error": None}),
        (CHAT_PATH, json.dumps(chat({"content": "hi"}))),
        (CHAT_PATH, "\ufeff\n" + json.dumps(chat({"content": "hi"}))),
        (CHAT_PATH, chat({"content": None, "tool_calls": [CALL]}, "tool_calls")),
        (CHAT_PATH, chat({"content": None, "function_call": CALL["function"]}, "function_call")),
        (CHAT_PATH, chat({"content": None, "reasoning_content": "hm"})),
        (CHAT_PATH, chat({"content": None, "refusal": "no"})),
        (CHAT_PATH, chat({"content": None}, "length")),
        (CHAT_PATH, chat({"content": None}, "content_filter")),
        (COMPLETIONS_PATH, {"choices": [{"text": "", "finish_reason": "length"}]}),
        (EMBEDDINGS_PATH, {"data": [{"embedding": [0.5]}]}),
        (MESSAGES_PATH, {"type": "message", "content": [], "stop_reason": "end_turn"}),
        (COUNT_PATH, {"input_tokens": 3}),
        (
            RESPONSES_PATH,
            {
                "status": "incomplete",
                "incomplete_details": {"reason": "max_output_tokens"},
                "output": [],
            },
        ),
        (
            RESPONSES_PATH,
            {"output": [{"type": "function_call", "name": "f", "arguments": "{}"}], "error": None},
        ),
        (GENERATE_PATH, {"text": "x", "meta_info": {"finish_reason": {"type": "stop"}}}),
    ],
)
def test_an_odd_answer_that_holds_what_was_asked_for_is_usable(path: str, body: object) -> None:
    assert judged(path, 200, body) is Kind.USABLE


def test_a_full_context_that_sglang_reports_as_an_abort_is_recognised() -> None:
    why = "The input (5000 tokens) is longer than the model's context length (4096 tokens)."
    reason = {"type": "abort", "message": why, "status_code": 400}
    assert (
        judged(GENERATE_PATH, 200, {"text": "", "meta_info": {"finish_reason": reason}})
        is Kind.TOO_LONG
    )


@pytest.mark.parametrize(
    ("path", "last"),
    [
        (CHAT_PATH, {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}),
        (COMPLETIONS_PATH, {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}),
        (MESSAGES_PATH, {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}),
        (MESSAGES_PATH, {"type": "message_stop"}),
        (
            RESPONSES_PATH,
            {"type": "response.completed", "response": {"status": "completed", "error": None}},
        ),
        (RESPONSES_PATH, {"type": "response.incomplete", "response": {"status": "incomplete"}}),
    ],
)
def test_a_stream_is_complete_after_the_event_that_ends_the_turn(
    path: str, last: dict[str, Any]
) -> None:
    sign = judge_event(path, last)
    assert (sign.ended, sign.fault) == (True, None)
    assert judge_end(path, ended=True).kind is Kind.USABLE
    assert judge_end(path, ended=False).kind is Kind.BROKEN


@pytest.mark.parametrize(
    ("path", "event"),
    [
        (CHAT_PATH, {"choices": [{"index": 0, "delta": {}, "finish_reason": "abort"}]}),
        (
            CHAT_PATH,
            {
                "error": {
                    "message": "the engine is dead",
                    "type": "InternalServerError",
                    "code": 500,
                }
            },
        ),
        (
            MESSAGES_PATH,
            {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}},
        ),
        (
            RESPONSES_PATH,
            {"type": "error", "code": "server_error", "message": "it broke", "param": None},
        ),
        (
            RESPONSES_PATH,
            {"type": "response.failed", "response": {"error": {"code": "server_error"}}},
        ),
        (RESPONSES_PATH, {"type": "response.failed", "response": {"error": None}}),
    ],
)
def test_an_error_in_a_stream_is_the_fault_of_the_server(path: str, event: dict[str, Any]) -> None:
    fault = judge_event(path, event).fault
    assert fault is not None
    assert fault.kind is Kind.BROKEN


def test_an_error_in_a_stream_about_the_request_is_the_fault_of_the_client() -> None:
    failed = {
        "error": {
            "code": "context_length_exceeded",
            "message": "Your input exceeds the context window",
        }
    }
    fault = judge_event(RESPONSES_PATH, {"type": "response.failed", "response": failed}).fault
    assert fault is not None
    assert fault.kind is Kind.TOO_LONG
    fault = judge_event(
        CHAT_PATH, {"error": {"type": "invalid_request_error", "message": "bad schema"}}
    ).fault
    assert fault is not None
    assert fault.kind is Kind.REFUSED


_JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["error", "choices", "message", "response", "code", "output", "type"]),
            inner,
        )
    ),
    max_leaves=10,
)


@given(
    _JSON,
    st.sampled_from([CHAT_PATH, COMPLETIONS_PATH, MESSAGES_PATH, RESPONSES_PATH, GENERATE_PATH]),
)
def test_any_json_is_judged(body: object, path: str) -> None:
    assert judge(path, 200, body).kind in Kind
    assert judge(path, 400, body).kind in Kind
    judge_event(path, body)


def test_reasons_are_read_in_any_spelling() -> None:
    assert turn_end("STOP") is turn_end("End-Turn") is turn_end({"type": "stop"}) is TurnEnd.DONE
    assert turn_end("MAX_TOKENS") is TurnEnd.CUT
    assert turn_end(None) is turn_end("") is TurnEnd.UNSAID
    assert turn_end("abort") is turn_end("Aborted") is turn_end("error") is TurnEnd.BROKEN
    assert turn_end("function_call") is TurnEnd.CALLS
    assert turn_end("a new word") is turn_end(7) is TurnEnd.UNKNOWN
