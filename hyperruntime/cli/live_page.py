"""``--watch`` and ``--logger`` of commands that make a run: ``hyperrun watch`` and each logger in a
process of its own, beside the run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from hyperruntime import registry
from hyperruntime.cli.command import State
from hyperruntime.cli.messages import WrongUsageError, note
from hyperruntime.errors import unknown_name
from hyperruntime.host.process import STDOUT, kill_group, python_args, reap, spawn
from hyperruntime.loop.loggers.logger import STARTED
from hyperruntime.loop.run_files.layout import Layout

_END_S = 5.0  # for the last events
_LOGGER_END_S = 10.0  # for what a logger has not sent yet, once it has started
_LOGGER_START_S = 120.0  # after the run: the import of its library can be slow
_LATE_S = 5.0  # then a message says that the command waits for its start
_FOLLOW = "hyperruntime.loop.loggers.follow"


def _store(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    ctx.ensure_object(State).has_live_page = value


watch_option = click.option(
    "--watch",
    is_flag=True,
    expose_value=False,
    callback=_store,
    help="Serve a live page about the run; see `hyperrun watch`.",
)


def _store_loggers(
    ctx: click.Context, parameter: click.Parameter, value: tuple[str, ...]
) -> tuple[str, ...]:
    known = registry.plugins(registry.LOGGERS) if value else {}
    for reference in value:
        name = reference.partition(":")[0]
        if name not in known:
            raise WrongUsageError(unknown_name("logger", name, known))
    ctx.ensure_object(State).loggers = value
    return value


logger_option = click.option(
    "--logger",
    multiple=True,
    expose_value=False,
    callback=_store_loggers,
    metavar="NAME[:PROJECT]",
    help="Also write the figures of each generation to another program, such as trackio.",
)


@contextmanager
def live_page(state: State) -> Iterator[Callable[[Path], None]]:
    """Yield a function that starts the page of a run if ``--watch`` was given, and its loggers if
    ``--logger`` was; they end after the block.
    """
    started: list[_BesideProcess] = []

    def start(run_dir: Path) -> None:
        if state.has_live_page:
            page = _started(_page_words(run_dir), "the live page", 0.0, _END_S)
            started.extend(page)
        for reference in state.loggers:
            words = _logger_words(run_dir, reference)
            name = f"logger {reference}"
            started.extend(_started(words, name, _LOGGER_START_S, _LOGGER_END_S))

    try:
        yield start
    finally:
        for one in started:
            one.end()
        for one in started:
            one.close()


def _started(
    words: tuple[str, ...], name: str, start_s: float, end_s: float
) -> Iterator[_BesideProcess]:
    try:
        yield _BesideProcess(words, name, start_s, end_s)
    except (OSError, RuntimeError) as error:
        note(f"{name} cannot be started: {error}; the run goes on without it")


def _page_words(run_dir: Path) -> tuple[str, ...]:
    return ("-m", "hyperruntime.cli", "watch", str(run_dir), "--with-parent")


def _logger_words(run_dir: Path, reference: str) -> tuple[str, ...]:
    journal = Layout(run_dir).journal
    done = journal.stat().st_size if journal.exists() else 0
    return ("-m", _FOLLOW, str(run_dir.absolute()), reference, str(done))


class _BesideProcess:
    """A child beside the run, which ends when this process ends, in any way: its standard input
    ends then.

    All that it prints comes through this process, because it must stand above the display of the
    run. The time that it has for its end begins with the end of the run, or when the child has said
    that it has started, if that is later and ``start_s`` is not 0.
    """

    def __init__(self, words: tuple[str, ...], name: str, start_s: float, end_s: float) -> None:
        self._name = name
        self._start_s = start_s
        self._end_s = end_s
        self._run_ended = 0.0  # set by end()
        self._started = threading.Event()  # or it has ended
        self._started_at = 0.0
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
                if said == STARTED:
                    self._started_at = time.monotonic()
                    self._started.set()
                else:
                    note(f"watch it at {said}" if said.startswith("http://") else said)
        self._started.set()

    def end(self) -> None:
        """Close the child's standard input, so that it does what is left and ends."""
        assert self._process.stdin is not None, "a pipe"
        self._run_ended = time.monotonic()
        with suppress(OSError):
            self._process.stdin.close()

    def close(self) -> None:
        """Wait until the child has ended; kill it if its start or its end takes too long."""
        has_started = not self._start_s or self._has_started()
        until = max(self._run_ended, self._started_at) + self._end_s if has_started else 0.0
        if reap(self._process, max(0.0, until - time.monotonic())) is None:
            limit = (
                f"end within {self._end_s:g}" if has_started else f"start within {self._start_s:g}"
            )
            note(f"{self._name} did not {limit} s, and was killed")
            kill_group(self._process)
            reap(self._process, _END_S)
        self._reader.join(_END_S)
        self._close_pipes()

    def _has_started(self) -> bool:
        """Wait for the start of the child, and say so if it is late."""
        until = self._run_ended + self._start_s
        if self._started.wait(min(_LATE_S, self._start_s)):
            return True
        note(f"{self._name} has not started yet; waiting for it up to {self._start_s:g} s")
        return self._started.wait(max(0.0, until - time.monotonic()))

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
