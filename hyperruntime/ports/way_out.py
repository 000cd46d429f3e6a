"""A way out of a container without a network: a port of its loopback that leads to a socket here.

The image needs only Python 3.
"""

from __future__ import annotations

import posixpath
import re
import threading
from collections.abc import Callable

from hyperruntime.errors import (
    ContainerLostError,
    ContainerStateError,
    ExecLostError,
    HyperRuntimeError,
)
from hyperruntime.exec.options import ExecOptions
from hyperruntime.host.process import overload
from hyperruntime.logs import get_logger
from hyperruntime.ports.forward import PYTHON_ARGS, Run, forwarder_program
from hyperruntime.spec import Mount

log = get_logger(__name__)

NO_PYTHON = "there is no python3 in the image; use one that has it, such as the base image"
_START_S = 20.0
_MOST_BYTES = 64  # of the line with the port
_PORT = re.compile(rb"[0-9]{1,5}\n")


class WayOut:
    """The forwarder of one socket; it runs until the container, or its program, ends.

    Attributes:
        port: its port on 127.0.0.1 in the container; 0 if it does not run.
        ended: why it does not run, as the end of a sentence; "" while it does.
    """

    def __init__(
        self,
        run: Run,
        exchange: Mount,
        name: str,
        *,
        note: Callable[[str], None] | None = None,
        group: str | None = None,
    ) -> None:
        """Start it, and wait until it listens; the caller looks at ``ended``.

        Args:
            run: runs a command in the container.
            exchange: the exchange directory.
            name: name of the socket in it.
            note: called when it has ended, with the reason.
            group: group of its command, as for :meth:`Container.exec`.
        """
        self.port = 0
        self.ended = ""
        self._note = note
        self._group = group
        self._started = threading.Event()
        self._output = b""
        args = [*PYTHON_ARGS, posixpath.join(exchange.target, name)]
        threading.Thread(
            target=self._run, args=(run, args), name="hyperruntime-forwarder", daemon=True
        ).start()
        start_s = _START_S * overload()
        has_started = self._started.wait(start_s)
        if _PORT.fullmatch(self._output):
            self.port = int(self._output)
        elif not self.ended:
            late = f"it did not start within {start_s:g} s"
            self.ended = "its python3 is another program" if has_started else late

    def _run(self, run: Run, args: list[str]) -> None:
        try:
            options = ExecOptions(
                input=forwarder_program(), on_output=self._heard, group=self._group
            )
            result = run(args, options)
        except (ContainerLostError, ContainerStateError, ExecLostError) as error:
            why = str(error)
        except HyperRuntimeError as error:
            why = f"it could not be started: {error}"
        else:
            tail = result.stderr.decode(errors="replace").strip()[-300:]
            why = NO_PYTHON if result.not_executed else ""
            why = why or f"it ended with exit code {result.exit_code}: {tail}"
        self.ended = why
        self._started.set()
        if self._note is not None:
            self._note(why)

    def _heard(self, stream: str, chunk: bytes) -> None:
        if stream == "stdout" and not self._started.is_set():
            self._output += chunk[: _MOST_BYTES - len(self._output)]
            if self._output.endswith(b"\n") or len(self._output) >= _MOST_BYTES:
                self._started.set()
