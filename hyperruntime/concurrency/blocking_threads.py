"""Threads for blocking work, shared by all code of a process; separate from asyncio's default executor."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

EXECS, STARTS, RESETS = "exec", "start", "reset"
_THREADS = {EXECS: 1024, STARTS: 16, RESETS: 32}

_executors: dict[tuple[int, str], ThreadPoolExecutor] = {}


async def blocking(kind: str, work: Callable[[], T]) -> T:
    """Run blocking work in a thread; each kind of work has threads of its own, so that kinds do not delay each other.

    Args:
        kind: ``STARTS`` or ``RESETS``.
        work: called in the thread; its result is returned.
    """
    return await asyncio.get_running_loop().run_in_executor(threads(kind), work)


def threads(kind: str) -> ThreadPoolExecutor:
    """Return the threads of this process for a kind of work: ``EXECS``, ``STARTS`` or ``RESETS``."""
    key = (os.getpid(), kind)  # a forked child has none of its parent's threads
    known = _executors.get(key)
    if known is None:
        known = _executors.setdefault(
            key, ThreadPoolExecutor(_THREADS[kind], thread_name_prefix=f"hyperruntime-{kind}")
        )
    return known
