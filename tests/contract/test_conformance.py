"""The conformance suite on an engine and on the fake driver; and that it notices drivers that break a promise."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from hyperruntime.errors import SpecError
from hyperruntime.registry import load_driver
from hyperruntime.testing import FakeDriver
from hyperruntime.testing.conformance import CHECKS, Check, Context, open_context, run_check, select_checks
from tests.contract import faulty_drivers as faulty

ENGINE = "HYPERRUNTIME_TEST_RUNTIME"
pytestmark = pytest.mark.engine  # the fake driver too: what it can do differs between root and ordinary users


@pytest.fixture(scope="module", params=["engine", "fake"])
def context(request: pytest.FixtureRequest) -> Iterator[Context]:
    """What is tested, opened once for all checks."""
    name = request.config.getoption("--runtime", default=None) or os.environ.get(ENGINE) or "podman"
    with open_context(FakeDriver() if request.param == "fake" else load_driver(name)) as opened:
        yield opened


@pytest.mark.parametrize("name", CHECKS)
def test_every_promise_is_kept_or_refused_as_declared(context: Context, name: str) -> None:
    result = run_check(context, CHECKS[name])
    assert result.outcome != "fail", f"{result.sentence}: {result.detail}"


@pytest.mark.parametrize(
    ("driver", "check", "words"),
    [
        (faulty.IgnoresMemoryLimit, "limits.memory", "300 MiB"),
        (faulty.IgnoresMemoryLimit, "limits.watchdog", "300 MiB"),
        (faulty.IgnoresGpus, "spec.gpus", "/dev/hyperruntime0 is not there"),
        (faulty.IgnoresMounts, "spec.mounts", "read-only mount was written to"),
        (faulty.HasNetwork, "network.none", "interfaces"),
        (faulty.HandsOnEnvironment, "isolation.no-host-environment", "a variable of the host"),
        (faulty.ShowsTemporaryFiles, "isolation.no-host-files", "the host's"),
        (faulty.SwallowsMissingSource, "spec.clear-errors", "no error"),
        (faulty.ForgetsLabels, "owner.listing", "its label"),
        (faulty.LeaksContainers, "owner.close-removes", "still listed"),
        (faulty.LeavesOrphans, "owner.killed", "after 30 s still listed"),
        (faulty.NeverPrunes, "owner.prune", "pruning leaves"),
        (faulty.ClaimsBridge, "network.bridge", "does not declare"),
        (faulty.DeniesHost, "network.host", "declares that it refuses network.host, but it does not"),
        (faulty.NamesWrongField, "network.bridge", "names the field 'image', not 'network'"),
        (faulty.RefusesByAnyError, "network.bridge", "something went wrong"),
        (faulty.FindsImagesByPrefix, "images.exact-match", "is reported to exist"),
    ],
)
def test_a_driver_that_breaks_a_promise_fails_that_check(driver: type[FakeDriver], check: str, words: str) -> None:
    opened = driver()
    with open_context(opened) as context:
        result = run_check(context, CHECKS[check])
    for process in getattr(opened, "leaked", ()):
        process.kill()
        process.communicate()
    assert (result.outcome, words in result.detail) == ("fail", True), result


@pytest.fixture(scope="module")
def fake() -> Iterator[Context]:
    """The fake driver, opened."""
    with open_context(FakeDriver()) as opened:
        yield opened


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


def test_a_shared_container_that_a_failed_check_broke_is_replaced(fake: Context) -> None:
    def breaks(context: Context) -> None:
        context.container.close()
        context.container.exec(["true"])

    assert run_check(fake, Check(name="test.breaks", sentence="It works", run=breaks)).outcome == "fail"
    assert run_check(fake, CHECKS["exec.argv"]).outcome == "pass"


def test_checks_are_selected_by_name_pattern_or_family() -> None:
    assert [check.name for check in select_checks("exec.argv")] == ["exec.argv"]
    assert select_checks("exec") == select_checks("exec.*")
    assert len(select_checks()) == len(CHECKS)
    with pytest.raises(SpecError, match=r"did you mean 'exec\.argv'"):
        select_checks("exec.arg")


def test_every_check_says_what_it_promises() -> None:
    for check in CHECKS.values():
        assert check.sentence[:1].isupper(), check.name
        assert len(check.sentence) > 20, check.name
    assert len({check.sentence for check in CHECKS.values()}) == len(CHECKS)
