"""Errors of a process or a machine that has no file descriptor, memory or process left: one
sentence each.
"""

from __future__ import annotations

import errno
import os
import resource

from hyperruntime.errors import StorageError

# the second is from the loader of libraries
_NO_MEMORY = (os.strerror(errno.ENOMEM), "failed to map segment")
_WITHOUT_EXCEPTION = ("without exception set", "without setting an exception")


def too_many_files(error: OSError) -> StorageError | None:
    """Return the error for a process that has no file descriptor left, or None if ``error`` has
    another reason.
    """
    if error.errno not in (errno.EMFILE, errno.ENFILE):
        return None
    step = (
        "call hyperruntime.raise_file_limit(), raise `ulimit -n`, or use fewer containers at once"
    )
    return StorageError(f"this process has no file descriptor left ({error}); {step}")


def exhausted(error: BaseException) -> str:
    """Return one sentence if the error, or its cause, is that memory, threads or processes ran out;
    else "".
    """
    if isinstance(error, OSError) and (files := too_many_files(error)):
        return str(files)
    code = getattr(error, "errno", None)
    text = str(error)
    no_memory = (
        code == errno.ENOMEM
        or any(words in text for words in _NO_MEMORY)
        or _lost_memory_error(error)
    )
    if isinstance(error, MemoryError) or no_memory:
        return "this process cannot get memory; raise `ulimit -v`, or the memory limit of the job"
    if "can't start new thread" in text or (
        isinstance(error, BlockingIOError) and code == errno.EAGAIN
    ):
        limits = "`ulimit -u` (processes) or `ulimit -v` (memory), or the limits of the job"
        return f"no further thread or process can be started; raise {limits}"
    return "" if error.__cause__ is None else exhausted(error.__cause__)


def _lost_memory_error(error: BaseException) -> bool:
    """Return whether the interpreter had no memory to make a MemoryError; only believed under a
    memory limit.

    CPython then raises a SystemError, or, from its parser, a SyntaxError about correct text. Only
    text that a program generated, as dataclasses do, counts as correct: a file may have an error of
    its own.
    """
    if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        return False
    if isinstance(error, SyntaxError):
        return (error.filename or "").startswith("<")
    return isinstance(error, SystemError) and any(
        words in str(error) for words in _WITHOUT_EXCEPTION
    )
