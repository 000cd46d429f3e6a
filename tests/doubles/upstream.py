"""A scripted model server for tests: it answers, stalls, fails or breaks the connection. Needs
aiohttp.

It supports both wire formats on real sockets of the loopback interface, and records all requests.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import attrs
import pytest
from aiohttp import web

from hyperruntime.concurrency.bridge import Bridge


def forget_model_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the machine's own model servers and keys from the environment."""
    for provider in ("OPENAI", "ANTHROPIC"):
        for name in ("API_KEY", "API_BASE", "BASE_URL"):
            monkeypatch.delenv(f"{provider}_{name}", raising=False)


@attrs.frozen(kw_only=True)
class Received:
    """A received request.

    Attributes:
        path: path of the URL, with ``/v1``.
        headers: the headers, with names in lower case.
        body: the parsed JSON body.
    """

    path: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]


@attrs.frozen(kw_only=True)
class Reply:
    """The reply to one request.

    Attributes:
        pieces: the body in pieces; each is sent separately.
        status: HTTP status.
        headers: headers in addition to the content type.
        stream: whether the pieces are server-sent events.
        wait_s: seconds before the headers are sent.
        pause_s: seconds before each piece.
        cut: whether to break the connection after the last piece.
    """

    pieces: tuple[bytes, ...] = ()
    status: int = 200
    headers: Mapping[str, str] = attrs.field(factory=dict)
    stream: bool = False
    wait_s: float = 0.0
    pause_s: float = 0.0
    cut: bool = False


Script = Callable[[Received], Reply]
_MESSAGE = {
    "id": "m",
    "type": "message",
    "role": "assistant",
    "model": "scripted",
    "stop_sequence": None,
}


def json_reply(body: object, status: int = 200, **headers: str) -> Reply:
    """Return a JSON reply in one piece.

    Args:
        body: any JSON value.
        status: HTTP status.
        headers: more headers, with underscores for dashes in their names.
    """
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(pieces=(json.dumps(body).encode(),), status=status, headers=named)


def event(data: object, name: str = "") -> bytes:
    """Return a server-sent event.

    Args:
        data: text, sent unchanged, or any other JSON value.
        name: name of the event; "" sends none.
    """
    text = data if isinstance(data, str) else json.dumps(data)
    return (f"event: {name}\n" if name else "").encode() + f"data: {text}\n\n".encode()


def chat(text: str, prompt_tokens: int = 10, completion_tokens: int = 5) -> Reply:
    """Return a reply with an OpenAI chat completion."""
    message = {"role": "assistant", "content": text}
    total = prompt_tokens + completion_tokens
    usage = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": total,
    }
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    kind = {"id": "c", "object": "chat.completion", "created": 0, "model": "scripted"}
    return json_reply({**kind, "choices": choices, "usage": usage})


def chat_stream(
    *words: str, prompt_tokens: int = 10, completion_tokens: int = 5, pause_s: float = 0.0
) -> Reply:
    """Return a reply that streams an OpenAI chat completion, one word per piece, and ends with the
    usage.
    """
    said: list[tuple[dict[str, str], str | None]] = [
        *(({"content": word}, None) for word in words),
        ({}, "stop"),
    ]
    deltas = [{"index": 0, "delta": delta, "finish_reason": reason} for delta, reason in said]
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
    events = [event({"choices": [delta], "usage": None}) for delta in deltas]
    pieces = (*events, event({"choices": [], "usage": usage}), event("[DONE]"))
    return Reply(pieces=pieces, stream=True, pause_s=pause_s)


def response(text: str, input_tokens: int = 10, output_tokens: int = 5) -> Reply:
    """Return a reply with an OpenAI response."""
    return json_reply(_response(text, input_tokens, output_tokens))


def response_stream(*words: str, input_tokens: int = 10, output_tokens: int = 5) -> Reply:
    """Return a reply that streams an OpenAI response, one word per delta."""
    whole = _response("".join(words), input_tokens, output_tokens)
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    said: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        *(
            {"type": "response.output_text.delta", **place, "delta": word, "logprobs": []}
            for word in words
        ),
        {"type": "response.output_text.done", **place, "text": "".join(words), "logprobs": []},
        {"type": "response.completed", "response": whole},
    ]
    pieces = tuple(
        event({**data, "sequence_number": n}, data["type"]) for n, data in enumerate(said)
    )
    return Reply(pieces=pieces, stream=True)


def _response(text: str, input_tokens: int, output_tokens: int) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    output = [
        {
            "type": "message",
            "id": "msg_1",
            "status": "completed",
            "role": "assistant",
            "content": content,
        }
    ]
    usage: dict[str, Any] = {"input_tokens": input_tokens, "output_tokens": output_tokens}
    usage["total_tokens"] = input_tokens + output_tokens
    usage |= {
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    named = {
        "id": "resp_1",
        "object": "response",
        "created_at": 0,
        "model": "scripted",
        "status": "completed",
    }
    unset: dict[str, Any] = {
        "error": None,
        "incomplete_details": None,
        "tools": [],
        "tool_choice": "auto",
    }
    unset["parallel_tool_calls"] = True
    return {**named, **unset, "output": output, "usage": usage}


def message(text: str, input_tokens: int = 10, output_tokens: int = 5) -> Reply:
    """Return a reply with an Anthropic message."""
    usage = {"input_tokens": input_tokens, "output_tokens": output_tokens}
    content = [{"type": "text", "text": text}]
    return json_reply({**_MESSAGE, "content": content, "stop_reason": "end_turn", "usage": usage})


def message_stream(*words: str, input_tokens: int = 10, output_tokens: int = 5) -> Reply:
    """Return a reply that streams an Anthropic message, one word per delta."""
    usage = {"input_tokens": input_tokens, "output_tokens": 1}
    start = {"type": "message_start", "message": {**_MESSAGE, "content": [], "usage": usage}}
    block = {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "text", "text": ""},
    }
    deltas = [
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": w}}
        for w in words
    ]
    stop = {"type": "content_block_stop", "index": 0}
    end = {
        "type": "message_delta",
        "delta": {"stop_reason": "end_turn"},
        "usage": {"output_tokens": output_tokens},
    }
    said: list[dict[str, Any]] = [start, block, *deltas, stop, end, {"type": "message_stop"}]
    return Reply(pieces=tuple(event(data, data["type"]) for data in said), stream=True)


class ScriptedUpstream:
    """The state of a running scripted server.

    Attributes:
        url: base URL, with ``/v1``.
        received: all requests, in order.
        gone: number of replies that the client did not wait for.
    """

    def __init__(self, script: Script) -> None:
        """Store the script; :func:`scripted_upstream` starts the server."""
        self._script = script
        self.url = ""
        self.received: list[Received] = []
        self.gone = 0

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Record the request and send the script's reply."""
        # request.read() would limit the size
        body = json.loads(await request.content.read() or b"{}")
        headers = {name.lower(): value for name, value in request.headers.items()}
        received = Received(path=request.path, headers=headers, body=body)
        self.received.append(received)
        reply = self._script(received)
        try:
            return await self._play(request, reply)
        except (asyncio.CancelledError, ConnectionError):
            self.gone += 1
            raise

    async def _play(self, request: web.BaseRequest, reply: Reply) -> web.StreamResponse:
        await asyncio.sleep(reply.wait_s)
        kind = "text/event-stream" if reply.stream else "application/json"
        response = web.StreamResponse(
            status=reply.status, headers={"Content-Type": kind, **reply.headers}
        )
        if not reply.stream:
            response.content_length = sum(map(len, reply.pieces)) + reply.cut
        await response.prepare(request)
        for piece in reply.pieces:
            await asyncio.sleep(reply.pause_s)
            await response.write(piece)
        if reply.cut and request.transport is not None:
            await asyncio.sleep(0.05)  # the sent pieces arrive before the cut
            request.transport.close()
            return response
        await response.write_eof()
        return response


@contextmanager
def scripted_upstream(script: Script) -> Iterator[ScriptedUpstream]:
    """Run a scripted server on the loopback interface, in its own thread."""
    upstream = ScriptedUpstream(script)
    loop = Bridge("scripted-upstream", lambda why: RuntimeError(f"the scripted server {why}"))
    try:
        runner = loop.run(_start(upstream), 10)
        yield upstream
        loop.run(runner.cleanup(), 10)
    finally:
        loop.close()


async def _start(upstream: ScriptedUpstream) -> web.ServerRunner:
    server = web.Server(upstream.answer, handler_cancellation=True)
    runner = web.ServerRunner(server, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    upstream.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    return runner
