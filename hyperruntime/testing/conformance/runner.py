"""Run checks: each under its own deadline, with a result whatever happens. A skipped check does not exist."""

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
    """How a check ended.

    Attributes:
        name: the check's.
        sentence: its promise.
        outcome: ``pass``, ``refused`` (as the driver declares) or ``fail``.
        detail: why it failed, or how the driver refused; "" for a pass.
        duration_s: how long it took.
    """

    name: str
    sentence: str
    outcome: Outcome
    detail: str
    duration_s: float


def select_checks(pattern: str = "*") -> tuple[Check, ...]:
    """Return the checks whose name matches a shell pattern, or begins with it as a family (``exec``).

    Raises:
        SpecError: none does.
    """
    chosen = tuple(c for c in CHECKS.values() if fnmatch.fnmatch(c.name, pattern) or c.name.startswith(f"{pattern}."))
    if not chosen:
        raise SpecError(
            "--only", pattern, f"a check's name or a pattern such as 'exec.*'; {name_hint(pattern, CHECKS)}"
        )
    return chosen


def run_checks(context: Context, checks: Iterable[Check]) -> Iterator[CheckResult]:
    """Yield the result of each check as it comes; those that only wait run beside the others and come last."""
    chosen = tuple(checks)
    with ThreadPoolExecutor(2, thread_name_prefix="check") as beside:
        waiting = [beside.submit(run_check, context, one) for one in chosen if one.waits]
        for one in chosen:
            if not one.waits:
                yield run_check(context, one)
        for future in waiting:
            yield future.result()


def run_check(context: Context, one: Check) -> CheckResult:
    """Run a check to its end or its deadline."""
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
    """Return what the end of a check means, given what the driver declares."""
    declared = bool(one.needs) and declares_refusal(context.info, one.needs)
    if isinstance(error, UnsupportedOptionError):
        field = refused_field(one.needs)
        if not declared:
            return "fail", f"refused, though the driver does not declare that it refuses {one.needs or 'this'}: {error}"
        if error.field != field:
            return "fail", f"the refusal names the field {error.field!r}, not {field!r}: {error}"
        return "refused", str(error)
    if declared:
        return (
            "fail",
            f"the driver declares that it refuses {one.needs}, and does not: {_one_line(error) or 'it works'}",
        )
    return ("pass", "") if error is None else ("fail", _one_line(error))


def _one_line(error: BaseException | None) -> str:
    if error is None:
        return ""
    text = " ".join(str(error).split())
    return text if isinstance(error, AssertionError) else f"{type(error).__name__}: {text}"
