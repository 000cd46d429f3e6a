"""Wait until the program of a service is ready, or say why it is not.

Source: proc(5), ``/proc/net/tcp``.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from hyperruntime.errors import ServiceError, UnsupportedOptionError
from hyperruntime.host.process import overload
from hyperruntime.spec import Ready

if TYPE_CHECKING:
    from hyperruntime.container import Container
    from hyperruntime.exec.spawn.process import Process

_TAIL_BYTES = 2000
_FIRST_PAUSE_S = 0.01
_LISTENS = "0A"
_LONGEST_CALL_S = 30.0
_NO_PROGRAM = 69
_ASK = f"""
unset http_proxy HTTP_PROXY all_proxy ALL_PROXY
if command -v curl >/dev/null; then exec curl -fsS -o /dev/null --max-time 20 "$1"
elif command -v wget >/dev/null; then exec wget -q -T 20 -O /dev/null "$1"
elif command -v python3 >/dev/null; then
    exec python3 -I -c 'import sys, urllib.request as u; u.urlopen(sys.argv[1], timeout=20)' "$1"
fi
exit {_NO_PROGRAM}
"""


def wait_ready(
    name: str, ready: Ready, address: str, container: Container, process: Process, main: Container
) -> None:
    """Return when a service is ready.

    Args:
        name: its name.
        ready: what counts as ready.
        address: its own address.
        container: its container.
        process: its program.
        main: the container that it belongs to.

    Raises:
        ServiceError: it ended before, or was not ready in time; with the last lines of its log.
        UnsupportedOptionError: neither container has a program that asks a URL.
    """
    begin = time.monotonic()
    while True:
        code = process.poll()
        if ready.completed and code == 0:
            return
        if code is not None:
            raise _failure(name, f"its program ended with exit code {code}", process)
        why = _look(ready, address, container, main)
        if not why and process.poll() is None:
            return
        waited_s = time.monotonic() - begin
        if why and waited_s > ready.timeout_s * overload():
            raise _failure(name, f"it was not ready after {waited_s:.0f} s: {why}", process)
        pause_s = max(_FIRST_PAUSE_S, waited_s / 10)  # it is noticed a tenth late at most
        with suppress(TimeoutError):
            process.wait(min(pause_s, ready.interval_s))


def _failure(name: str, why: str, process: Process) -> ServiceError:
    said = process.stdout[-_TAIL_BYTES:].decode(errors="replace").strip()
    return ServiceError(name, why, said)


def _look(ready: Ready, address: str, container: Container, main: Container) -> str:
    """Return why a service is not ready, or ""."""
    if ready.tcp is not None:
        return _look_at_port(ready.tcp, address, container)
    if ready.completed:
        return "its program still runs"
    if ready.command is not None:
        return _try(container, ready.command)[1]
    assert ready.http is not None
    for one in (container, main):
        code, why = _try(one, ("/bin/sh", "-c", _ASK, "ask", ready.http))
        if code != _NO_PROGRAM:
            return why
    what = "neither its image nor the container's has curl, wget or python3; use Ready.tcp"
    raise UnsupportedOptionError("hyperruntime", "Ready.http", what)


def _try(container: Container, args: tuple[str, ...]) -> tuple[int, str]:
    result = container.exec(args, timeout_s=_LONGEST_CALL_S * overload(), merge_output=True)
    said = " ".join(result.stdout[-_TAIL_BYTES:].decode(errors="replace").split())
    return result.exit_code, (result.exit_code and f"exit code {result.exit_code}: {said}") or ""


def _look_at_port(port: int, address: str, container: Container) -> str:
    table = container.exec(["cat", "/proc/net/tcp", "/proc/net/tcp6"]).stdout.decode()
    rows = [line.split() for line in table.splitlines()]
    listening = {
        words[1].rpartition(":")[0]
        for words in rows
        if len(words) > 3 and words[3] == _LISTENS and words[1].endswith(f":{port:04X}")
    }
    own = _as_hex(address)
    if listening & {own, f"{'0' * 16}FFFF0000{own}", "0" * 8, "0" * 32}:
        return ""
    if listening:
        return f"port {port} is open at another address only; let it listen at {address} or 0.0.0.0"
    return f"nothing listens on port {port}"


def _as_hex(address: str) -> str:
    """Return an address as the kernel shows it on machines of today."""
    return "".join(f"{int(part):02X}" for part in reversed(address.split(".")))
