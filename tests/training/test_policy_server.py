"""The policy behind an OpenAI-compatible endpoint: its answers and its refusals."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest

from hyperruntime.rollout.agent.model import Completion, Sampling
from hyperruntime.rollout.models import ModelOptions, open_model
from hypertrainer_grpo.policy import TinyPolicy
from hypertrainer_grpo.sampling import sequence_logprobs
from hypertrainer_grpo.server import PolicyServer

ASK = [{"role": "user", "content": "red or green?"}]
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {}}}]


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[TinyPolicy, PolicyServer]]:
    """Yield a policy and its server."""
    policy = TinyPolicy(("red", "green", " or "), width=32, context=64)
    server = PolicyServer(policy, seed=3)
    server.start()
    yield policy, server
    server.stop()


def post(server: PolicyServer, body: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a request; an error's answer has its HTTP status as ``status``."""
    request = urllib.request.Request(
        f"{server.url}/chat/completions", data=json.dumps(body).encode()
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            answer: dict[str, Any] = json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            answer = {"status": error.code, **json.load(error)}
    return answer


def test_the_answer_has_the_sampled_tokens_and_their_log_probabilities(
    served: tuple[TinyPolicy, PolicyServer],
) -> None:
    """R3, T3: in the form of vLLM, one log-probability per emitted token, equal to the
    network's.
    """
    policy, server = served
    body = {
        "model": "x",
        "messages": ASK,
        "max_tokens": 8,
        "seed": 5,
        "logprobs": True,
        "return_token_ids": True,
    }
    answer = post(server, body)
    (choice,) = answer["choices"]
    prompt, ids = answer["prompt_token_ids"], choice["token_ids"]
    assert prompt == policy.render(ASK, ())
    assert choice["message"]["content"] == policy.text(ids)
    logprobs = [one["logprob"] for one in choice["logprobs"]["content"]]
    again = sequence_logprobs(policy.network, [[*prompt, *ids]], 1.0)[0].tolist()[len(prompt) :]
    assert logprobs == pytest.approx(again, abs=1e-5)
    assert answer["usage"]["completion_tokens"] == len(ids) == len(logprobs)
    assert choice["finish_reason"] == ("stop" if ids[-1] == policy.end_id else "length")
    assert post(server, body)["choices"][0]["token_ids"] == ids
    assert post(server, {**body, "seed": 6})["choices"][0]["token_ids"] != ids


def test_tokens_are_returned_only_on_request(served: tuple[TinyPolicy, PolicyServer]) -> None:
    """Other servers do the same. Tools are part of the prompt."""
    _, server = served
    answer = post(server, {"model": "x", "messages": ASK, "max_tokens": 2})
    assert "prompt_token_ids" not in answer
    assert answer["choices"][0]["logprobs"] is None
    with_tools = post(server, {"model": "x", "messages": ASK, "max_tokens": 2, "tools": TOOLS})
    assert with_tools["usage"]["prompt_tokens"] > answer["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"messages": None}, "invalid_request_error"),
        ({"messages": [{}]}, "invalid_request_error"),
        ({"max_tokens": "many"}, "invalid_request_error"),
        ({"stream": True}, "unsupported"),
        ({"n": 2}, "unsupported"),
        ({"messages": [{"role": "user", "content": "x" * 99}]}, "context_length_exceeded"),
    ],
)
def test_invalid_and_unsupported_requests_are_refused(
    served: tuple[TinyPolicy, PolicyServer], change: dict[str, Any], code: str
) -> None:
    """The answer is HTTP 400 with a code; the server keeps running."""
    _, server = served
    answer = post(server, {"model": "x", "messages": ASK, **change})
    assert (answer["status"], answer["error"]["code"]) == (400, code)
    assert post(server, {"model": "x", "messages": ASK, "max_tokens": 1})["choices"]


def test_requests_without_the_whole_address_get_404(
    served: tuple[TinyPolicy, PolicyServer],
) -> None:
    """Every user of the machine reaches loopback, so the path of the server cannot be guessed."""
    _, server = served
    address = urlsplit(server.url)
    for path in ("/v1/models", "/guessed/v1/models"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"http://{address.netloc}{path}", timeout=60)
        assert refused.value.code == 404
        refused.value.close()
    assert len(address.path) > 30


def test_the_seed_decides_each_answer_also_for_concurrent_requests(
    served: tuple[TinyPolicy, PolicyServer],
) -> None:
    """The order of the requests changes nothing."""
    _, server = served
    bodies = [
        {"model": "x", "messages": ASK, "max_tokens": 6, "seed": seed, "return_token_ids": True}
        for seed in range(12)
    ]
    with ThreadPoolExecutor(6) as pool:
        at_once = list(pool.map(lambda body: post(server, body)["choices"][0]["token_ids"], bodies))
    assert (
        at_once
        == [post(server, body)["choices"][0]["token_ids"] for body in reversed(bodies)][::-1]
    )
    assert len({tuple(ids) for ids in at_once}) > 6


def test_the_client_of_rollouts_reads_the_answer(served: tuple[TinyPolicy, PolicyServer]) -> None:
    """R3: a completion has the prompt ids, the emitted ids and the log-probabilities."""
    policy, server = served

    async def ask() -> Completion:
        model = open_model(ModelOptions(name=policy.name, base_url=server.url))
        try:
            return await model.complete(ASK, TOOLS, Sampling(max_tokens=5, seed=1))
        finally:
            await model.close()

    completion = asyncio.run(ask())
    assert completion.prompt_ids is not None
    assert completion.ids is not None
    assert completion.logprobs is not None
    assert list(completion.prompt_ids) == policy.render(ASK, TOOLS)
    assert len(completion.ids) == len(completion.logprobs) == completion.usage["completion_tokens"]
