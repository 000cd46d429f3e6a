"""The command line, ``hyperrun``. Only this module turns errors into sentences and exit codes.

The module of a command is imported when the command is called; start-up imports only click, the
signals, the errors and what corrects ``PATH`` and the like.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from hyperruntime.cli.app import PROGRAM, app
from hyperruntime.cli.command import State
from hyperruntime.cli.messages import note
from hyperruntime.cli.signals import EXIT_BY_SIGNAL, interrupting, is_drawing
from hyperruntime.cli.streams import OutputError, finish_output, guarded_streams, without_colour
from hyperruntime.errors import HyperRuntimeError
from hyperruntime.host.python import make_safe

__all__ = ["main"]

EXIT_FAILED = 1
EXIT_USAGE = 2


def main(args: Sequence[str] | None = None) -> int:
    """Run ``hyperrun`` and return its exit code.

    0: done. 1: the work failed. 2: wrong usage. 3: no usable runtime. 128+n: ended by signal n (130
    for SIGINT, 143 for SIGTERM; 141 if the reader of the output is gone, as in
    ``hyperrun ... | head -1``). ``hyperrun exec`` returns the exit code of its command.

    Args:
        args: words of the command line; None means those of this process. With None the signal
            watch stays open until the process ends, so that a late signal still ends it in bounded
            time.
    """
    make_safe(os.environ)
    code = _guarded(args, State(), is_whole=args is not None)
    if args is None and is_drawing():
        # at the end of the interpreter, C++ code of that thread would abort the process
        os._exit(code)
    return code


def _guarded(args: Sequence[str] | None, state: State, *, is_whole: bool) -> int:
    """Run a command inside of what protects its output and its end; return the exit code.

    Args:
        args: as for :func:`main`.
        state: new.
        is_whole: whether to end the signal watch.
    """
    try:
        with guarded_streams(), interrupting(state):
            code = _run(args, state)
            if late := state.late_removals():
                click.echo(late, err=True)
            return code
    except KeyboardInterrupt:  # raised outside of the command
        return EXIT_BY_SIGNAL + state.signal
    finally:
        if state.watch is not None and is_whole:
            state.watch.close()


def _run(args: Sequence[str] | None, state: State) -> int:
    try:
        colour = False if without_colour() else None
        code = _exit_code(
            app.main(args, prog_name=PROGRAM, standalone_mode=False, obj=state, color=colour)
        )
        finish_output()
        return code
    except SystemExit as ended:
        return _exit_code(ended.code)
    except (KeyboardInterrupt, click.Abort):
        note(f"{PROGRAM}: interrupted")
        return EXIT_BY_SIGNAL + state.signal
    except Exception as error:  # noqa: BLE001 - the one place where every error becomes a sentence
        code = _report(error, state)
        return EXIT_BY_SIGNAL + state.signal if state.ending else code


def _exit_code(value: object) -> int:
    return value if isinstance(value, int) else 0


def _report(error: Exception, state: State) -> int:
    """Print an error as one sentence, with ``--debug`` also its traceback; return the exit code."""
    if state.debug:
        import traceback

        traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, OutputError):
        if not error.is_quiet:
            _say(str(error))
        return error.exit_code
    if isinstance(error, click.ClickException):
        _say(f"{_usage_sentence(error)}{_lost_directory()}")
        return EXIT_USAGE if isinstance(error, click.UsageError) else error.exit_code
    if isinstance(error, HyperRuntimeError):
        _say(f"{error}{_lost_directory()}")
        return error.exit_code
    from hyperruntime.concurrency.exhaustion import exhausted

    if known := exhausted(error) or _lost_directory().lstrip("; "):
        _say(known)
        return EXIT_FAILED
    hint = "" if state.debug else "; run again with --debug to see the traceback"
    _say(f"unexpected {type(error).__name__}: {' '.join(str(error).split()) or 'no message'}{hint}")
    return EXIT_FAILED


def _lost_directory() -> str:
    """Return what to say if the current directory was removed, which makes most errors; else ""."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return "; the current directory does not exist any more: change to another one"
    except OSError:
        pass
    return ""


def _usage_sentence(error: click.ClickException) -> str:
    """Return click's message as one sentence that names the help to read."""
    text = " ".join(error.format_message().split()).rstrip(".")
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = context.command_path if context is not None else PROGRAM
    return f"{text[:1].lower()}{text[1:]}; see `{path} --help`"


def _say(sentence: str) -> None:
    note(f"{PROGRAM}: error: {sentence}")
