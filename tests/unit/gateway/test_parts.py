"""Parts of the gateway without input and output: framing, usage, requests, recordings,
configuration.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperruntime.errors import GatewayError, SpecError
from hyperruntime.gateway.answer import sse
from hyperruntime.gateway.answer.headers import retry_after
from hyperruntime.gateway.answer.sse import EventSplitter, event_data
from hyperruntime.gateway.answer.usage import GeneratedTokens, StreamUsage, usage_of
from hyperruntime.gateway.config.source import load_config
from hyperruntime.gateway.config.values import Budget, GatewayConfig, ModelRule, Upstream
from hyperruntime.gateway.formats import FORMATS
from hyperruntime.gateway.formats.anthropic import MESSAGES_PATH
from hyperruntime.gateway.log.budget import Meter, Tokens
from hyperruntime.gateway.log.exchange import LineFile
from hyperruntime.gateway.replay import Recorded, Replay, exchange_line
from hyperruntime.gateway.request.parse import RequestRefusedError, parse_call
from hyperruntime.gateway.upstream import Answer, Sender
from hyperruntime.secrets.env_file import MODEL_CLIENTS
from hyperruntime.secrets.redact import Redactor

CHAT = "/v1/chat/completions"
stream_bytes = st.lists(
    st.sampled_from([b"data: x", b"\n", b"\r", b"\r\n", b"\n\n", b"\xff", b":"])
).map(b"".join)


def cut(data: bytes, at: list[int]) -> list[bytes]:
    """Return the data, split at these places."""
    places = sorted({min(place, len(data)) for place in at})
    return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


@given(stream_bytes, st.lists(st.integers(0, 60)))
def test_a_stream_is_unchanged_however_it_is_split(data: bytes, at: list[int]) -> None:
    splitter = EventSplitter(10_000)
    events = [event for piece in cut(data, at) for event in splitter.feed(piece)]
    assert b"".join(events) + splitter.rest() == data


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]))),
    st.sampled_from(["\n", "\r\n"]),
    st.data(),
)
def test_events_do_not_depend_on_how_the_stream_is_split(
    texts: list[str], end: str, data: st.DataObject
) -> None:
    raw = "".join(f"event: e{end}data: {json.dumps(text)}{end}{end}" for text in texts).encode()
    at = data.draw(st.lists(st.integers(0, len(raw))))
    splitter = EventSplitter(100_000)
    events = [event for piece in cut(raw, at) for event in splitter.feed(piece)]
    assert [event_data(event) for event in events] == texts
    assert splitter.rest() == b""


def test_an_endless_event_is_rejected() -> None:
    splitter = EventSplitter(100)
    assert splitter.feed(b"data: x\n" * 12) == []
    with pytest.raises(RequestRefusedError, match="longer than 100 bytes"):
        splitter.feed(b"data: x\n")


class Counting:
    """The pattern of the end of an event; it counts the bytes that are searched."""

    def __init__(self, pattern: re.Pattern[bytes]) -> None:
        self.pattern, self.searched = pattern, 0

    def search(self, data: bytes, begin: int = 0) -> re.Match[bytes] | None:
        self.searched += len(data) - begin
        return self.pattern.search(data, begin)


def test_a_long_event_in_short_pieces_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counting, reader = Counting(sse._END), EventSplitter(1 << 30)
    monkeypatch.setattr(sse, "_END", counting)
    pieces = 20_000
    for _ in range(pieces):
        assert not reader.feed(b"data: x\n")
    assert counting.searched <= pieces * (len(b"data: x\n") + 4)


def test_the_beginning_of_a_stream_is_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counting, pieces = Counting(sse._END), 5_000
    monkeypatch.setattr(sse, "_END", counting)

    async def body() -> AsyncIterator[bytes]:
        for _ in range(pieces):
            yield b"data: x\n"
        yield b"\n"

    async def begun() -> bytes:
        sender = Sender(GatewayConfig(upstreams=(), models=()), Redactor())
        answer = await sender._begun(Answer(status=200, headers={}, body=body()), CHAT)
        return b"".join([piece async for piece in answer.body])

    assert asyncio.run(begun()) == b"data: x\n" * pieces + b"\n"
    assert counting.searched <= pieces * (len(b"data: x\n") + 4) + 5


json_values: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), json_values))
def test_a_request_is_forwarded_unchanged_except_for_its_model(extra: dict[str, Any]) -> None:
    sent = {**extra, "model": "a", "stream": False}
    call = parse_call(CHAT, json.dumps(sent).encode(), {})
    assert json.loads(call.encode("b")) == {**sent, "model": "b"}


@given(st.binary())
def test_any_bytes_are_a_request_or_rejected(body: bytes) -> None:
    status = 200
    try:
        call = parse_call(CHAT, body, {})
    except RequestRefusedError as error:
        status = error.status
    else:
        assert call.model == json.loads(body)["model"]
    assert status in (200, 400)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1]",
        b'{"model": 1}',
        b'{"model": ""}',
        b'{"model": "a", "stream": "yes"}',
        b'{"model": "a", "temperature": NaN}',
        b"[" * 200_000,
        b'{"model": "a", "n": ' + b"9" * 10_000 + b"}",
        b'{"model": "' + b"m" * 1000 + b'"}',
    ],
)
def test_a_malformed_request_is_rejected(body: bytes) -> None:
    with pytest.raises(RequestRefusedError) as refused:
        parse_call(CHAT, body, {})
    assert refused.value.status == 400


def test_a_number_that_json_cannot_represent_is_rejected() -> None:
    with pytest.raises(RequestRefusedError, match="number") as refused:
        parse_call(CHAT, b'{"model": "m", "temperature": 1e999}', {})
    assert refused.value.status == 400


def test_the_last_of_two_model_fields_counts() -> None:
    call = parse_call(CHAT, b'{"model": "dear", "model": "cheap"}', {})
    assert call.model == "cheap"
    assert call.encode(None).count(b"model") == 1


def test_usage_is_read_in_both_formats() -> None:
    chat = {"usage": {"prompt_tokens": 3, "completion_tokens": 4}}
    assert usage_of(CHAT, chat) == Tokens(input=3, output=4)
    anthropic = {"usage": {"input_tokens": 3, "cache_read_input_tokens": 2, "output_tokens": 4}}
    assert usage_of(MESSAGES_PATH, anthropic) == Tokens(input=5, output=4)
    assert usage_of(CHAT, {"usage": {"prompt_tokens": -3, "completion_tokens": True}}) == Tokens()
    assert usage_of(CHAT, {}) is None
    assert usage_of(CHAT, None) is None


def test_the_usage_of_a_stream_accumulates_and_a_truncated_stream_is_estimated() -> None:
    usage = StreamUsage()
    usage.see(
        usage_of(MESSAGES_PATH, {"message": {"usage": {"input_tokens": 7, "output_tokens": 1}}})
    )
    usage.see(usage_of(MESSAGES_PATH, {"usage": {"output_tokens": 30}}))
    usage.see(usage_of(MESSAGES_PATH, {"type": "ping"}))
    assert usage.total(complete=True, request_bytes=4, answer_bytes=4000) == Tokens(
        input=7, output=30
    )
    assert usage.total(complete=False, request_bytes=4, answer_bytes=4000) == Tokens(
        input=7, output=1000, estimated=True
    )


_JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "token", "logprob"]), inner)
    ),
    max_leaves=5,
)
_LOGPROBS = st.fixed_dictionaries(
    {"tokens": st.just([]) | _JSON, "token_logprobs": _JSON}
) | st.fixed_dictionaries({"content": _JSON})


@given(_LOGPROBS | _JSON, _JSON)
def test_any_form_of_generated_tokens_is_collected_or_ignored(
    logprobs: object, ids: object
) -> None:
    tokens = GeneratedTokens()
    tokens.see(
        {"prompt_token_ids": ids, "choices": [{"index": 0, "logprobs": logprobs, "token_ids": ids}]}
    )
    for choice in tokens.to_json()["choices"]:
        assert all(isinstance(choice[name], list) for name in choice.keys() - {"index"})


def test_retry_after_is_parsed_as_seconds_or_as_a_date() -> None:
    assert retry_after("3") == 3
    assert retry_after("0.5") == 0.5
    assert retry_after("Wed, 21 Oct 2065 07:28:00 GMT") > 1e9
    assert retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    assert retry_after("soon") == retry_after("") == retry_after("-5") == 0


def test_base_urls_are_accepted_with_and_without_v1() -> None:
    openai, anthropic = FORMATS["openai"], FORMATS["anthropic"]
    assert openai.url("http://h/v1", CHAT) == "http://h/v1/chat/completions"
    assert openai.url("http://h/api/", CHAT) == "http://h/api/chat/completions"
    for url in ("https://h", "https://h/v1", "https://h/v1/"):
        assert anthropic.url(url, "/v1/messages") == "https://h/v1/messages"


def test_each_format_has_the_variables_of_its_clients() -> None:
    assert {clients.wire for clients in MODEL_CLIENTS} == set(FORMATS)


def test_the_first_rule_of_the_requested_format_applies() -> None:
    upstreams = (
        Upstream(name="o", url="http://o/v1"),
        Upstream(name="a", url="http://a", wire="anthropic"),
    )
    rules = (ModelRule(name="x*", upstream="a"), ModelRule(name="*", upstream="o", send_as="y"))
    config = GatewayConfig(upstreams=upstreams, models=rules)
    assert config.rule_for("x1", "anthropic") == (rules[0], upstreams[0 + 1])
    assert config.rule_for("x1", "openai") == (rules[1], upstreams[0])
    assert config.rule_for("z", "anthropic") is None


@pytest.mark.parametrize(
    "url", ["ftp://h", "http://user:pass@h/v1", "h/v1", "http://h/v1?key=1", ""]
)
def test_an_invalid_upstream_url_is_rejected(url: str) -> None:
    with pytest.raises(SpecError, match="url"):
        Upstream(name="a", url=url)


def test_a_rule_with_an_unknown_upstream_is_rejected() -> None:
    with pytest.raises(SpecError, match=r"ModelRule\.upstream"):
        GatewayConfig(upstreams=(), models=(ModelRule(name="*", upstream="a"),))


def test_keys_come_from_the_environment_or_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("sk-file\n")
    monkeypatch.setenv("SOME_KEY", "sk-env")
    assert Upstream(name="a", url="http://h", key_env="SOME_KEY").load_key() == "sk-env"
    assert (
        Upstream(name="a", url="http://h", key_file=str(tmp_path / "key")).load_key() == "sk-file"
    )
    with pytest.raises(GatewayError, match="set NO_KEY in the environment"):
        Upstream(name="a", url="http://h", key_env="NO_KEY").load_key()


def test_a_budget_rejects_requests_after_it_is_used_up() -> None:
    meter = Meter("gen 3", Budget(tokens=10, money=1.0))
    assert meter.admit() == ""
    meter.charge(Tokens(input=4, output=6), 0.5)
    assert meter.admit() == "the budget of gen 3 is used up: 10 of 10 tokens"
    assert meter.spent.requests == 1


def test_keys_are_redacted_in_written_files(tmp_path: Path) -> None:
    file = LineFile(str(tmp_path / "a/log"), Redactor(['sk-"quoted"', "sk-plain"]))
    file.write({"said": 'the key sk-"quoted" and sk-plain', "n": 1})
    file.close()
    text = (tmp_path / "a/log").read_text()
    assert json.loads(text) == {"said": "the key [redacted] and [redacted]", "n": 1}
    assert (tmp_path / "a/log").stat().st_mode & 0o077 == 0


def test_an_existing_log_becomes_private(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.touch()
    path.chmod(0o644)
    LineFile(str(path), Redactor()).close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_recording_is_replayed_in_order_for_any_order_of_fields(tmp_path: Path) -> None:
    path = str(tmp_path / "tape")
    file = LineFile(path, Redactor())
    call = parse_call(CHAT, b'{"model": "a", "messages": []}', {}, keyed=True)
    for text in (b"one", b"two"):
        file.add(exchange_line(call, Recorded(status=200, content_type="t", body=text), Redactor()))
    file.close()
    tape, again = Replay(path), parse_call(CHAT, b'{"messages": [], "model": "a"}', {}, keyed=True)
    assert call.key == again.key
    assert [tape.play(again).body, tape.play(call).body] == [b"one", b"two"]
    with pytest.raises(RequestRefusedError, match="fewer times"):
        tape.play(call)
    with pytest.raises(RequestRefusedError, match="no such request"):
        tape.play(parse_call(CHAT, b'{"model": "b"}', {}, keyed=True))


def test_a_line_after_a_truncated_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b'{"torn": ')
    for number in range(2):
        file = LineFile(str(path), Redactor())
        file.write({"n": number})
        file.close()
    assert path.read_bytes().splitlines()[1:] == [b'{"n": 0}', b'{"n": 1}']


def test_a_truncated_recording_is_rejected_with_its_line_number(tmp_path: Path) -> None:
    (tmp_path / "tape").write_text('{"key": "a", "status": 200, "type": "t", "body": ""}\n{"key')
    with pytest.raises(GatewayError, match="line 2"):
        Replay(str(tmp_path / "tape"))


def test_a_configuration_is_read_from_toml_with_absolute_paths(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(
        """
        [gateway]
        log = "logs/exchanges.jsonl"
        retries = 2
        budget = {tokens = 1000, money = 2.5}
        [[gateway.upstreams]]
        name = "vllm"
        url = "http://node7:8000/v1"
        key_env = "VLLM_KEY"
        [[gateway.upstreams]]
        name = "old"
        url = "replay:tape.jsonl"
        [[gateway.models]]
        name = "gpt-*"
        upstream = "vllm"
        send_as = "qwen"
        """
    )
    config = load_config(tmp_path / "c.toml")
    assert config.log == str(tmp_path / "logs/exchanges.jsonl")
    assert (config.retries, config.budget) == (2, Budget(tokens=1000, money=2.5))
    assert [upstream.name for upstream in config.upstreams] == ["vllm", "old"]
    assert config.upstreams[1].replay == str(tmp_path / "tape.jsonl")
    assert config.models == (ModelRule(name="gpt-*", upstream="vllm", send_as="qwen"),)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no table"),
        ("[gateway", "TOML"),
        (
            "[gateway]\nupstreams = []\nmodels = []\nupstream = 3",
            "gateway.upstream=.*did you mean 'upstreams'",
        ),
        ("[gateway]\nmodels = []\n[[gateway.upstreams]]\nname = 'a'\nurl = 'ftp://x'", "http"),
        (
            "[gateway]\nupstreams = []\nmodels = []\nretries = -1",
            "retries=-1 is not allowed: a number, 0 or more",
        ),
        ('gateway = "abc"', "has no table"),
    ],
)
def test_an_invalid_configuration_is_rejected(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "c.toml").write_text(text)
    with pytest.raises(GatewayError, match=why):
        load_config(tmp_path / "c.toml")
