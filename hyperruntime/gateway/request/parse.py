"""Parse a client's request, or refuse it. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NoReturn

import attrs

from hyperruntime.gateway.formats import ENDPOINTS, FORMATS, format_of
from hyperruntime.gateway.formats.record import Endpoint
from hyperruntime.wire.tokens import bearer_token

MODELS_PATH = "/v1/models"
_MAX_MODEL = 200  # it is in the log and in errors
# members that the gateway sets to get usage and tokens
_CHANGED = ("stream_options", "logprobs", "return_token_ids")


class RequestRefusedError(Exception):
    """The gateway itself answers a request with an error.

    Attributes:
        status: the HTTP status.
        kind: a short fixed word for the log and the client.
        message: one sentence for the client.
    """

    def __init__(self, status: int, kind: str, message: str) -> None:
        """Create an error.

        Args:
            status: the HTTP status.
            kind: a short fixed word for the log and the client.
            message: one sentence for the client.
        """
        self.status = status
        self.kind = kind
        self.message = message
        super().__init__(message)

    def __reduce__(self) -> tuple[type[RequestRefusedError], tuple[int, str, str]]:
        """Return the arguments to unpickle with; parse workers send this error to the gateway."""
        return RequestRefusedError, (self.status, self.kind, self.message)


def error_body(path: str, error: RequestRefusedError) -> bytes:
    """Return an error as a JSON body in the format of an endpoint."""
    return json.dumps(format_of(path).error(error.kind, error.message)).encode()


def error_event(path: str, error: RequestRefusedError) -> bytes:
    """Return an error as an event of a stream of an endpoint."""
    endpoint = ENDPOINTS[path]
    body = format_of(path).error(error.kind, error.message)
    if endpoint.error_is_flat:  # OpenAI's package knows an error of responses by its own member
        flat = {"type": "error", "code": error.kind, "message": error.message, "param": None}
        body = {**flat, **body}
    name = b"event: error\n" if endpoint.error_is_named else b""
    return name + b"data: " + json.dumps(body).encode() + b"\n\n"


@attrs.frozen(kw_only=True)
class ModelRequest:
    """A parsed request; it is written again for the upstream, so that only checked data is sent.

    Attributes:
        path: path of the endpoint, one of ``ENDPOINTS``.
        model: model name that the client sent.
        stream: whether the client asks for a stream.
        asks_usage: whether the client itself asks for a stream's usage.
        members: JSON of the members that the gateway may change, by name, as the client set them.
        with_usage: JSON of the client's ``stream_options``, with a request for the usage.
        unset: names of the members that the gateway may change and that are missing, null, false or
            0.
        rest: JSON object of all other members, without the model.
        key: digest for recorded exchanges, see :func:`call_key`; "" if it was not requested.
        headers: the client's headers to forward.
    """

    path: str
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
    def endpoint(self) -> Endpoint:
        """What the gateway knows of the endpoint."""
        return ENDPOINTS[self.path]

    @property
    def adds_usage(self) -> bool:
        """Whether the gateway must ask for the stream's usage, because the client did not."""
        return self.stream and self.endpoint.asks_usage and not self.asks_usage

    def encode(self, send_as: str | None, extra: Mapping[str, Any] | None = None) -> bytes:
        """Return the body for the upstream; a stream is asked to report its usage.

        Args:
            send_as: model name for the upstream; None sends the client's name.
            extra: members to add or to replace.
        """
        members = {"model": _write(send_as or self.model), **self.members}
        members |= {name: _write(value) for name, value in (extra or {}).items()}
        if self.adds_usage:
            members["stream_options"] = self.with_usage
        return self._with(members)

    def as_asked(self) -> bytes:
        """Return the body with the client's own members and values."""
        return self._with({"model": _write(self.model), **self.members})

    def _with(self, members: Mapping[str, bytes]) -> bytes:
        said = b",".join(_write(name) + b":" + value for name, value in members.items())
        between = b"," if len(self.rest) > len(b"{}") else b""
        return b"".join((b"{", said, between, memoryview(self.rest)[1:]))  # copies it only once


def parse_call(
    path: str, body: bytes, headers: Mapping[str, str], *, keyed: bool = False
) -> ModelRequest:
    """Return a parsed request.

    Args:
        path: path of the endpoint, one of ``ENDPOINTS``.
        body: the bytes that the client sent.
        headers: the client's headers to forward.
        keyed: whether to compute the key for recorded exchanges.

    Raises:
        RequestRefusedError: the body is not a JSON object with a valid ``model`` and ``stream``.
    """
    # Of two members with one name the last counts; the body is written again, so that no server
    # can read the first.
    try:
        parsed = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RequestRefusedError(
            400, "invalid_json", f"the body is not JSON: {str(error)[:200]}"
        ) from None
    if not isinstance(parsed, dict):
        raise RequestRefusedError(400, "invalid_request_error", "the body must be a JSON object")
    model = parsed.get("model")
    if not isinstance(model, str) or not model or len(model) > _MAX_MODEL:
        raise RequestRefusedError(
            400,
            "invalid_request_error",
            f"'model' must be a string of 1 to {_MAX_MODEL} characters",
        )
    stream = parsed.get("stream", False)
    if not isinstance(stream, bool | None):
        raise RequestRefusedError(400, "invalid_request_error", "'stream' must be true or false")
    for name, why in ENDPOINTS[path].refused.items():
        if parsed.get(name):
            said = f"{name!r} is not supported: {why}; leave it out"
            raise RequestRefusedError(400, "invalid_request_error", said)
    options = parsed.get("stream_options")
    options = options if isinstance(options, dict) else {}
    return ModelRequest(
        path=path,
        model=model,
        stream=bool(stream),
        asks_usage=options.get("include_usage") is True,
        members={name: _write(parsed[name]) for name in _CHANGED if name in parsed},
        with_usage=_write({**options, "include_usage": True}),
        unset=frozenset(name for name in _CHANGED if parsed.get(name) in (None, False)),
        rest=_write(
            {name: value for name, value in parsed.items() if name not in ("model", *_CHANGED)}
        ),
        key=call_key(path, parsed) if keyed else "",
        headers=headers,
    )


def call_key(path: str, body: Mapping[str, Any]) -> str:
    """Return a digest of a request; the order of its members does not matter.

    Args:
        path: path of the endpoint.
        body: the parsed body.
    """
    text = json.dumps([path, body], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _write(value: object) -> bytes:
    try:
        return json.dumps(
            value, ensure_ascii=False, allow_nan=False, separators=(",", ":")
        ).encode()
    except UnicodeEncodeError:  # a lone surrogate, which needs JSON's escape
        return json.dumps(value, separators=(",", ":")).encode()
    except ValueError:
        raise RequestRefusedError(400, "invalid_json", "a number is too large to forward") from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def client_token(headers: Mapping[str, str]) -> str:
    """Return the client's token, which is where a key of one of the formats would be; "" if there
    is none.
    """
    if token := bearer_token(headers.get("Authorization", "")):
        return token
    names = (one.key_header for one in FORMATS.values() if one.key_header != "Authorization")
    return next((headers[name] for name in names if name in headers), "")
