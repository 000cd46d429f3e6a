"""One message between the head and a node: a JSON object and bytes; and errors as JSON.

Nothing here is pickled: a node runs untrusted commands, and must not be able to run code on the head by a message.
"""

from __future__ import annotations

import json
import struct
from typing import Any

from hyperruntime import errors
from hyperruntime.errors import HyperRuntimeError
from hyperruntime.json_values import json_object

_LENGTH = struct.Struct(">I")
_PLAIN = (str, int, float, bool, type(None))


def pack(header: dict[str, Any], body: bytes = b"") -> bytes:
    """Return the frame of a message."""
    text = json.dumps(header, separators=(",", ":")).encode()
    return _LENGTH.pack(len(text)) + text + body


def unpack(frame: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the header and the body of a frame.

    Raises:
        ValueError: it is not a frame of :func:`pack`.
    """
    if len(frame) < _LENGTH.size:
        raise ValueError("a frame is too short")
    end = _LENGTH.size + _LENGTH.unpack_from(frame)[0]
    header = json_object(frame[_LENGTH.size : end]) if end <= len(frame) else None
    if header is None:
        raise ValueError("a frame has no header")
    return header, frame[end:]


def error_to_json(error: BaseException) -> dict[str, Any]:
    """Return an error as JSON: its class, its message and its plain fields."""
    if not isinstance(error, HyperRuntimeError) or _class_named(type(error).__name__) is not type(error):
        return {"class": HyperRuntimeError.__name__, "text": f"{type(error).__name__}: {error}", "fields": {}}
    fields = {name: value if isinstance(value, _PLAIN) else repr(value) for name, value in vars(error).items()}
    return {"class": type(error).__name__, "text": str(error), "fields": fields}


def error_of_json(value: Any) -> HyperRuntimeError:  # noqa: ANN401 - JSON, not trusted
    """Return the error of :func:`error_to_json`; anything else becomes an error that says so."""
    name, text, fields = (
        (value.get(key) for key in ("class", "text", "fields")) if isinstance(value, dict) else (0, 0, 0)
    )
    if not (isinstance(name, str) and isinstance(text, str) and isinstance(fields, dict)):
        return HyperRuntimeError(f"the other side sent an error that cannot be read: {str(value)[:200]}")
    kind = _class_named(name) or HyperRuntimeError
    error = kind.__new__(kind, text)
    error.args = (text,)
    vars(error).update({key: field for key, field in fields.items() if isinstance(field, _PLAIN)})
    return error


def _class_named(name: str) -> type[HyperRuntimeError] | None:
    """Return the error class of a name: from ``hyperruntime.errors``, else the only loaded one, else None."""
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, HyperRuntimeError):
        return kind
    found = [one for one in _below(HyperRuntimeError) if one.__name__ == name]
    return found[0] if len(found) == 1 else None


def _below(kind: type[HyperRuntimeError]) -> set[type[HyperRuntimeError]]:
    """Return the subclasses of this library."""
    ours = {one for one in kind.__subclasses__() if one.__module__.startswith("hyperruntime.")}
    return ours.union(*map(_below, ours))
