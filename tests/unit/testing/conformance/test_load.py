"""The load of a machine and its time bounds, with simulated measurements."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import attrs
import pytest

from hyperruntime.testing.conformance.load import (
    MAX_FACTOR,
    QUIET,
    Load,
    Measurement,
    load_factor,
    measure_load,
)


def slower(times: float, *fields: str) -> Measurement:
    """Return the measurement of a quiet machine with some fields multiplied."""
    return attrs.evolve(QUIET, **{field: getattr(QUIET, field) * times for field in fields})


def measured_in_turn(*factors: float) -> Callable[[], Measurement]:
    found: Iterator[Measurement] = iter([slower(factor, "start_median_s") for factor in factors])
    return lambda: next(found)


def test_a_quiet_machine_has_the_factor_1() -> None:
    assert load_factor(QUIET) == 1
    assert load_factor(slower(0.01, *attrs.fields_dict(Measurement))) == 1


@pytest.mark.parametrize("field", attrs.fields_dict(Measurement))
def test_each_slower_operation_raises_the_factor(field: str) -> None:
    assert load_factor(slower(3, field)) == pytest.approx(3)


def test_the_slowest_operation_decides_and_the_factor_has_a_maximum() -> None:
    both = attrs.evolve(slower(2, "start_median_s"), write_worst_s=QUIET.write_worst_s * 5)
    assert load_factor(both) == pytest.approx(5)
    assert load_factor(slower(1e6, "late_worst_s")) == MAX_FACTOR


def test_a_bound_is_the_strict_bound_times_the_factor() -> None:
    assert Load(lambda: QUIET).bound(5) == 5
    assert Load(measured_in_turn(4)).bound(5) == pytest.approx(20)


def test_a_duration_within_its_bound_needs_no_second_measurement() -> None:
    assert Load(measured_in_turn(1)).allows(4.9, 5)


def test_a_slow_operation_fails_if_the_machine_is_still_quiet() -> None:
    assert not Load(measured_in_turn(1, 1)).allows(5.1, 5)


def test_a_load_that_began_later_counts() -> None:
    assert Load(measured_in_turn(1, 2)).allows(9.9, 5)
    assert not Load(measured_in_turn(1, 2)).allows(10.1, 5)


def test_a_load_that_ended_still_counts() -> None:
    load = Load(measured_in_turn(3, 1))
    load.measure_again()
    assert load.factor == pytest.approx(3)


def test_a_wait_ends_at_its_bound_or_continues_while_the_load_grows() -> None:
    started = time.monotonic()
    assert not Load(measured_in_turn(1, 1)).wait_until(lambda: False, 0.05, 0.01)
    assert time.monotonic() - started >= 0.05
    calls: list[float] = []

    def late(timeout_s: float) -> bool:
        calls.append(timeout_s)
        return len(calls) == 3

    assert Load(measured_in_turn(1, 2, 3)).wait(late, 10)
    assert [round(timeout_s) for timeout_s in calls] == [10, 20, 30]


def test_the_description_states_the_measured_load() -> None:
    assert (
        str(Load(measured_in_turn(1))) == "this machine is quiet: time bounds are the strict ones"
    )
    load = Load(measured_in_turn(1.5, 4))
    assert str(load) == "this machine is loaded or slow: time bounds are 1.5 times the strict ones"
    load.measure_again()
    assert str(load).endswith("time bounds are 4.0 times the strict ones (1.5 times at the start)")


def test_this_machine_can_be_measured() -> None:
    measured = measure_load()
    assert all(value >= 0 for value in attrs.astuple(measured))
    assert measured.start_median_s > 0
