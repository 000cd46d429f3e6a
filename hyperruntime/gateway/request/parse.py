"""Understand a client's request, or refuse it. Pure: bytes in, values out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NoReturn

import attrs

from hyperruntime.gateway.config.values import Wire

MODELS_PATH = "/v1/models"
COUNT_PATH = "/v1/messages/count_tokens"  # costs nothing
PATHS: Mapping[str, Wire] = {
    "/v1/chat/completions": "openai",
    "/v1/completions": "openai",
    "/v1/embeddings": "openai",
    "/v1/messages": "anthropic",
    COUNT_PATH: "anthropic",
}
_WITH_STREAM_OPTIONS = ("/v1/chat/completions", "/v1/completions")
_MAX_MODEL = 200
_CHANGED = ("stream_options", "logprobs", "return_token_ids")  # by a gateway that counts, or logs tokens


class RequestRefusedError(Exception):
    """A request that is answered by the gateway itself, with an error.

    Attributes:
        status: of HTTP.
        kind: a short fixed word for the log and the client.
        message: one sentence for the client.
    """

    def __init__(self, status: int, kind: str, message: str) -> None:
        """Keep all three."""
        self.status, self.kind, self.message = status, kind, message
        super().__init__(message)

    def __reduce__(self) -> tuple[type[RequestRefusedError], tuple[int, str, str]]:
        """Be pickled: the parse workers raise it too."""
        return RequestRefusedError, (self.status, self.kind, self.message)


def error_body(wire: Wire, error: RequestRefusedError) -> bytes:
    """Return an error as the clients of a wire format read it."""
    inner: dict[str, object] = {"type": error.kind, "message": error.message}
    if wire == "anthropic":
        return json.dumps({"type": "error", "error": inner}).encode()
    return json.dumps({"error": {**inner, "code": error.kind, "param": None}}).encode()


def error_event(wire: Wire, error: RequestRefusedError) -> bytes:
    """Return an error as an event of a stream."""
    name = b"event: error\n" if wire == "anthropic" else b""
    return name + b"data: " + error_body(wire, error) + b"\n\n"


@attrs.frozen(kw_only=True)
class ModelRequest:
    """A request that is understood, and written again, so that nothing goes on unseen.

    Attributes:
        path: of the endpoint, one of ``PATHS``.
        wire: its format.
        model: as the client named it.
        stream: whether the answer is to stream.
        asks_usage: whether the client asks for a stream's usage itself.
        members: JSON of those members that may have to be changed on the way, by name, as the client set them.
        with_usage: JSON of ``stream_options`` that ask for the usage too.
        unset: names among ``members`` that are missing, null or false.
        rest: JSON of all other members, but the model.
        key: what is equal for equal requests, whatever the order of their members; "" where nobody asked for it.
        headers: the few of the client's headers that go on.
    """

    path: str
    wire: Wire
    model: str
    stream: bool
    asks_usage: bool
    members: Mapping[str, bytes]
    with_usage: bytes
    unset: frozenset[str]
    rest: bytes
    key: str = ""
    headers: Mapping[str, str] = attrs.field(factory=dict)

    @property
    def adds_usage(self) -> bool:
        """Whether the stream must be asked for its usage, for the client did not."""
        return self.stream and self.path in _WITH_STREAM_OPTIONS and not self.asks_usage

    def encode(self, send_as: str | None, extra: Mapping[str, Any] | None = None) -> bytes:
        """Return the body for the upstream: its name of the model, and a stream that reports its usage."""
        members = {"model": _write(send_as or self.model), **self.members}
        members |= {name: _write(value) for name, value in (extra or {}).items()}
        if self.adds_usage:
            members["stream_options"] = self.with_usage
        return self._with(members)

    def as_asked(self) -> bytes:
        """Return the body as the client meant it."""
        return self._with({"model": _write(self.model), **self.members})

    def _with(self, members: Mapping[str, bytes]) -> bytes:
        said = b",".join(_write(name) + b":" + value for name, value in members.items())
        between = b"," if len(self.rest) > len(b"{}") else b""
        return b"".join((b"{", said, between, memoryview(self.rest)[1:]))  # which copies it once


def parse_call(path: str, body: bytes, headers: Mapping[str, str], *, keyed: bool = False) -> ModelRequest:
    """Return what a request asks for.

    Args:
        path: of the endpoint.
        body: as it came.
        headers: that go on.
        keyed: whether its key for recorded exchanges is needed.

    Raises:
        RequestRefusedError: the body is no JSON object with a model.
    """
    try:
        parsed = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RequestRefusedError(400, "invalid_json", f"the body is not JSON: {str(error)[:200]}") from None
    if not isinstance(parsed, dict):
        raise RequestRefusedError(400, "invalid_request_error", "the body must be a JSON object")
    model = parsed.get("model")
    if not isinstance(model, str) or not model or len(model) > _MAX_MODEL:
        raise RequestRefusedError(
            400, "invalid_request_error", f"'model' must be a text of 1 to {_MAX_MODEL} characters"
        )
    stream = parsed.get("stream", False)
    if not isinstance(stream, bool | None):
        raise RequestRefusedError(400, "invalid_request_error", "'stream' must be true or false")
    options = parsed.get("stream_options")
    options = options if isinstance(options, dict) else {}
    return ModelRequest(
        path=path,
        wire=PATHS[path],
        model=model,
        stream=bool(stream),
        asks_usage=options.get("include_usage") is True,
        members={name: _write(parsed[name]) for name in _CHANGED if name in parsed},
        with_usage=_write({**options, "include_usage": True}),
        unset=frozenset(name for name in _CHANGED if parsed.get(name) in (None, False)),
        rest=_write({name: value for name, value in parsed.items() if name not in ("model", *_CHANGED)}),
        key=call_key(path, parsed) if keyed else "",
        headers=headers,
    )


def call_key(path: str, body: Mapping[str, Any]) -> str:
    """Return what is equal for equal requests, whatever the order of their members."""
    text = json.dumps([path, body], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _write(value: object) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # half of a pair, which only JSON's own escape can say
        return json.dumps(value, separators=(",", ":")).encode()
    except ValueError:
        raise RequestRefusedError(400, "invalid_json", "a number is too large to be sent on") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def client_token(headers: Mapping[str, str]) -> str:
    """Return the token that a client shows, in the way of either format."""
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
