"""Run checks, each with its own deadline. Every check has a result; there are no skipped checks."""

from __future__ import annotations

import fnmatch
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import attrs

from hyperruntime.errors import SpecError, UnsupportedOptionError, name_hint
from hyperruntime.testing.conformance.capability import declares_refusal, refused_field
from hyperruntime.testing.conformance.check import CHECKS, Check
from hyperruntime.testing.conformance.context import Context

Outcome = Literal["pass", "refused", "fail"]


@attrs.frozen(kw_only=True)
class CheckResult:
    """The result of a check.

    Attributes:
        name: name of the check.
        sentence: promise of the check.
        outcome: ``pass``, ``refused`` (as the driver declares) or ``fail``.
        detail: why the check failed, or how the driver refused; "" for a pass.
        duration_s: duration of the check, in seconds.
    """

    name: str
    sentence: str
    outcome: Outcome
    detail: str
    duration_s: float


def select_checks(pattern: str = "*") -> tuple[Check, ...]:
    """Return the checks whose name matches a shell pattern, or whose family (``exec``) is the pattern.

    Raises:
        SpecError: no check matches.
    """
    chosen = tuple(c for c in CHECKS.values() if fnmatch.fnmatch(c.name, pattern) or c.name.startswith(f"{pattern}."))
    if not chosen:
        raise SpecError(
            "--only", pattern, f"a check's name or a pattern such as 'exec.*'; {name_hint(pattern, CHECKS)}"
        )
    return chosen


def run_checks(context: Context, checks: Iterable[Check]) -> Iterator[CheckResult]:
    """Yield the result of each check when it ends; checks with ``waits`` run in parallel and come last.

    Args:
        context: the runtime under test.
        checks: the checks to run.
    """
    chosen = tuple(checks)
    with ThreadPoolExecutor(2, thread_name_prefix="check") as beside:
        waiting = [beside.submit(run_check, context, one) for one in chosen if one.waits]
        for one in chosen:
            if not one.waits:
                yield run_check(context, one)
        for future in waiting:
            yield future.result()


def run_check(context: Context, one: Check) -> CheckResult:
    """Run a check until it ends or its deadline passes; after a failure, the shared container is replaced.

    Args:
        context: the runtime under test.
        one: the check.
    """
    started = time.monotonic()
    ended: list[BaseException | None] = []

    def run() -> None:
        try:
            one.run(context)
            ended.append(None)
        except BaseException as error:  # noqa: BLE001 - any error at all is a failed check
            ended.append(error)

    thread = threading.Thread(target=run, name=f"check {one.name}", daemon=True)
    thread.start()
    thread.join(one.deadline_s)
    late = TimeoutError(f"it did not end within {one.deadline_s:g} s")
    outcome, detail = judge(context, one, ended[0] if ended else late)
    if outcome == "fail":
        context.renew()
    return CheckResult(
        name=one.name,
        sentence=one.sentence,
        outcome=outcome,
        detail=detail,
        duration_s=time.monotonic() - started,
    )


def judge(context: Context, one: Check, error: BaseException | None) -> tuple[Outcome, str]:
    """Return the outcome of a check and its detail, given what the driver declares.

    Args:
        context: the runtime under test.
        one: the check.
        error: the error that ended it, or None.
    """
    declared = bool(one.needs) and declares_refusal(context.info, one.needs)
    if isinstance(error, UnsupportedOptionError):
        field = refused_field(one.needs)
        if not declared:
            return "fail", f"refused, but the driver does not declare that it refuses {one.needs or 'this'}: {error}"
        if error.field != field:
            return "fail", f"the refusal names the field {error.field!r}, not {field!r}: {error}"
        return "refused", str(error)
    if declared:
        return (
            "fail",
            f"the driver declares that it refuses {one.needs}, but it does not: {_one_line(error) or 'it works'}",
        )
    return ("pass", "") if error is None else ("fail", _one_line(error))


def _one_line(error: BaseException | None) -> str:
    if error is None:
        return ""
    text = " ".join(str(error).split())
    return text if isinstance(error, AssertionError) else f"{type(error).__name__}: {text}"
