"""Understand a client's request, or refuse it. Pure: bytes in, values out. Imports config only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

import attrs

from hyperruntime.gateway.config import Wire

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
_MAX_NESTS = 500_000  # an empty list is 2 bytes of JSON and 60 of memory


class RefusedError(Exception):
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


def error_body(wire: Wire, error: RefusedError) -> bytes:
    """Return an error as the clients of a wire format read it."""
    inner: dict[str, object] = {"type": error.kind, "message": error.message}
    if wire == "anthropic":
        return json.dumps({"type": "error", "error": inner}).encode()
    return json.dumps({"error": {**inner, "code": error.kind, "param": None}}).encode()


def error_event(wire: Wire, error: RefusedError) -> bytes:
    """Return an error as an event of a stream."""
    name = b"event: error\n" if wire == "anthropic" else b""
    return name + b"data: " + error_body(wire, error) + b"\n\n"


@attrs.frozen(kw_only=True)
class Call:
    """A request that is understood.

    Attributes:
        path: of the endpoint, one of ``PATHS``.
        wire: its format.
        model: as the client named it.
        body: the request as parsed; what is sent is made from it, so that nothing goes on unseen.
        stream: whether the answer is to stream.
        headers: the few of the client's headers that go on.
    """

    path: str
    wire: Wire
    model: str
    body: Mapping[str, Any]
    stream: bool
    headers: Mapping[str, str] = attrs.field(factory=dict)

    @property
    def adds_usage(self) -> bool:
        """Whether the stream must be asked for its usage, for the client did not."""
        options = self.body.get("stream_options")
        asked = isinstance(options, dict) and options.get("include_usage") is True
        return self.stream and self.path in _WITH_STREAM_OPTIONS and not asked

    def encode(self, send_as: str | None, extra: Mapping[str, Any] | None = None) -> bytes:
        """Return the body for the upstream: its name of the model, and a stream that tells its usage.

        Raises:
            RefusedError: it holds a number that JSON cannot say again.
        """
        body = {**self.body, **(extra or {}), "model": send_as or self.model}
        if self.adds_usage:
            options = self.body.get("stream_options")
            body["stream_options"] = {**(options if isinstance(options, dict) else {}), "include_usage": True}
        try:
            return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        except UnicodeEncodeError:  # half of a pair, which only JSON's own escape can say
            return json.dumps(body, separators=(",", ":")).encode()
        except ValueError:
            raise RefusedError(400, "invalid_json", "a number is too large to be sent on") from None


def parse_call(path: str, body: bytes, headers: Mapping[str, str]) -> Call:
    """Return what a request asks for.

    Raises:
        RefusedError: the body is no JSON object with a model, or has too many parts.
    """
    if body.count(b"[") + body.count(b"{") > _MAX_NESTS:
        raise RefusedError(413, "body_too_large", f"a body may have {_MAX_NESTS} lists and objects")
    try:
        parsed = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, "invalid_json", f"the body is not JSON: {str(error)[:200]}") from None
    if not isinstance(parsed, dict):
        raise RefusedError(400, "invalid_request_error", "the body must be a JSON object")
    model = parsed.get("model")
    if not isinstance(model, str) or not model or len(model) > _MAX_MODEL:
        raise RefusedError(400, "invalid_request_error", f"'model' must be a text of 1 to {_MAX_MODEL} characters")
    stream = parsed.get("stream", False)
    if not isinstance(stream, bool | None):
        raise RefusedError(400, "invalid_request_error", "'stream' must be true or false")
    return Call(path=path, wire=PATHS[path], model=model, body=parsed, stream=bool(stream), headers=headers)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def client_token(headers: Mapping[str, str]) -> str:
    """Return the token that a client shows, in the way of either format."""
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
