"""The real API server of atroposlib on loopback, in the separate environment that
``scripts/setup all`` makes.
"""

from __future__ import annotations

import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hyperruntime.errors import TrainerError
from hyperruntime.host.process import DEVNULL, kill_group, spawn, wait_until
from hyperruntime.trainers.atropos import AtroposApi

PROGRAM = Path(sys.prefix) / "atroposlib/bin/run-api"


class TrainerApi(AtroposApi):
    """The server as a trainer sees it."""

    async def register(
        self, *, batch_size: int, max_token_len: int, num_steps: int, starting_step: int = 0
    ) -> None:
        """Register as the trainer."""
        fields = {
            "wandb_group": "",
            "wandb_project": "",
            "checkpoint_dir": "",
            "save_checkpoint_interval": 0,
            "starting_step": starting_step,
            "batch_size": batch_size,
            "max_token_len": max_token_len,
            "num_steps": num_steps,
        }
        await self.call("POST", "/register", fields)

    async def batch(self) -> list[dict[str, Any]] | None:
        """Return the next batch, or None if there are too few groups; the first call starts the
        run.
        """
        answer = await self.call("GET", "/batch")
        if answer.get("status") == "error":
            raise TrainerError(
                f"{self.url} returned no batch: {answer.get('message')}; register first"
            )
        batch: list[dict[str, Any]] | None = answer.get("batch")
        return batch

    async def status(self) -> dict[str, Any]:
        """Return ``current_step`` and ``queue_size``."""
        return await self.call("GET", "/status")

    async def is_registered(self) -> bool:
        """Return whether a trainer is registered."""
        return bool((await self.call("GET", "/info"))["batch_size"] >= 0)


@contextmanager
def atropos_server() -> Iterator[str]:
    """Run a server for the block; yield its address."""
    assert PROGRAM.is_file(), f"{PROGRAM} is missing: run scripts/setup all"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = spawn(
        [str(PROGRAM), "--host", "127.0.0.1", "--port", str(port)],
        stdin=DEVNULL,
        stdout=DEVNULL,
        stderr=DEVNULL,
    )
    try:
        assert wait_until(lambda: _answers(port), 60), "run-api does not answer"
        yield f"http://127.0.0.1:{port}"
    finally:
        kill_group(process)
        process.wait()


def reset(url: str) -> None:
    """Make the server forget its trainer, environments and groups; an empty server answers with
    HTTP 500.
    """
    with suppress(urllib.error.HTTPError), urllib.request.urlopen(f"{url}/reset_data", timeout=60):
        pass


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/status", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False
