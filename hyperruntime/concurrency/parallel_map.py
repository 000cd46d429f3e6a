"""A parallel map over threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, CancelledError, ThreadPoolExecutor, wait
from typing import TypeVar

Given = TypeVar("Given")
Made = TypeVar("Made")


def parallel_map(
    workers: int, function: Callable[[Given], Made], items: Sequence[Given]
) -> tuple[Made, ...]:
    """Return the result of a function for each item, in the order of the items.

    If a call raises, no further call starts, and its error is raised after the running calls have
    ended.

    Args:
        workers: maximum number of calls at once; with 1 all calls run in this thread.
        function: called from several threads.
        items: the arguments of the calls.
    """
    if workers == 1 or len(items) < 2:
        return tuple(map(function, items))
    failing = threading.Event()

    def call(item: Given) -> Made:
        if failing.is_set():
            raise CancelledError
        try:
            return function(item)
        except BaseException:
            failing.set()  # before this thread takes the next item
            raise

    with ThreadPoolExecutor(
        min(workers, len(items)), thread_name_prefix="hyperruntime-task"
    ) as pool:
        futures = [pool.submit(call, item) for item in items]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    errors = [
        error
        for future in futures
        if not future.cancelled() and (error := future.exception()) is not None
    ]
    if errors:
        # of a call that began
        raise min(errors, key=lambda error: isinstance(error, CancelledError))
    return tuple(future.result() for future in futures)
