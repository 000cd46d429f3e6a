"""The time limits of engine calls grow with the latency that was measured, up to a bound."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hyperruntime.errors import EngineError
from hyperruntime.host import engine_limits
from hyperruntime.host.engine_limits import (
    LIMITS,
    engine_call,
    forget_delays,
    limit_s,
    note_duration,
)

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Set the clock, on a machine that is not overloaded."""
    clock = [1000.0]
    forget_delays()
    monkeypatch.setattr(engine_limits, "overload", lambda: 1.0)
    monkeypatch.setattr("hyperruntime.host.engine_limits.time.monotonic", lambda: clock[0])
    yield clock
    forget_delays()


def test_a_quick_engine_has_the_limits_of_the_table() -> None:
    for verb, limit in LIMITS.items():
        note_duration("podman", verb, limit.usual_s)
    assert {verb: limit_s("podman", verb) for verb in LIMITS} == {
        verb: limit.base_s for verb, limit in LIMITS.items()
    }


def test_a_slow_call_raises_all_limits_of_its_engine_for_ten_minutes(now: list[float]) -> None:
    note_duration("podman", "remove", LIMITS["remove"].usual_s + 10)
    assert limit_s("podman", "close") == LIMITS["close"].base_s + 30
    assert limit_s("docker", "close") == LIMITS["close"].base_s
    assert limit_s("", "close") == LIMITS["close"].base_s + 30
    now[0] += 599
    assert limit_s("podman", "close") == LIMITS["close"].base_s + 30
    now[0] += 2
    assert limit_s("podman", "close") == LIMITS["close"].base_s


def test_a_limit_has_an_upper_bound_and_an_overloaded_machine_gets_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_limits, "overload", lambda: 3.0)
    assert limit_s("podman", "close") == 3 * LIMITS["close"].base_s
    note_duration("podman", "call", 10_000)
    assert all(limit_s("podman", verb) == limit.most_s for verb, limit in LIMITS.items())


def test_a_call_that_ran_into_its_limit_counts_as_slow_and_is_an_error_that_says_so(
    now: list[float],
) -> None:
    def slow() -> None:
        with engine_call("podman", "remove") as timeout_s:
            now[0] += timeout_s
            raise TimeoutError("podman ran past it")

    with pytest.raises(
        EngineError,
        match=r"podman did not finish the removal of a container within 300 s; .*doctor",
    ):
        slow()
    assert limit_s("podman", "remove") > 1000


def test_the_table_of_the_documentation_is_the_table() -> None:
    page = (ROOT / "docs" / "engines.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\d+) s \| (\d+) s \| (.*) \|$", page, re.MULTILINE)
    assert {verb: (float(base), float(most), passed) for verb, base, most, passed in rows} == {
        verb: (limit.base_s, limit.most_s, limit.passed) for verb, limit in LIMITS.items()
    }
