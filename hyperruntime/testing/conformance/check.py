"""A check: a function that tests one promise of the library, with a name and a sentence."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import attrs

from hyperruntime.errors import HyperRuntimeError, UnsupportedOptionError
from hyperruntime.testing.conformance.context import Context

Run = Callable[[Context], None]
When = Literal["first", "beside", "alone"]
CHECKS: dict[str, Check] = {}
DEADLINE_S = 60.0
_SHOWN = 200
_SOON_S = 20.0


@attrs.frozen(kw_only=True)
class Check:
    """One check.

    Attributes:
        name: ``family.promise``.
        sentence: the promise.
        run: raises AssertionError with one sentence if the promise is broken.
        needs: a feature that a driver may declare as refused (see
            :func:`~hyperruntime.testing.conformance.context.declares_refusal`), or "". Such a
            check requests the feature first and does not catch the refusal.
        deadline_s: seconds that the check may take on a quiet machine.
        when: ``first``: beside others, and started first because it mostly waits; ``beside``:
            beside others; ``alone``: after the others, because it looks at the whole machine or
            uses all of it.
    """

    name: str
    sentence: str
    run: Run
    needs: str = ""
    deadline_s: float = DEADLINE_S
    when: When = "beside"


def check(
    name: str, *, needs: str = "", deadline_s: float = DEADLINE_S, when: When = "beside"
) -> Callable[[Run], Run]:
    """Return a decorator that registers a function as a check; the first line of its docstring is
    the promise.

    Args:
        name: ``family.promise``.
        needs: a feature that a driver may declare as refused, or "".
        deadline_s: seconds that the check may take on a quiet machine.
        when: when it runs (see :class:`Check`).
    """

    def register(run: Run) -> Run:
        sentence = (run.__doc__ or "").strip().partition("\n")[0].rstrip(".")
        CHECKS[name] = Check(
            name=name, sentence=sentence, run=run, needs=needs, deadline_s=deadline_s, when=when
        )
        return run

    return register


def expect(condition: bool, sentence: str) -> None:
    """Raise AssertionError with a sentence unless a condition holds (``python -O`` removes
    ``assert``).
    """
    if not condition:
        raise AssertionError(sentence)


def expect_in_time(context: Context, started: float, quiet_s: float, action: str) -> None:
    """Raise AssertionError if an action took longer than it may, given the load of the machine.

    Args:
        context: the runtime under test.
        started: ``time.monotonic()`` at its start.
        quiet_s: seconds that it may take on a quiet machine.
        action: the action, for the message.
    """
    took = time.monotonic() - started
    expect(
        context.load.allows(took, quiet_s),
        f"{action} took {took:.1f} s, more than {context.load.bound(quiet_s):g}",
    )


def expect_soon(context: Context, condition: Callable[[], bool], what: str) -> None:
    """Raise AssertionError unless a condition holds soon, given the load of the machine.

    Args:
        context: the runtime under test.
        condition: called until it returns True.
        what: the condition, for the message.
    """
    expect(context.load.wait_until(condition, _SOON_S, 0.01), f"{what} did not happen")


def expect_equal(found: object, wanted: object, what: str) -> None:
    """Raise AssertionError unless two values are equal.

    Args:
        found: the actual value.
        wanted: the expected value.
        what: the name of the value, for the message.
    """
    expect(found == wanted, f"{what}: {_shown(found)} instead of {_shown(wanted)}")


@contextmanager
def expect_error(
    kind: type[BaseException] | tuple[type[BaseException], ...], what: str, *words: str
) -> Iterator[None]:
    """Raise AssertionError unless the block raises the expected error.

    Args:
        kind: the expected class, or classes.
        what: the failing action, for the message.
        words: texts that the error's message must contain.
    """
    names = " or ".join(one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,)))
    try:
        yield
    except kind as error:
        missing = [word for word in words if word not in str(error)]
        expect(
            not missing,
            f"{what}: the error does not name {', '.join(missing)}: {_shown(str(error))}",
        )
    except HyperRuntimeError as error:
        if isinstance(error, UnsupportedOptionError):
            raise
        raise AssertionError(
            f"{what}: {type(error).__name__} instead of {names}: {error}"
        ) from error
    else:
        raise AssertionError(f"{what}: no error instead of {names}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"
