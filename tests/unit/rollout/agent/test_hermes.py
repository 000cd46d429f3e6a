"""Tool calls in the text and in the messages of a model."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperruntime.rollout.agent.tool_calls import (
    normalized_message,
    parse_hermes,
    sendable,
    tool_calls,
)
from tests.doubles.byte_tokenizer import render_hermes

_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
_CALLS = st.lists(
    st.tuples(st.text(min_size=1), st.dictionaries(st.text(), _JSON, max_size=4)),
    min_size=1,
    max_size=4,
)
_TEXT = st.text().filter(lambda text: "<" not in text)
_SCRAPS = st.lists(
    st.sampled_from(
        [
            "<tool_call>",
            "</tool_call>",
            '{"name": "bash", "arguments": {"command": "ls"}}',
            "{",
            "}",
            '"',
            "[1]",
            " ",
        ]
    )
    | st.text(max_size=5),
    max_size=12,
).map("".join)
BASH: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "bash",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}, "timeout": {"type": ["number", "null"]}},
            "required": ["command"],
        },
    },
}


@given(_CALLS, _TEXT, _TEXT)
def test_rendered_calls_are_parsed_back_with_the_text_around_them(
    calls: list[tuple[str, dict[str, Any]]], before: str, after: str
) -> None:
    text, found = parse_hermes(before + "\n".join(render_hermes(*call) for call in calls) + after)
    assert [(call["name"], json.loads(call["arguments"])) for call in found] == calls
    assert "".join(text.split()) == "".join((before + after).split())


@given(_SCRAPS)
def test_any_text_is_parsed_and_every_call_can_be_answered(text: str) -> None:
    message = normalized_message({"role": "assistant", "content": text}, 1)
    calls = tool_calls(message, [BASH])
    assert len({call.id for call in calls}) == len(calls)
    for sent in sendable([message])[0].get("tool_calls", ()):
        assert isinstance(json.loads(sent["function"]["arguments"]), dict)
    assert normalized_message(message, 9) == message


def test_unclosed_tool_call_tags_still_contain_calls() -> None:
    one = '<tool_call>{"name": "bash", "arguments": {"command": "a"}}'
    assert [call["arguments"] for call in parse_hermes(f"say {one}\n{one}")[1]] == [
        '{"command": "a"}'
    ] * 2
    assert parse_hermes(f"say {one}")[0] == "say"


def test_a_closing_tag_inside_an_argument_does_not_end_the_call() -> None:
    written = render_hermes("bash", {"command": "echo '</tool_call>' <tool_call>"})
    (call,) = parse_hermes(written)[1]
    assert json.loads(call["arguments"]) == {"command": "echo '</tool_call>' <tool_call>"}


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        ({"function": {"name": "bash", "arguments": "{bad"}}, "not valid JSON"),
        ({"function": {"name": "bash", "arguments": "[1]"}}, "must be a JSON object"),
        ({"function": {"name": "rm", "arguments": "{}"}}, "unknown tool 'rm'; the tools are: bash"),
        ({"function": {"name": "bash", "arguments": "{}"}}, "needs the argument 'command'"),
        (
            {"function": {"name": "bash", "arguments": '{"command": 3}'}},
            "'command' of 'bash' must be of type string",
        ),
        ({"function": {"arguments": "{}"}}, "has no tool name"),
        ("no object", "has no tool name"),
        ({"function": {"name": "bash", "arguments": {"command": "ls"}}}, ""),
        ({"function": {"name": "bash", "arguments": '{"command": "ls", "timeout": null}'}}, ""),
    ],
)
def test_an_invalid_call_is_described(call: object, problem: str) -> None:
    message = normalized_message({"role": "assistant", "content": None, "tool_calls": [call]}, 3)
    (found,) = tool_calls(message, [BASH])
    assert found.id == "call_3_0"
    assert problem in found.problem
    assert bool(problem) == bool(found.problem)


def test_existing_call_ids_stay_and_duplicates_get_new_ids() -> None:
    call = {
        "id": "x",
        "type": "function",
        "function": {"name": "bash", "arguments": '{"command": "ls"}'},
    }
    message = normalized_message(
        {"role": "assistant", "content": "", "tool_calls": [call, call]}, 2
    )
    assert [one["id"] for one in message["tool_calls"]] == ["x", "call_2_1"]
