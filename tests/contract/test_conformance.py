"""The conformance suite passes on the fake driver and detects drivers that break a promise."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import attrs
import pytest

from hyperruntime.errors import SpecError
from hyperruntime.testing import FakeDriver
from hyperruntime.testing.conformance import (
    CHECKS,
    Check,
    CheckResult,
    Context,
    Load,
    Measurement,
    open_context,
    run_check,
    run_checks,
    select_checks,
)
from hyperruntime.testing.conformance.load import QUIET
from tests.contract import faulty_drivers as faulty

# for the fake driver too: its features differ between root and other users
pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def fake() -> Iterator[Context]:
    """The fake driver, opened once for all checks."""
    with open_context(FakeDriver()) as opened:
        yield opened


@pytest.fixture(scope="module")
def results(fake: Context) -> dict[str, CheckResult]:
    """The results of all checks on the fake driver; ``hyperrun selfcheck`` runs them on an
    engine.
    """
    return {result.name: result for result in run_checks(fake, select_checks())}


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKS)
def test_the_fake_driver_keeps_every_promise_or_refuses_as_declared(
    results: dict[str, CheckResult], name: str
) -> None:
    result = results[name]
    assert result.outcome != "fail", f"{result.sentence}: {result.detail}"


@pytest.mark.slow
def test_results_come_in_the_order_of_the_checks(results: dict[str, CheckResult]) -> None:
    assert list(results) == list(CHECKS)


LOADED = attrs.evolve(QUIET, start_median_s=QUIET.start_median_s * 100)
# A driver, the check that must fail, and words of its detail.
FAULTS: list[tuple[type[FakeDriver], str, str]] = [
    (faulty.IgnoresMemoryLimit, "limits.memory", "300 MiB"),
    (faulty.IgnoresMemoryLimit, "limits.watchdog", "300 MiB"),
    (faulty.IgnoresGpus, "spec.gpus", "/dev/hyperruntime0 is missing"),
    (faulty.ClaimsModesAndFilter, "isolation.file-modes", "what root reads of a closed file"),
    (faulty.ClaimsModesAndFilter, "isolation.seccomp", "the seccomp mode of a command"),
    (faulty.IgnoresMounts, "spec.mounts", "read-only mount was written to"),
    (
        faulty.HidesTerminals,
        "terminal.size",
        "the driver does not declare that it refuses terminal",
    ),
    (faulty.DeniesTerminals, "terminal.size", "declares that it refuses terminal, but it does not"),
    (faulty.HasNetwork, "network.none", "interfaces"),
    (faulty.LeaksHostEnvironment, "isolation.no-host-environment", "a variable of the host"),
    (faulty.ShowsTemporaryFiles, "isolation.no-host-files", "the host's"),
    (faulty.IgnoresWorkdir, "spec.clear-errors", "no error"),
    (faulty.ForgetsLabels, "owner.listing", "its label"),
    (faulty.LeaksContainers, "owner.close-removes", "still listed"),
    (faulty.LeavesRecords, "owner.killed", "s still listed"),
    (faulty.NeverPrunes, "owner.prune", "pruning leaves"),
    (faulty.ClaimsBridge, "network.bridge", "does not declare"),
    (faulty.DeniesHost, "network.host", "declares that it refuses network.host, but it does not"),
    (faulty.NamesWrongField, "network.bridge", "names the field 'image', not 'network'"),
    (faulty.RefusesWithOtherError, "network.bridge", "something went wrong"),
    (faulty.FindsImagesByPrefix, "images.exact-match", "is reported to exist"),
    (faulty.RemovesLate, "owner.close-removes", "a closed container is still listed after 5 s"),
]


def run_faulty(driver: type[FakeDriver], check: str, machine: Measurement = QUIET) -> CheckResult:
    """Run a check as on a machine with the given measurements."""
    opened = driver()
    try:
        with open_context(opened, load=Load(lambda: machine)) as context:
            return run_check(context, CHECKS[check])
    finally:
        for process in getattr(opened, "leaked", ()):
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def found(
    request: pytest.FixtureRequest,
) -> Iterator[Callable[[type[FakeDriver], str], CheckResult]]:
    """Return a function that returns a faulty driver's result; the chosen checks run in
    parallel.
    """
    specs = [
        getattr(item, "callspec", None)
        for item in request.session.items
        if item.path == request.path
    ]
    chosen = [spec.params for spec in specs if spec is not None and "driver" in spec.params]
    with ThreadPoolExecutor(4) as threads:
        running = {
            (one["driver"], one["check"]): threads.submit(run_faulty, one["driver"], one["check"])
            for one in chosen
        }
        yield lambda driver, check: running[driver, check].result()


QUICK = {
    "limits.watchdog",
    "spec.mounts",
    "network.none",
    "owner.listing",
    "owner.close-removes",
    "images.exact-match",
}


@pytest.mark.parametrize(
    ("driver", "check", "words"),
    [pytest.param(*fault, marks=() if fault[1] in QUICK else pytest.mark.slow) for fault in FAULTS],
)
def test_a_driver_that_breaks_a_promise_fails_that_check(
    found: Callable[[type[FakeDriver], str], CheckResult],
    driver: type[FakeDriver],
    check: str,
    words: str,
) -> None:
    result = found(driver, check)
    assert (result.outcome, words in result.detail) == ("fail", True), result


def test_a_driver_that_is_slow_only_on_a_loaded_machine_keeps_its_promise() -> None:
    result = run_faulty(faulty.RemovesLate, "owner.close-removes", LOADED)
    assert result.outcome == "pass", result


def test_a_check_that_hangs_fails_at_its_deadline(fake: Context) -> None:
    gate = threading.Event()

    def wait(_: Context) -> None:
        gate.wait(60)

    hangs = Check(name="test.hangs", sentence="It ends", run=wait, deadline_s=0.2)
    result = run_check(fake, hangs)
    gate.set()
    assert (result.outcome, result.detail) == ("fail", "TimeoutError: it did not end within 0.2 s")
    assert result.duration_s < 60


def test_any_error_in_a_check_is_a_failure_in_one_line(fake: Context) -> None:
    def broken(_: Context) -> None:
        raise ValueError("two\nlines")

    result = run_check(fake, Check(name="test.broken", sentence="It works", run=broken))
    assert (result.outcome, result.detail) == ("fail", "ValueError: two lines")


def test_a_shared_container_is_replaced_after_a_failed_check(fake: Context) -> None:
    def breaks(context: Context) -> None:
        context.container.close()
        context.container.exec(["true"])

    assert (
        run_check(fake, Check(name="test.breaks", sentence="It works", run=breaks)).outcome
        == "fail"
    )
    assert run_check(fake, CHECKS["exec.argv"]).outcome == "pass"


def test_checks_are_selected_by_name_pattern_or_family() -> None:
    assert [check.name for check in select_checks("exec.argv")] == ["exec.argv"]
    assert select_checks("exec") == select_checks("exec.*")
    assert len(select_checks()) == len(CHECKS)
    with pytest.raises(SpecError, match=r"did you mean 'exec\.argv'"):
        select_checks("exec.arg")


def test_every_check_has_its_own_sentence() -> None:
    for check in CHECKS.values():
        assert check.sentence[:1].isupper(), check.name
        assert len(check.sentence) > 20, check.name
    assert len({check.sentence for check in CHECKS.values()}) == len(CHECKS)
