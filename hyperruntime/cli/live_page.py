"""``--watch`` of commands that make a run: ``hyperrun watch`` in a process of its own, beside the
run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from hyperruntime.cli.command import State
from hyperruntime.cli.messages import note
from hyperruntime.host.process import STDOUT, kill_group, python_args, reap, spawn

_END_S = 5.0  # for the last events


def _store(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    ctx.ensure_object(State).has_live_page = value


watch_option = click.option(
    "--watch",
    is_flag=True,
    expose_value=False,
    callback=_store,
    help="Serve a live page about the run; see `hyperrun watch`.",
)


@contextmanager
def live_page(state: State) -> Iterator[Callable[[Path], None]]:
    """Yield a function that starts the page of a run if ``--watch`` was given; the page ends after
    the block.
    """
    started: list[_PageProcess] = []

    def start(run_dir: Path) -> None:
        if not state.has_live_page:
            return
        try:
            started.append(_PageProcess(run_dir))
        except (OSError, RuntimeError) as error:
            note(
                f"the live page cannot be started: {error}; the run goes on, see it with "
                "`hyperrun watch`"
            )

    try:
        yield start
    finally:
        for one in started:
            one.close()


class _PageProcess:
    """``hyperrun watch`` as a child, which ends when this process ends, in any way: its standard
    input ends then.

    All that it prints comes through this process, because it must stand above the display of the
    run.
    """

    def __init__(self, run_dir: Path) -> None:
        words = ("-m", "hyperruntime.cli", "watch", str(run_dir), "--with-parent")
        # one pipe: its errors must stand above the display, too
        self._process = spawn(python_args(*words), stderr=STDOUT)
        self._reader = threading.Thread(target=self._tell, name="hyperrun-live-page", daemon=True)
        try:
            self._reader.start()
        except RuntimeError:
            kill_group(self._process)
            reap(self._process, _END_S)
            self._close_pipes()
            raise

    def _tell(self) -> None:
        assert self._process.stdout is not None, "a pipe"
        with suppress(OSError, ValueError):
            for line in self._process.stdout:
                said = line.decode(errors="replace").strip()
                note(f"watch it at {said}" if said.startswith("http://") else said)

    def close(self) -> None:
        """Close the child's standard input, so that it sends the last events and ends; kill it
        after 5 s.
        """
        assert self._process.stdin is not None, "a pipe"
        with suppress(OSError):
            self._process.stdin.close()
        if reap(self._process, _END_S) is None:
            kill_group(self._process)
            reap(self._process, _END_S)
        self._reader.join(_END_S)
        self._close_pipes()

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
