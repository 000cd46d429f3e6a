"""Threads for what blocks, shared by all pools of a process: few, made when needed, none of asyncio's own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

STARTS, RESETS = "start", "reset"
_THREADS = {STARTS: 16, RESETS: 32}

_executors: dict[tuple[int, str], ThreadPoolExecutor] = {}


async def blocking(kind: str, work: Callable[[], T]) -> T:
    """Do what blocks in a thread; whoever waits for another kind of work does not wait for this."""
    return await asyncio.get_running_loop().run_in_executor(_executor(kind), work)


def _executor(kind: str) -> ThreadPoolExecutor:
    key = (os.getpid(), kind)  # a forked child has none of its parent's threads
    known = _executors.get(key)
    if known is None:
        known = _executors.setdefault(
            key, ThreadPoolExecutor(_THREADS[kind], thread_name_prefix=f"hyperruntime-{kind}")
        )
    return known
