"""Run checks, each with its own deadline. Every check has a result; there are no skipped checks."""

from __future__ import annotations

import fnmatch
import threading
import time
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal

import attrs

from hyperruntime.errors import SpecError, UnsupportedOptionError, name_hint
from hyperruntime.testing.conformance.check import CHECKS, Check
from hyperruntime.testing.conformance.context import Context, declares_refusal, refused_field

Outcome = Literal["pass", "refused", "fail"]
WORKERS = 4


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
    """Return the checks whose name matches a shell pattern, or whose family (``exec``) is the
    pattern.

    Raises:
        SpecError: no check matches.
    """
    chosen = tuple(
        c
        for c in CHECKS.values()
        if fnmatch.fnmatch(c.name, pattern) or c.name.startswith(f"{pattern}.")
    )
    if not chosen:
        raise SpecError(
            "--only",
            pattern,
            f"a check's name or a pattern such as 'exec.*'; {name_hint(pattern, CHECKS)}",
        )
    return chosen


def run_checks(context: Context, checks: Iterable[Check]) -> Generator[CheckResult, None, None]:
    """Run checks at the same time, except those that run alone; yield their results in the given
    order.

    Args:
        context: the runtime under test.
        checks: the checks to run.
    """
    chosen = tuple(checks)
    groups = {
        when: [one for one in chosen if one.when == when] for when in ("first", "beside", "alone")
    }
    contexts = _Contexts(context)
    threads = ThreadPoolExecutor(WORKERS + len(groups["first"]), thread_name_prefix="checks")
    lonely = ThreadPoolExecutor(1, thread_name_prefix="checks")
    try:
        running = {
            one.name: threads.submit(contexts.run, one)
            for one in (*groups["first"], *groups["beside"])
        }
        others = [running[one.name] for one in groups["beside"]]
        running |= {
            one.name: lonely.submit(contexts.run_after, others, one) for one in groups["alone"]
        }
        for one in chosen:
            yield running[one.name].result()
    finally:
        for pool in (threads, lonely):
            pool.shutdown(wait=False, cancel_futures=True)


class _Contexts(threading.local):
    """Runs checks in threads, each with its own context: a failed check replaces the container of
    no other thread.
    """

    def __init__(self, context: Context) -> None:
        self._context = context.beside()

    def run(self, one: Check) -> CheckResult:
        return run_check(self._context, one)

    def run_after(self, others: Iterable[Future[CheckResult]], one: Check) -> CheckResult:
        for other in others:
            other.result()  # unlike wait(), it also returns when they are cancelled
        return self.run(one)


def run_check(context: Context, one: Check) -> CheckResult:
    """Run a check until it ends or its deadline passes; after a failure, the shared container is
    replaced.

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
    in_time = context.load.wait(lambda timeout_s: _joined(thread, timeout_s), one.deadline_s)
    late = TimeoutError(f"it did not end within {one.deadline_s:g} s")
    outcome, detail = judge(context, one, ended[0] if in_time else late)
    if outcome == "fail":
        context.renew()
    return CheckResult(
        name=one.name,
        sentence=one.sentence,
        outcome=outcome,
        detail=detail,
        duration_s=time.monotonic() - started,
    )


def _joined(thread: threading.Thread, timeout_s: float) -> bool:
    thread.join(max(0.0, timeout_s))
    return not thread.is_alive()


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
            return (
                "fail",
                "refused, but the driver does not declare that it refuses "
                f"{one.needs or 'this'}: {error}",
            )
        if error.field != field:
            return "fail", f"the refusal names the field {error.field!r}, not {field!r}: {error}"
        return "refused", str(error)
    if declared:
        return (
            "fail",
            f"the driver declares that it refuses {one.needs}, but it does not: "
            f"{_one_line(error) or 'it works'}",
        )
    return ("pass", "") if error is None else ("fail", _one_line(error))


def _one_line(error: BaseException | None) -> str:
    if error is None:
        return ""
    text = " ".join(str(error).split())
    return text if isinstance(error, AssertionError) else f"{type(error).__name__}: {text}"
