"""Judge the answers of model servers: usable, or whose fault. One table for the gateway and for
rollouts. Pure.

A broken server or account is at fault for the statuses in ``BROKEN_STATUSES``; for an error inside
an answer of status 200, unless its code says otherwise; and for an answer of status 200 that is not
what the endpoint promises.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

import attrs

from hyperruntime.concurrency.retry import RETRIED_STATUSES
from hyperruntime.gateway.answer.context_limit import is_too_long, messages_of
from hyperruntime.gateway.formats import ENDPOINTS
from hyperruntime.gateway.formats.record import Endpoint, ErrorInside, Fault
from hyperruntime.gateway.formats.turn_end import TurnEnd, broke_off, turn_end
from hyperruntime.json_values import is_integer

GENERATE_PATH = "/generate"  # of SGLang and vLLM; only rollouts use it
BROKEN_STATUSES = RETRIED_STATUSES | {401, 402}
_OK = 200
_SERVER_ERROR = 500
_SHOWN = 300
# Statuses that words mean in an error without a number. Source: the error tables of Anthropic,
# OpenAI and Google.
_WORD_STATUSES: Mapping[str, int] = {
    **dict.fromkeys(
        ("invalid_request_error", "invalid_prompt", "badrequesterror", "invalid_argument"), 400
    ),
    **dict.fromkeys(("authentication_error", "invalid_api_key", "unauthenticated"), 401),
    **dict.fromkeys(("billing_error",), 402),
    **dict.fromkeys(("permission_error", "permission_denied"), 403),
    **dict.fromkeys(("not_found_error", "model_not_found", "not_found"), 404),
    **dict.fromkeys(
        ("rate_limit_error", "rate_limit_exceeded", "insufficient_quota", "resource_exhausted"), 429
    ),
    **dict.fromkeys(("overloaded_error", "unavailable"), 529),
}


class Kind(Enum):
    """A kind of answer.

    Attributes:
        USABLE: it holds what the endpoint promises.
        TOO_LONG: the conversation is too long for the model.
        REFUSED: the server refuses the request; the client is at fault.
        BROKEN: the server or the account is at fault.
    """

    USABLE = "usable"
    TOO_LONG = "too_long"
    REFUSED = "refused"
    BROKEN = "broken"


@attrs.frozen(kw_only=True)
class Judgement:
    """The judgement of an answer.

    Attributes:
        kind: the kind of answer.
        why: the reason as a clause, which may quote the server; "" for a usable answer.
        status: the status that the answer means; 500 for an answer of status 200 that is broken.
        retry: whether the same request may succeed later.
    """

    kind: Kind = Kind.USABLE
    why: str = ""
    status: int = _OK
    retry: bool = False


USABLE = Judgement()


@attrs.frozen(kw_only=True)
class EventSign:
    """The judgement of one event of a stream.

    Attributes:
        ended: whether the event ends the model's turn.
        fault: the judgement of the error in the event, or None.
    """

    ended: bool = False
    fault: Judgement | None = None


NO_SIGN = EventSign()


def read_body(data: bytes) -> Any | None:  # noqa: ANN401 - JSON from a server
    """Return the JSON value of a body, or None if it is not JSON.

    A byte order mark is skipped. A text that holds JSON itself is parsed again, because some hosts
    encode a body twice.
    """
    try:
        value = json.loads(data)
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return None


def judge(path: str, status: int, body: object, text: str = "") -> Judgement:
    """Return the judgement of a whole answer.

    Args:
        path: path of the endpoint: one of the gateway's, or ``GENERATE_PATH``.
        status: the HTTP status.
        body: the parsed body; None if it is not JSON.
        text: the beginning of the body, for a body that is not JSON.
    """
    if status != _OK:
        return _judge_error(status, text if body is None else body)
    if not isinstance(body, dict):
        return broken(f"the answer is not a JSON object: {text[:_SHOWN]!r}")
    if (error := _error_in(body)) is not None:
        return _judge_error(_meant(error), error)
    endpoint = _ENDPOINTS.get(path)
    fault = None if endpoint is None else next(endpoint.faults(body), None)
    if isinstance(fault, ErrorInside):
        return _judge_error(_meant(fault.error), fault.error)
    return USABLE if fault is None else broken(fault)


def judge_event(path: str, event: object) -> EventSign:
    """Return the judgement of the data of an event.

    Args:
        path: path of the endpoint.
        event: the parsed data.
    """
    if not isinstance(event, dict):
        return NO_SIGN
    endpoint = _ENDPOINTS.get(path)
    inner = event.get(endpoint.events_hold) if endpoint is not None else None
    for holder in (event, inner):
        if isinstance(holder, dict) and (error := _error_in(holder)) is not None:
            return EventSign(fault=_judge_error(_meant(error), error))
    if endpoint is None or endpoint.reasons is None:
        return NO_SIGN
    reasons = [one for one in endpoint.reasons(event) if turn_end(one) is not TurnEnd.UNSAID]
    why = next((why for reason in reasons for why in broke_off(reason)), None)
    return EventSign(ended=bool(reasons), fault=None if why is None else broken(why))


def judge_end(path: str, *, ended: bool) -> Judgement:
    """Return the judgement of a stream that was read to its end.

    Args:
        path: path of the endpoint.
        ended: whether an event ended the model's turn.
    """
    endpoint = _ENDPOINTS.get(path)
    if ended or endpoint is None or endpoint.reasons is None:
        return USABLE
    return broken("the stream ended before the model's turn did: no event has a reason for its end")


def broken(why: str) -> Judgement:
    """Return the judgement of an answer of status 200 that is not what the endpoint promises."""
    return Judgement(kind=Kind.BROKEN, why=why, status=_SERVER_ERROR, retry=True)


def _judge_error(status: int, error: object) -> Judgement:
    why = next(iter(messages_of(error)), "") or str(error)
    made = Judgement(kind=Kind.REFUSED, why=f"status {status}: {why[:_SHOWN]}", status=status)
    if is_too_long(status, error):
        return attrs.evolve(made, kind=Kind.TOO_LONG)
    if status in BROKEN_STATUSES:
        return attrs.evolve(made, kind=Kind.BROKEN, retry=status in RETRIED_STATUSES)
    return made


def _error_in(body: Mapping[str, Any]) -> object | None:
    """Return the error that a body or an event of status 200 holds, or None."""
    error: object = body.get("error")
    if error:
        return error
    return body if "error" in (body.get("object"), body.get("type")) else None


def _meant(error: object) -> int:
    """Return the status that an error inside an answer of status 200 means."""
    codes = (
        [error.get(name) for name in ("code", "status", "type")]
        if isinstance(error, Mapping)
        else []
    )
    for code in codes:
        number = (
            int(code) if isinstance(code, str) and code.isdecimal() and len(code) == 3 else code
        )
        if is_integer(number) and 400 <= number < 600:
            return number
    words = [code.lower() for code in codes if isinstance(code, str)]
    known = next((_WORD_STATUSES[word] for word in words if word in _WORD_STATUSES), _SERVER_ERROR)
    return 400 if known == _SERVER_ERROR and is_too_long(400, error) else known


def _generated(body: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield the faults of an answer of SGLang or vLLM; SGLang reports a full context as a turn that
    broke off.
    """
    meta = body.get("meta_info")
    reasons = body.get("finish_reasons")
    reason = meta.get("finish_reason") if isinstance(meta, dict) else None
    for each in [reason, *(reasons if isinstance(reasons, list) else ())]:
        if turn_end(each) is TurnEnd.BROKEN and is_too_long(400, each):
            yield ErrorInside(each)
        yield from broke_off(each)


_ENDPOINTS = {**ENDPOINTS, GENERATE_PATH: Endpoint(path=GENERATE_PATH, faults=_generated)}
