"""Select and rewrite the headers of an upstream's answer for the client."""

from __future__ import annotations

import math
import re
import secrets
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

from hyperruntime.secrets.redact import Redactor

JSON_TYPE = "application/json"
STREAM_TYPE = "text/event-stream"
_OTHER_TYPE = "text/plain"
_LONGEST_WAIT_S = 86_400
_REQUEST_ID = re.compile(r"req_[A-Za-z0-9]{8,40}|(chatcmpl-|cmpl-)?[0-9a-f-]{8,36}")
_MILLISECONDS = re.compile(r"[0-9]{1,8}")
_ID_NAMES = ("x-request-id", "request-id")
_TIME_NAME = "openai-processing-ms"


def answer_headers(raw: Mapping[str, str], redactor: Redactor) -> dict[str, str]:
    """Return the headers for the client: an allow-list, each value in a strict form and without
    keys.

    ``Content-Type`` is one of three types without parameters. ``Retry-After`` is a number of
    seconds. ``openai-processing-ms`` is kept if it is a number. Both request ids are replaced by
    one random id, because the two together could hold a key.

    Args:
        raw: the upstream's headers.
        redactor: detects keys in a value.
    """
    kept = {"Content-Type": _content_type(raw.get("Content-Type", ""))}
    if wait_s := retry_after(raw.get("Retry-After", "")):
        kept["Retry-After"] = str(math.ceil(min(wait_s, _LONGEST_WAIT_S)))
    own = f"req_{secrets.token_hex(12)}"
    kept |= {name: own for name in _ID_NAMES if name in raw}
    value = raw.get(_TIME_NAME, "").strip()
    if _MILLISECONDS.fullmatch(value) and redactor.clean_text(value) == value:
        kept[_TIME_NAME] = value
    return kept


def request_id(headers: Mapping[str, str]) -> str:
    """Return the request id of an answer; "" if no header holds a well-formed one."""
    values = (headers.get(name, "").strip() for name in _ID_NAMES)
    return next(filter(_REQUEST_ID.fullmatch, values), "")


def retry_after(text: str) -> float:
    """Return the seconds that a ``Retry-After`` header asks for; 0 if it is invalid.

    Source: RFC 9110, section 10.2.3.
    """
    text = text.strip()
    try:
        if text.replace(".", "", 1).isdecimal():
            return float(text)
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return 0.0


def _content_type(value: str) -> str:
    kind = value.partition(";")[0].strip().lower()
    if kind.endswith("+json") or not kind:
        return JSON_TYPE
    return kind if kind in (JSON_TYPE, STREAM_TYPE) else _OTHER_TYPE
