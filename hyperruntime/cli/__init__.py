"""The command line, ``hyperrun``. This module is the one place that turns errors into sentences and exit codes.

Nothing but click and the errors is imported before a command runs: each group of commands is a module of its
own, imported when it is called.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import click

from hyperruntime.cli.app import PROGRAM, app
from hyperruntime.cli.command import State
from hyperruntime.errors import HyperRuntimeError

__all__ = ["main"]

EXIT_FAILED, EXIT_USAGE, EXIT_BY_SIGNAL = 1, 2, 128


def main(args: Sequence[str] | None = None) -> int:
    """Run ``hyperrun`` and return its exit code.

    0 done; 1 the work failed; 2 wrong usage; 3 no usable runtime; 130 interrupted, 143 by SIGTERM. ``hyperrun exec``
    returns the command's own.
    """
    state = State()
    with _signals_interrupt(state):
        try:
            return _exit_code(app.main(args, prog_name=PROGRAM, standalone_mode=False, obj=state))
        except SystemExit as ended:
            return _exit_code(ended.code)
        except (KeyboardInterrupt, click.Abort):
            _say("interrupted")
            return EXIT_BY_SIGNAL + state.signal
        except BrokenPipeError:
            return EXIT_BY_SIGNAL + signal.SIGPIPE
        except Exception as error:  # noqa: BLE001 - the one place where every error becomes a sentence
            code = _report(error, state)
            return EXIT_BY_SIGNAL + state.signal if state.ending else code


def _exit_code(value: object) -> int:
    return value if isinstance(value, int) else 0


def _report(error: Exception, state: State) -> int:
    """Print an error as one sentence, and its traceback where ``--debug`` asks for it; return the exit code."""
    if state.debug:
        import traceback

        traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, click.ClickException):
        _say(_usage_sentence(error))
        return EXIT_USAGE if isinstance(error, click.UsageError) else error.exit_code
    if isinstance(error, HyperRuntimeError):
        _say(str(error))
        return error.exit_code
    hint = "" if state.debug else "; run again with --debug for where it happened"
    _say(f"unexpected {type(error).__name__}: {' '.join(str(error).split()) or 'no message'}{hint}")
    return EXIT_FAILED


def _usage_sentence(error: click.ClickException) -> str:
    """Return click's message as one sentence that names the help to read."""
    text = " ".join(error.format_message().split()).rstrip(".")
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = context.command_path if context is not None else PROGRAM
    return f"{text[:1].lower()}{text[1:]}; see `{path} --help`"


def _say(sentence: str) -> None:
    click.echo(f"{PROGRAM}: error: {sentence}", err=True)


@contextmanager
def _signals_interrupt(state: State) -> Iterator[None]:
    """Make SIGTERM and SIGHUP end a command as an interrupt does: whatever is open is closed first."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        state.signal, state.ending = number, True
        raise KeyboardInterrupt

    taken = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                taken[number] = signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in taken.items():
            signal.signal(number, handler)
