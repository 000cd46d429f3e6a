"""Retries of requests to model servers: one rule for what is retried, how long to wait, and when to
give up.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

RETRIED_STATUSES = frozenset({408, 409, 425, 429}) | frozenset(range(500, 600))
SHOULD_RETRY = "x-should-retry"
"""Header by which a server that has retried already asks its client not to; OpenAI's clients obey
it.

Source: openai-python, ``_base_client.py``, ``_should_retry``.
"""
_MOST_DOUBLINGS = 60

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
    made = 0
    while True:
        made += 1
        longest = min(longest_s, first_s * 2.0 ** min(made - 1, _MOST_DOUBLINGS))
        wait_s = longest * random.uniform(0.5, 1.0)  # noqa: S311 - jitter
        outcome: T | Exception
        try:
            result = outcome = await attempt()
        except errors as error:
            if gives_up(made, time.monotonic() + wait_s):
                raise
            outcome = error
        else:
            asked = asked_s(result)
            if asked is None:
                return result
            wait_s = max(asked, wait_s)
            if gives_up(made, time.monotonic() + wait_s):
                return result
        before_wait(outcome, made, wait_s)
        await asyncio.sleep(wait_s)
