"""Ask whether a run that was made elsewhere may use what it asks for: ``--trust``, or a question on
a terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

import click

from hyperruntime.runs.own_mark import ReceivedRunError

_Result = TypeVar("_Result")

trust_option = click.option(
    "--trust",
    is_flag=True,
    help="Accept what a run that was made elsewhere asks of this machine, without a question.",
)


def with_consent(call: Callable[[bool], _Result], *, trust: bool) -> _Result:
    """Return the result of a call; if it refuses a run that was made elsewhere, ask once on a
    terminal, and repeat it.

    Args:
        call: gets whether the user accepts what the run asks for.
        trust: whether the user has accepted it with ``--trust``.

    Raises:
        ReceivedRunError: there is no terminal to ask on, or the user does not accept.
    """
    try:
        return call(trust)
    except ReceivedRunError as error:
        if not accepted(f"{error.path!r} was made elsewhere and asks for {error.listed}"):
            raise
    return call(True)


def accepted(said: str) -> bool:
    """Return whether the user accepts, on a terminal, what something asks for."""
    is_terminal = sys.stdin.isatty() and sys.stderr.isatty()
    return is_terminal and click.confirm(f"{said}; use them?", default=False, err=True)
