"""A process that parses requests and answers that are too large for the gateway's event loop.

Python holds its interpreter lock while it parses JSON, so a thread would block the loop too. The parent sends pickled
functions with their arguments, one after the other, each after its length. Results return in the same form. Only the
parent can write to the worker. The worker ends when its standard input ends, and imports no HTTP library.
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
    """Return the content of the next frame, or None if the other side has closed."""
    head = _read(source, LENGTH.size)
    return None if head is None else _read(source, LENGTH.unpack(head)[0])


def write_frame(sink: IO[bytes], content: bytes) -> None:
    """Write one frame; `sink` may be unbuffered."""
    for data in (LENGTH.pack(len(content)), content):
        left = memoryview(data)
        while left:
            left = left[sink.write(left) or 0 :]
    sink.flush()


def main() -> None:
    """Run jobs until standard input ends."""
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library's prints must not mix with the results
    os.nice(_NICE)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = _MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(hard, _MEMORY_BYTES)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    while (frame := read_frame(source)) is not None:
        write_frame(sink, pickle.dumps(_work(frame), pickle.HIGHEST_PROTOCOL))


def _work(frame: bytes) -> tuple[Any, RequestRefusedError | None]:
    try:
        function, args, options = pickle.loads(frame)  # noqa: S301 - from the parent
        return function(*args, **options), None
    except RequestRefusedError as error:
        return None, error
    except MemoryError:
        return None, RequestRefusedError(413, "too_large", "the gateway has too little memory to parse this")


def _read(source: IO[bytes], size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        piece = source.read(size - len(data))
        if not piece:
            return None
        data += piece
    return bytes(data)
