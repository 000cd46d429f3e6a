"""A model server for tests that answers OpenAI chat completions from a script. Standard library
only.

Usage::

    with scripted_model([calls(bash={"command": "ls"}), says("done")]) as model:
        ...  # with OPENAI_BASE_URL=model.url
        model.requests[-1]["messages"]
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import attrs


@attrs.frozen(kw_only=True)
class ModelReply:
    """The reply to one request: a message, or an HTTP error.

    Attributes:
        message: the assistant's message, in OpenAI's form.
        finish_reason: why the message ended.
        status: HTTP status.
        body: a body to send instead of a completion; None sends the completion.
    """

    message: Mapping[str, Any] = attrs.field(factory=dict)
    finish_reason: str = "stop"
    status: int = 200
    body: bytes | None = None


Request = Mapping[str, Any]
Script = Callable[[Request], ModelReply]


def says(text: str, finish_reason: str = "stop") -> ModelReply:
    """Return a text reply."""
    return ModelReply(message={"role": "assistant", "content": text}, finish_reason=finish_reason)


def calls(*pairs: tuple[str, object], text: str = "", **named: object) -> ModelReply:
    """Return a reply with tool calls.

    Args:
        pairs: ``(name, arguments)`` of each call; a ``str`` of arguments is sent unchanged, other
            values as JSON.
        text: the content of the message; "" sends null.
        named: more calls, as ``name=arguments``.
    """
    every = [*pairs, *named.items()]
    sent = [
        {
            "id": f"call_{number}",
            "type": "function",
            "function": {
                "name": name,
                "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
            },
        }
        for number, (name, arguments) in enumerate(every)
    ]
    return ModelReply(
        message={"role": "assistant", "content": text or None, "tool_calls": sent},
        finish_reason="tool_calls",
    )


def fails(status: int, message: str, code: str = "error") -> ModelReply:
    """Return an error reply in OpenAI's form.

    Args:
        status: HTTP status.
        message: the error's message.
        code: the error's type and code.
    """
    body = {"error": {"message": message, "type": code, "code": code, "param": None}}
    return ModelReply(status=status, body=json.dumps(body).encode())


class ScriptedModel:
    """The script of a server, and the requests that it received.

    Attributes:
        url: base URL of the server, with ``/v1``.
        requests: the bodies of all requests, in order.
    """

    def __init__(self, script: Script | Iterable[ModelReply]) -> None:
        """Store the script: a function, or a list of replies, after which every request gets an
        error.
        """
        self.requests: list[dict[str, Any]] = []
        self.url = ""
        self._lock = threading.Lock()
        self._script = script if callable(script) else _in_turn(script)

    def reply(self, request: dict[str, Any]) -> ModelReply:
        """Record a request and return the reply; requests are handled one at a time."""
        with self._lock:
            self.requests.append(request)
            return self._script(request)


@contextmanager
def scripted_model(
    script: Script | Iterable[ModelReply], *, tokens: bool = False
) -> Iterator[ScriptedModel]:
    """Run a scripted server on the loopback interface, in its own threads.

    Args:
        script: a function from a request to a reply, or a list of replies.
        tokens: whether to answer ``return_token_ids`` as vLLM does. A token is then a byte of a
            message's JSON, and the log probability of each emitted token is -1.
    """
    model = ScriptedModel(script)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length", "0"))
            request = json.loads(self.rfile.read(length))
            reply = model.reply(request)
            choice = {
                "index": 0,
                "message": dict(reply.message),
                "finish_reason": reply.finish_reason,
            }
            usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
            completion = {
                "id": "c",
                "object": "chat.completion",
                "choices": [choice],
                "usage": usage,
            }
            if tokens and request.get("return_token_ids"):
                completion = _with_tokens(completion, request, reply)
            body = json.dumps(completion).encode() if reply.body is None else reply.body
            self.send_response(reply.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        model.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        thread.start()
        try:
            yield model
        finally:
            server.shutdown()
            thread.join()


def _with_tokens(
    completion: Mapping[str, Any], request: Request, reply: ModelReply
) -> dict[str, Any]:
    """Return a completion with token ids and log probabilities in vLLM's form."""
    prompt_ids = _tokens(request["messages"])
    ids = _tokens([reply.message])
    logprobs = {"content": [{"token": chr(one), "logprob": -1.0} for one in ids]}
    choice = {**completion["choices"][0], "token_ids": ids, "logprobs": logprobs}
    usage = {
        "prompt_tokens": len(prompt_ids),
        "completion_tokens": len(ids),
        "total_tokens": len(prompt_ids + ids),
    }
    return {**completion, "choices": [choice], "usage": usage, "prompt_token_ids": prompt_ids}


def _tokens(messages: Iterable[Mapping[str, Any]]) -> list[int]:
    """Return the bytes of one line for each message, so that the tokens of a longer conversation
    begin with them.
    """
    lines = [
        json.dumps(
            [
                one["role"],
                one.get("content") or "",
                [call["function"] for call in one.get("tool_calls") or ()],
            ]
        )
        for one in messages
    ]
    return list("".join(f"{line}\n" for line in lines).encode())


def _in_turn(replies: Iterable[ModelReply]) -> Script:
    left = iter(list(replies))
    over = fails(400, "the script of this model has no more replies", "script_over")

    def script(_: Request) -> ModelReply:
        return next(left, over)

    return script
