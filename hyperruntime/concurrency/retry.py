"""Retries of requests to model servers: one rule for what is retried, how long to wait, and when to
give up.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, TypeVar, cast

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, retry_if_result
from tenacity.wait import wait_exponential

RETRIED_STATUSES = frozenset({408, 409, 425, 429}) | frozenset(range(500, 600))
SHOULD_RETRY = "x-should-retry"
"""Header by which a server that has retried already asks its client not to; OpenAI's clients obey
it.

Source: openai-python, ``_base_client.py``, ``_should_retry``.
"""

T = TypeVar("T")


async def with_retries(
    attempt: Callable[[], Awaitable[T]],
    *,
    first_s: float,
    longest_s: float,
    errors: tuple[type[Exception], ...],
    asked_s: Callable[[T], float | None],
    gives_up: Callable[[int, float], bool],
    before_wait: Callable[[T | Exception, int, float], None],
) -> T:
    """Return the first final result of an attempt, or the last result when no retry is left.

    The wait doubles with each attempt, times a random factor from 0.5 to 1.

    Args:
        attempt: makes one request.
        first_s: longest wait after the first attempt, in seconds.
        longest_s: longest wait after any attempt, in seconds.
        errors: exceptions after which a request is retried.
        asked_s: returns the seconds that the server asks to wait, 0 if it asks nothing; None if the
            result is final.
        gives_up: called with the number of attempts made and the time of the next one, on the
            monotonic clock.
        before_wait: called before each wait with the result or exception, the attempts made, and
            the wait in seconds.

    Raises:
        Exception: of ``errors``, if the last attempt raised it.
    """
    first = await _outcome_of(attempt, errors)
    if first.exception() is None and asked_s(first.result()) is None:
        return first.result()  # without tenacity, whose own work would slow down short requests
    made = [first]

    async def next_attempt() -> T:
        return made.pop().result() if made else await attempt()

    exponential = wait_exponential(multiplier=first_s, max=longest_s)

    def wait(state: RetryCallState) -> float:
        outcome = _outcome(state)
        asked = 0.0 if isinstance(outcome, errors) else asked_s(outcome) or 0.0
        return max(asked, exponential(state) * random.uniform(0.5, 1.0))  # noqa: S311 - jitter

    retrying = AsyncRetrying(
        retry=retry_if_exception_type(errors)
        | retry_if_result(lambda result: asked_s(result) is not None),
        wait=wait,
        stop=lambda state: gives_up(state.attempt_number, time.monotonic() + state.upcoming_sleep),
        before_sleep=lambda state: before_wait(
            _outcome(state), state.attempt_number, state.upcoming_sleep
        ),
        retry_error_callback=_result,
    )
    return cast(T, await retrying(next_attempt))


async def _outcome_of(
    attempt: Callable[[], Awaitable[T]], errors: tuple[type[Exception], ...]
) -> Future[T]:
    """Make an attempt; return its result, or its exception if that is one of ``errors``."""
    outcome: Future[T] = Future()
    try:
        outcome.set_result(await attempt())
    except errors as error:
        outcome.set_exception(error)
    return outcome


def _outcome(state: RetryCallState) -> Any:  # noqa: ANN401 - a result of any type, or an exception
    assert state.outcome is not None
    return state.outcome.exception() if state.outcome.failed else state.outcome.result()


def _result(state: RetryCallState) -> Any:  # noqa: ANN401 - a result of any type
    assert state.outcome is not None
    return state.outcome.result()
