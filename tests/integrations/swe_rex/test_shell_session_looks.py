"""A session that waits for a pattern leaves the event loop to others, however often a command
writes.
"""

from __future__ import annotations

import asyncio
import time

from hyperruntime_swe_rex.shell_session import _OTHERS, _Running

LOOK_S, OUTPUTS = 0.01, 60


async def test_long_looks_leave_most_of_the_time_to_others() -> None:
    running, looks, is_over = _Running(), 0, False

    def look() -> bool | None:
        nonlocal looks
        looks += 1
        time.sleep(LOOK_S)
        return True if is_over else None

    waiting, began = asyncio.ensure_future(running._until(look)), time.monotonic()
    for _ in range(OUTPUTS):
        running._add("stdout", b"x")
        await asyncio.sleep(LOOK_S)
    is_over = True
    running._add("stdout", b"x")
    assert await waiting
    assert looks <= (time.monotonic() - began) / (LOOK_S * (1 + _OTHERS)) + 2


async def test_a_session_looks_again_after_each_output() -> None:
    running = _Running()
    waiting = asyncio.ensure_future(running._until(lambda: len(running._data) > OUTPUTS or None))
    while not waiting.done():
        running._add("stdout", b"x")
        await asyncio.sleep(0)
    assert len(running._data) > OUTPUTS
