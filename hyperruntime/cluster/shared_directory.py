"""Measure a shared file system: how late other machines see a change, and whether they see
locks.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_POLL_S = 0.01


def write_whole(path: str, content: bytes) -> None:
    """Write a file so that others see all of it or none: write to another name, sync, then
    rename.
    """
    temporary = f"{path}.{os.getpid()}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.write(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(temporary, path)
    directory = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def wait_until_listed(path: str, content: bytes, timeout_s: float) -> float | None:
    """Wait until a file is in the listing of its directory, and has this content.

    Args:
        path: the file.
        content: all of its content.
        timeout_s: seconds to wait.

    Returns:
        The seconds that it took, or None if the time is up.
    """
    directory, name = os.path.split(path)
    begun = time.monotonic()
    while (waited := time.monotonic() - begun) <= timeout_s:
        with suppress(OSError):
            if name in os.listdir(directory):
                with open(path, "rb") as file:
                    if file.read() == content:
                        return waited
        time.sleep(_POLL_S)
    return None


@contextmanager
def locked(path: str) -> Iterator[None]:
    """Hold flock(2) on a file, which is made if it is missing."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def is_locked(path: str) -> bool:
    """Return whether another process, perhaps of another machine, is seen to hold flock(2) on a
    file.
    """
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
