"""One message between the head and a node: a JSON object and bytes; and errors as JSON.

Nothing here is pickled: a node runs untrusted commands, and must not be able to run code on the
head by a message. A header that takes long to parse would stop the event loop of the head, so its
size and its values are limited.
"""

from __future__ import annotations

import json
import struct
from typing import Any

from hyperruntime import errors
from hyperruntime.errors import ClusterError, HyperRuntimeError
from hyperruntime.json_values import ValueCounter, parse_json

MOST_HEADER_BYTES = 32 << 20
MOST_VALUES = 1 << 18  # of a header; about 0.1 s to parse
MOST_OUTSIDE_BYTES = 4 << 20  # of a header, that are in no string; about 0.1 s to parse
_MOST_TEXT = 1 << 16  # characters of an error's text and of each of its fields
_MOST_FIELDS = 32
_LENGTH = struct.Struct(">I")
_PLAIN = (str, int, float, bool, type(None))


class PeerFaultError(ClusterError, ValueError):
    """The other side of a connection sent an invalid message, so the connection ends for good."""


def pack(header: dict[str, Any], body: bytes = b"") -> bytes:
    """Return the frame of a message.

    Raises:
        ClusterError: the header is larger than the other side takes.
    """
    text = json.dumps(header, separators=(",", ":")).encode()
    if why := _too_large(text):
        raise ClusterError(f"a message between head and node has {why}; send less at once")
    return _LENGTH.pack(len(text)) + text + body


def unpack(frame: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the header and the body of a frame.

    Raises:
        PeerFaultError: it is not a frame of :func:`pack`.
    """
    if len(frame) < _LENGTH.size:
        raise PeerFaultError("a message is too short")
    end = _LENGTH.size + _LENGTH.unpack_from(frame)[0]
    if end > len(frame):
        raise PeerFaultError("the header of a message is longer than the message")
    text = frame[_LENGTH.size : end]
    if why := _too_large(text):
        raise PeerFaultError(f"a message has {why}")
    try:
        header = parse_json(text)
    except ValueError:
        header = None
    if not isinstance(header, dict):
        raise PeerFaultError("the header of a message is not a JSON object")
    return header, frame[end:]


def _too_large(text: bytes) -> str:
    """Return what a header has too much of, or ""."""
    if len(text) > MOST_HEADER_BYTES:
        return f"a header of {len(text)} bytes, more than {MOST_HEADER_BYTES}"
    if len(text) > MOST_VALUES:  # a value has one byte or more
        counter = ValueCounter()
        counter.feed(text)
        if counter.values > MOST_VALUES:
            return f"a header of {counter.values} JSON values, more than {MOST_VALUES}"
        if counter.outside > MOST_OUTSIDE_BYTES:
            return (
                f"a header with {counter.outside} bytes of numbers, more than {MOST_OUTSIDE_BYTES}"
            )
    return ""


def error_to_json(error: BaseException) -> dict[str, Any]:
    """Return an error as JSON: its class, its message and its plain fields, each cut to a size that
    is taken.
    """
    if not isinstance(error, HyperRuntimeError) or _class_named(type(error).__name__) is not type(
        error
    ):
        text = _cut(f"{type(error).__name__}: {error}")
        return {"class": HyperRuntimeError.__name__, "text": text, "fields": {}}
    plain = {
        name: value if isinstance(value, _PLAIN) else repr(value)
        for name, value in vars(error).items()
    }
    return {"class": type(error).__name__, "text": _cut(str(error)), "fields": _cut_fields(plain)}


def error_of_json(value: Any) -> HyperRuntimeError:  # noqa: ANN401 - JSON, not trusted
    """Return the error of :func:`error_to_json`; anything else becomes an error that says so."""
    name, text, fields = (
        (value.get(key) for key in ("class", "text", "fields"))
        if isinstance(value, dict)
        else (0, 0, 0)
    )
    if not (isinstance(name, str) and isinstance(text, str) and isinstance(fields, dict)):
        # it may be large, or nest deeply
        shown = value[:200] if isinstance(value, str) else type(value).__name__
        return HyperRuntimeError(f"the other side sent an error that cannot be read: {shown}")
    kind = _class_named(name) or HyperRuntimeError
    error = kind.__new__(kind, _cut(text))
    error.args = (_cut(text),)
    vars(error).update(_cut_fields(fields))
    return error


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]} ..."


def _cut_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Return at most ``_MOST_FIELDS`` plain fields; texts are cut."""
    known = (
        (key, field)
        for key, field in fields.items()
        if key.isidentifier() and not key.startswith("__")
    )
    plain = [(key, field) for key, field in known if isinstance(field, _PLAIN)]
    return {
        key: _cut(field) if isinstance(field, str) else field for key, field in plain[:_MOST_FIELDS]
    }


def _class_named(name: str) -> type[HyperRuntimeError] | None:
    """Return the error class of a name: from ``hyperruntime.errors``, else the only loaded one,
    else None.
    """
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, HyperRuntimeError):
        return kind
    found = [
        one
        for one in _below(HyperRuntimeError)
        if one.__name__ == name and one is not PeerFaultError
    ]
    return found[0] if len(found) == 1 else None


def _below(kind: type[HyperRuntimeError]) -> set[type[HyperRuntimeError]]:
    """Return the subclasses of this library."""
    ours = {one for one in kind.__subclasses__() if one.__module__.startswith("hyperruntime.")}
    return ours.union(*map(_below, ours))
