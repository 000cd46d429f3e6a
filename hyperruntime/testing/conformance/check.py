"""A check: one promise of the library as a function, with a name and a sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import attrs

from hyperruntime.errors import HyperRuntimeError, UnsupportedOptionError
from hyperruntime.testing.conformance.context import Context

Run = Callable[[Context], None]
CHECKS: dict[str, Check] = {}
DEADLINE_S = 60.0
_SHOWN = 200


@attrs.frozen(kw_only=True)
class Check:
    """One promise.

    Attributes:
        name: ``family.promise``.
        sentence: what is promised.
        run: raises AssertionError with one sentence where the promise is broken.
        needs: what a driver may declare that it refuses (see
            :func:`~hyperruntime.testing.conformance.capability.declares_refusal`), or "" where it may not. Such a
            check asks for it first of all and lets the refusal out.
        deadline_s: how long it may take.
        waits: whether it does little but wait, in containers of its own, so that others may run beside it.
    """

    name: str
    sentence: str
    run: Run
    needs: str = ""
    deadline_s: float = DEADLINE_S
    waits: bool = False


def check(name: str, *, needs: str = "", deadline_s: float = DEADLINE_S, waits: bool = False) -> Callable[[Run], Run]:
    """Register a function as a check; the first line of its docstring is the promise."""

    def register(run: Run) -> Run:
        sentence = (run.__doc__ or "").strip().partition("\n")[0].rstrip(".")
        CHECKS[name] = Check(name=name, sentence=sentence, run=run, needs=needs, deadline_s=deadline_s, waits=waits)
        return run

    return register


def expect(condition: bool, sentence: str) -> None:
    """Fail with a sentence unless a condition holds (``assert`` is dropped by ``python -O``)."""
    if not condition:
        raise AssertionError(sentence)


def expect_equal(found: object, wanted: object, what: str) -> None:
    """Fail unless something is as it must be."""
    expect(found == wanted, f"{what}: {_shown(found)} instead of {_shown(wanted)}")


@contextmanager
def expect_error(kind: type[BaseException] | tuple[type[BaseException], ...], what: str, *words: str) -> Iterator[None]:
    """Fail unless the block raises an error of a kind whose message has all the words."""
    names = " or ".join(one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,)))
    try:
        yield
    except kind as error:
        missing = [word for word in words if word not in str(error)]
        expect(not missing, f"{what}: the error does not name {', '.join(missing)}: {_shown(str(error))}")
    except HyperRuntimeError as error:
        if isinstance(error, UnsupportedOptionError):
            raise
        raise AssertionError(f"{what}: {type(error).__name__} instead of {names}: {error}") from error
    else:
        raise AssertionError(f"{what}: no error, where {names} is due")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"
