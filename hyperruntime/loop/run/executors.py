"""The executor that runs generations in threads of this process."""

from __future__ import annotations

from concurrent.futures import Executor, ThreadPoolExecutor


def local_executor(workers: int) -> Executor:
    """Return an executor that runs at most ``workers`` generations at once, in threads of this
    process.

    A generation's work is done by its containers; the thread waits for them.
    """
    return ThreadPoolExecutor(max_workers=workers, thread_name_prefix="hyperruntime-generation")
