"""A process that parses what is too large for the gateway's event loop. Imports no HTTP library.

Python parses JSON with its interpreter locked, so a thread would stop the loop as well. The parent sends pickled
functions with their arguments, one after the other, each behind its length; answers go back in the same form. Only
the parent can write to it. It ends with its standard input.
"""

from __future__ import annotations

import os
import pickle
import resource
import struct
from typing import IO, Any

from hyperruntime.gateway.request.parse import RequestRefusedError
from hyperruntime.units import GIB

LENGTH = struct.Struct("!Q")
_MEMORY_BYTES = 4 * GIB
_NICE = 5


def read_frame(source: IO[bytes]) -> bytes | None:
    """Return one frame's content, or None where the other side is gone."""
    head = _read(source, LENGTH.size)
    return None if head is None else _read(source, LENGTH.unpack(head)[0])


def write_frame(sink: IO[bytes], content: bytes) -> None:
    """Write one frame; the sink may be unbuffered."""
    for data in (LENGTH.pack(len(content)), content):
        left = memoryview(data)
        while left:
            left = left[sink.write(left) or 0 :]
    sink.flush()


def main() -> None:
    """Work until the parent is gone."""
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not look like an answer
    os.nice(_NICE)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = _MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(hard, _MEMORY_BYTES)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    while (frame := read_frame(source)) is not None:
        write_frame(sink, pickle.dumps(_work(frame), pickle.HIGHEST_PROTOCOL))


def _work(frame: bytes) -> tuple[Any, RequestRefusedError | None]:
    try:
        function, args, options = pickle.loads(frame)  # noqa: S301 - of the parent
        return function(*args, **options), None
    except RequestRefusedError as error:
        return None, error
    except MemoryError:
        return None, RequestRefusedError(413, "too_large", "the gateway has no memory to parse this")


def _read(source: IO[bytes], size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        piece = source.read(size - len(data))
        if not piece:
            return None
        data += piece
    return bytes(data)
