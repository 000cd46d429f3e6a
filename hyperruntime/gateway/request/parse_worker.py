"""A process that parses requests and answers that are too large for the gateway's event loop.

Python holds its interpreter lock while it parses JSON, so a thread would block the loop too. The
parent sends functions with their arguments, one after the other, over a socket that is the worker's
standard input. Results return in the same way. Only the parent can write to the worker. The worker
ends when the parent closes the socket, and imports no HTTP library.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from hyperruntime.gateway.request.parse import RequestRefusedError
from hyperruntime.units import GIB

Job = tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]]
Answer = tuple[Any, RequestRefusedError | None]
_MEMORY_BYTES = 4 * GIB
_NICE = 5  # the event loop of the gateway comes first


def main() -> None:
    """Run jobs until the parent closes the socket."""
    os.nice(_NICE)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = _MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(hard, _MEMORY_BYTES)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    parent: Connection[Answer, Job] = Connection(0)
    with suppress(EOFError):
        while True:
            parent.send(_work(*parent.recv()))


def _work(
    function: Callable[..., Any], args: tuple[Any, ...], options: Mapping[str, Any]
) -> Answer:
    try:
        return function(*args, **options), None
    except RequestRefusedError as error:
        return None, error
    except MemoryError:
        return None, RequestRefusedError(
            413, "too_large", "the gateway has too little memory to parse this"
        )
