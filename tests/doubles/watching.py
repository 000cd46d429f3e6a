"""``hyperrun watch`` as a process, for tests and measurements."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.command import cli


@contextmanager
def watching(
    run_dir: Path,
    *words: str,
    state: Path,
    env: Mapping[str, str] | None = None,
    end: signal.Signals = signal.SIGTERM,
) -> Iterator[str]:
    """Yield the address of a live page.

    Args:
        run_dir: the run.
        words: more words of the command line.
        state: the user's state directory, where the token is kept.
        env: more variables.
        end: the signal that ends the server.
    """
    variables = {**os.environ, "XDG_STATE_HOME": str(state), **(env or {})}
    command = cli("watch", str(run_dir), *words)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:"), address
        yield address
    finally:
        process.send_signal(end)
        process.wait(120)
        if process.stdout is not None:
            process.stdout.close()
