"""The real API server of atroposlib on loopback, in the separate environment that ``scripts/setup test`` makes."""

from __future__ import annotations

import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hyperruntime.host.process import DEVNULL, kill_group, spawn, wait_until

PROGRAM = Path(sys.prefix) / "atroposlib/bin/run-api"


@contextmanager
def atropos_server() -> Iterator[str]:
    """Run a server for the block; yield its address."""
    assert PROGRAM.is_file(), f"{PROGRAM} is missing: run scripts/setup test"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = spawn(
        [str(PROGRAM), "--host", "127.0.0.1", "--port", str(port)], stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL
    )
    try:
        assert wait_until(lambda: _answers(port), 60), "run-api does not answer"
        yield f"http://127.0.0.1:{port}"
    finally:
        kill_group(process)
        process.wait()


def reset(url: str) -> None:
    """Make the server forget its trainer, environments and groups; an empty server answers with HTTP 500."""
    with suppress(urllib.error.HTTPError), urllib.request.urlopen(f"{url}/reset_data", timeout=60):
        pass


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False
