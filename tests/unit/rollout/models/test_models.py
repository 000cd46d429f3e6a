"""R3: clients of model servers, tested against scripted servers on real sockets."""

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from hyperruntime.errors import ModelError, SpecError
from hyperruntime.rollout.agent.agent import AgentTask, run_agent
from hyperruntime.rollout.agent.model import Completion, Model, Sampling
from hyperruntime.rollout.agent.recorder import RecordedModel, Stopwatch
from hyperruntime.rollout.agent.replay import Replay
from hyperruntime.rollout.models import ModelOptions, Wire, open_model
from hyperruntime.rollout.models.server import check_server
from hyperruntime.rollout.models.token_model import TokenModel
from hyperruntime.rollout.run_files.turn_journal import TurnJournal
from tests.doubles.byte_tokenizer import ByteTokenizer, render_hermes
from tests.doubles.episodes import BASH
from tests.doubles.tokenizers import write_byte_tokenizer
from tests.doubles.tokenserver import TokenServer, emitted, in_turn, token_server
from tests.doubles.upstream import Received, Reply, chat, json_reply, scripted_upstream

HELLO = [{"role": "user", "content": "hello"}]
TOOLS = [BASH]
ODD = [
    'I look: é <tool_call>  {"arguments":{"command":"ls"},   "name":"bash"} </tool_call>',
    "it is\tdone",
    "as  before",
]


def ask(model: Model, messages: Sequence[Mapping[str, Any]] = HELLO) -> Completion:
    async def once() -> Completion:
        try:
            return await model.complete(messages, [], Sampling(seed=3))
        finally:
            await model.close()

    return asyncio.run(once())


def chat_model(url: str, **options: Any) -> Model:
    return open_model(ModelOptions(name="m", base_url=url, **{"patience_s": 5.0, **options}))


def test_temporary_failures_are_retried_until_the_server_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hyperruntime.rollout.models.server._BACKOFF_S", 0.01)
    replies = iter(
        [json_reply({}, status=503), json_reply({}, status=429, Retry_After="0"), Reply(cut=True)]
    )
    with scripted_upstream(lambda _: next(replies, chat("hi"))) as server:
        completion = ask(chat_model(server.url))
    assert completion.message["content"] == "hi"
    assert completion.usage == {"prompt_tokens": 10, "completion_tokens": 5}
    assert completion.ids is None
    assert len(server.received) == 4


def test_a_server_that_keeps_failing_raises_an_error_with_the_cause() -> None:
    broken = scripted_upstream(lambda _: json_reply({"error": "boom"}, status=500))
    with broken as server, pytest.raises(ModelError, match=r"status 500.*boom"):
        ask(chat_model(server.url, patience_s=0.5))
    with pytest.raises(ModelError, match="check that it runs"):
        ask(chat_model("http://127.0.0.1:9", patience_s=0.1))


@pytest.mark.parametrize(("status", "is_up"), [(200, True), (404, True), (500, True), (503, False)])
def test_a_server_is_up_unless_a_proxy_answers_for_it(
    status: int, is_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    monkeypatch.setattr("hyperruntime.rollout.models.server._REACH_S", 0)
    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.handle_request).start()
        options = ModelOptions(name="m", base_url=f"http://127.0.0.1:{server.server_port}/v1")
        with nullcontext() if is_up else pytest.raises(ModelError, match="status 503"):
            asyncio.run(check_server(options))


def test_a_server_that_is_too_busy_to_answer_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hyperruntime.rollout.models.server._REACH_ONCE_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as busy:
        url = f"http://127.0.0.1:{busy.getsockname()[1]}/v1"
        asyncio.run(check_server(ModelOptions(name="m", base_url=url)))


def test_a_server_that_forbids_retries_is_not_asked_again() -> None:
    said = json_reply({"error": "no upstream"}, status=502, x_should_retry="false")
    with scripted_upstream(lambda _: said) as server:
        with pytest.raises(ModelError, match=r"failed 1 times \(status 502"):
            ask(chat_model(server.url))
        assert len(server.received) == 1


def test_parameters_that_a_server_does_not_know_are_no_longer_sent() -> None:
    def picky(request: Received) -> Reply:
        for name in ("return_token_ids", "max_tokens"):
            if name in request.body:
                return json_reply(
                    {"error": {"message": f"Unknown parameter: '{name}'"}}, status=400
                )
        return chat("hi")

    with scripted_upstream(picky) as server:
        assert ask(chat_model(server.url)).message["content"] == "hi"
    assert server.received[-1].body["max_completion_tokens"] == 4096
    assert "return_token_ids" not in server.received[-1].body


def test_other_client_errors_are_raised_at_once_without_the_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-very-secret")
    telling = scripted_upstream(
        lambda r: json_reply({"sent": r.headers["authorization"]}, status=401)
    )
    with telling as server, pytest.raises(ModelError, match="401") as caught:
        ask(chat_model(server.url, key_env="SOME_KEY"))
    assert "sk-very-secret" not in str(caught.value)
    assert server.received[0].headers["authorization"] == "Bearer sk-very-secret"
    assert len(server.received) == 1
    with pytest.raises(ModelError, match="set NO_SUCH_KEY"):
        chat_model(server.url, key_env="NO_SUCH_KEY")


def test_a_doubly_encoded_answer_is_read() -> None:
    body = json.loads(chat("hi").pieces[0])
    with scripted_upstream(lambda _: json_reply(json.dumps(body))) as server:
        assert ask(chat_model(server.url)).message["content"] == "hi"


def test_invalid_model_options_are_rejected() -> None:
    for wrong in (
        {"base_url": "localhost:8000"},
        {"base_url": "http://user:pass@host"},
        {"wire": "sglang"},
    ):
        with pytest.raises(SpecError) as caught:
            ModelOptions(**{"name": "m", "base_url": "http://h/v1", **wrong})  # type: ignore[arg-type]
        assert "pass@" not in str(caught.value)


def token_model(wire: Wire) -> Callable[[TokenServer], Model]:
    def make(server: TokenServer) -> Model:
        if wire == "chat":
            return chat_model(server.url)
        return TokenModel(
            ModelOptions(name="m", base_url=server.url, wire=wire, tokenizer="-"), server.tokenizer
        )

    return make


class Forgetful(ByteTokenizer):
    """Renders old assistant turns without their text, as some chat templates drop earlier
    reasoning.
    """

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        *,
        prompt: bool,
    ) -> str:
        last = max((n for n, m in enumerate(messages) if m["role"] == "user"), default=0)
        kept = [
            {**m, "content": ""} if m["role"] == "assistant" and n < last else m
            for n, m in enumerate(messages)
        ]
        return super().render(kept, tools, prompt=prompt)


async def _converse(model: Model, journal: TurnJournal | None = None) -> RecordedModel:
    recorded = RecordedModel(
        model, Stopwatch(), Replay(journal or TurnJournal()), require_tokens=True
    )

    async def handle(name: str, arguments: Mapping[str, Any], task_id: str) -> str:
        return f"ran {arguments['command']}"

    task = AgentTask(id="t", model=recorded, messages=HELLO, tools=TOOLS, tool_handler=handle)
    result = await run_agent(task)
    again = [*result.messages, {"role": "user", "content": "and again"}]
    await run_agent(
        AgentTask(id="t", model=recorded, messages=again, tools=TOOLS, tool_handler=handle)
    )
    await model.close()
    return recorded


@pytest.mark.parametrize("wire", ["chat", "sglang", "vllm", "completions"])
@pytest.mark.parametrize(("tokenizer", "segments"), [(ByteTokenizer(), 1), (Forgetful(), 2)])
def test_r3_every_turn_is_recorded_as_emitted_for_any_chat_template(
    wire: Wire, tokenizer: ByteTokenizer, segments: int
) -> None:
    """Spaces that a rendering would remove are in the next prompt as they were emitted."""
    with token_server(in_turn(*ODD), tokenizer=tokenizer) as server:
        recorded = asyncio.run(_converse(token_model(wire)(server)))
    found = recorded.tokens.segments()
    assert emitted(found) == tuple(token for turn in server.turns for token in turn.ids)
    assert [lp for s in found for lp in s.logprobs if lp is not None] == [
        lp for t in server.turns for lp in t.logprobs
    ]
    assert len(server.turns) == 3
    assert recorded.usage["completion_tokens"] == sum(len(turn.ids) for turn in server.turns)
    # A server that renders the conversation itself re-renders the call in another form than it
    # emitted.
    assert len(found) == segments + (wire == "chat")


@pytest.mark.parametrize("wire", ["chat", "sglang", "vllm", "completions"])
def test_turns_that_are_played_back_have_their_tokens_and_the_next_prompt_continues_them(
    wire: Wire,
) -> None:
    async def in_two_attempts(
        make: Callable[[TokenServer], Model], server: TokenServer
    ) -> RecordedModel:
        journal = TurnJournal()
        first = RecordedModel(make(server), Stopwatch(), Replay(journal))
        await first.complete(HELLO, TOOLS, Sampling(seed=None))
        await first._model.close()
        again = TurnJournal(data=journal.data)  # as in another process, with another client
        return await _converse(make(server), again)

    with token_server(in_turn(*ODD)) as server:
        whole = asyncio.run(_converse(token_model(wire)(server)))
    with token_server(in_turn(*ODD)) as server:
        replayed = asyncio.run(in_two_attempts(token_model(wire), server))
        assert len(server.turns) == 3
        assert emitted(replayed.tokens.segments()) == tuple(
            token for turn in server.turns for token in turn.ids
        )
    assert replayed.tokens.segments() == whole.tokens.segments()
    assert replayed.usage == whole.usage


def test_a_server_without_token_ids_is_rejected_if_they_are_required() -> None:
    with scripted_upstream(lambda _: chat("hi")) as server:
        inner = chat_model(server.url)
        model = RecordedModel(inner, Stopwatch(), Replay(TurnJournal()), require_tokens=True)
        model.close = inner.close  # type: ignore[method-assign]
        with pytest.raises(ModelError, match="does not return token ids and log probabilities"):
            ask(model)


def test_a_tokenizer_directory_needs_only_a_template_and_a_tokenizer(tmp_path: Path) -> None:
    from hyperruntime.rollout.models.tokenizer import DirectoryTokenizer

    tokenizer = DirectoryTokenizer(str(write_byte_tokenizer(tmp_path)))
    text = "<|im_start|>user\nhéllo  'you'<|im_end|>\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    texts = [render_hermes("bash", {"command": "ls"}), "é done", "so"]
    with token_server(in_turn(*texts), tokenizer=tokenizer) as server:
        options = ModelOptions(
            name="m", base_url=server.url, wire="sglang", tokenizer=str(tmp_path)
        )
        recorded = asyncio.run(_converse(open_model(options)))
    (segment,) = recorded.tokens.segments()
    assert emitted([segment]) == tuple(token for turn in server.turns for token in turn.ids)
    with pytest.raises(ModelError, match="name a model's directory"):
        DirectoryTokenizer(str(tmp_path / "nothing"))
