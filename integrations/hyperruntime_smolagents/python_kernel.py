"""A Python process in a container that keeps its variables between pieces of code; it is not
trusted.
"""

from __future__ import annotations

import json
import secrets
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.container import Container
from hyperruntime.exec.streams import OutputBuffer
from hyperruntime.json_values import count_values, parse_json

_MOST_BYTES = 8 * 1024**2  # of a reply
_MOST_VALUES = 1000  # JSON values of a reply; a valid reply has a few
_LOG_BYTES = 1024**2
_INTERRUPT_S = 5.0  # that code has to end after an interrupt
_PIPE_BYTES = 65536
_PROGRAM = Path(__file__).with_name("python_loop.py")


@attrs.frozen
class PythonResult:
    """The result of one piece of code, as the untrusted container reports it.

    Attributes:
        output: value of the last expression, as text; None if there is none, or if the code failed.
        error: why it failed, such as a traceback; "" if it did not.
        kind: name of the class of the exception that ended it, or "".
        value: text of that exception, or "".
        logs: what it wrote; of more than 1 MiB the head and the tail.
    """

    logs: str
    output: str | None = None
    error: str = ""
    kind: str = ""
    value: str = ""


class PythonKernel:
    """One Python process of a container; it runs one piece of code at a time."""

    def __init__(self, container: Container) -> None:
        """Start it; the image needs Python 3.8 or newer.

        The errors are those of :meth:`~hyperruntime.container.Container.spawn`.
        """
        self._changed = threading.Condition()
        self._reply = bytearray()
        self._logs = OutputBuffer(_LOG_BYTES)
        self._recent = b""
        self._mark = _new_mark()
        self._marked = False
        args = ["python3", "-u", "-c", _PROGRAM.read_text()]
        self._process = container.spawn(args, on_output=self._take, output_limit_bytes=_PIPE_BYTES)
        self._process.ended.listen(self._wake)

    def _take(self, stream: str, chunk: bytes) -> None:
        with self._changed:
            if stream == "stdout" and len(self._reply) <= _MOST_BYTES:
                self._reply += chunk
            elif stream == "stderr":
                self._logs.write(chunk)
                recent = self._recent + chunk
                self._marked = self._marked or self._mark in recent
                self._recent = recent[-len(self._mark) :]
            self._changed.notify_all()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _is_over(self) -> bool:
        ended = self._process.ended.is_set or len(self._reply) > _MOST_BYTES
        return ended or (self._marked and self._reply.endswith(b"\n"))

    @property
    def is_alive(self) -> bool:
        """Whether the process can run more code."""
        return not self._process.ended.is_set

    def run(self, code: str, timeout_s: float | None) -> PythonResult:
        """Run code; interrupt it after ``timeout_s``, and kill the process if the code does not
        stop.

        Args:
            code: Python.
            timeout_s: seconds; None means no limit.

        Raises:
            HyperRuntimeError: the container ended.
        """
        with self._changed:
            self._mark = _new_mark()
            self._marked = False
            self._recent = b""
            self._reply.clear()
        request = json.dumps({"code": code, "mark": self._mark.decode()}).encode() + b"\n"
        # it may never be read
        threading.Thread(target=self._send, args=(request,), daemon=True).start()
        if self._wait(timeout_s):
            return self._outcome("")
        self._process.interrupt()
        kept = self._wait(_INTERRUPT_S) and self.is_alive
        if not kept:
            self._process.close()
        left = (
            "its variables stay"
            if kept
            else "it did not stop, so its process was killed and its variables are lost"
        )
        return self._outcome(f"the code was interrupted after {timeout_s:g} s; {left}")

    def _send(self, request: bytes) -> None:
        with suppress(BrokenPipeError):  # the end of the process is seen where its reply is awaited
            self._process.write(request)

    def _wait(self, timeout_s: float | None) -> bool:
        with self._changed:
            return self._changed.wait_for(self._is_over, timeout_s)

    def _outcome(self, late: str) -> PythonResult:
        with self._changed:
            taken = self._logs.value().replace(self._mark, b"")
            self._logs = OutputBuffer(_LOG_BYTES)
            reply = _parse(bytes(self._reply))
            size = len(self._reply)
        logs = taken.decode(errors="replace")
        if late:
            return PythonResult(logs=logs, error=late)
        if reply is not None:
            return PythonResult(logs=logs, **reply)
        self._process.close()
        code = self._process.wait().exit_code
        why = f"the Python process ended with exit code {code}, so its variables are lost"
        if size > _MOST_BYTES:
            why = (
                f"the value or the exception has more than {_MOST_BYTES} bytes of JSON; write "
                "it to a file instead"
            )
            why += ". The Python process was killed, so its variables are lost"
        return PythonResult(logs=logs, error=why)


def _new_mark() -> bytes:
    return secrets.token_hex(16).encode()


def _parse(line: bytes) -> dict[str, Any] | None:
    """Return a reply, or None if it is incomplete or has another form."""
    if not line.endswith(b"\n") or len(line) > _MOST_BYTES or count_values(line) > _MOST_VALUES:
        return None
    try:
        reply = parse_json(line)
    except ValueError:
        return None
    if not isinstance(reply, dict) or not all(
        isinstance(value, str | None) for value in reply.values()
    ):
        return None
    if (
        set(reply) not in ({"output"}, {"error", "kind", "value"})
        or None in list(reply.values())[1:]
    ):
        return None
    return {key: value and value.encode(errors="replace").decode() for key, value in reply.items()}
