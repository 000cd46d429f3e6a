"""A removal that is late or fails is repeated, logged once and counted, and never raises."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from structlog.testing import capture_logs

from hyperruntime.errors import EngineError
from hyperruntime.host import removals as module
from hyperruntime.host.process import wait_until
from hyperruntime.host.removals import Removals


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make all waits short."""
    monkeypatch.setattr(module, "limit_s", lambda engine, verb: 0.05)
    monkeypatch.setattr(module, "_FIRST_PAUSE_S", 0.01)


class Container:
    """A container whose removals fail some times."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.attempts = list(errors), 0

    def remove(self) -> None:
        self.attempts += 1
        if self.errors:
            raise self.errors.pop(0)


def _wait(gate: threading.Event) -> None:
    gate.wait()


def late(logs: Any) -> list[str]:
    return [entry["reason"] for entry in logs if entry["event"] == "container not removed in time"]


def test_a_container_that_goes_at_once_is_not_late() -> None:
    removals, container = Removals(), Container()
    assert removals.remove("podman", "c", container.remove)
    assert (removals.late, removals.pending, container.attempts) == (0, (), 1)


def test_a_failed_removal_is_repeated_after_any_error_and_logged_once() -> None:
    removals, container = (
        Removals(),
        Container(EngineError("busy"), RuntimeError("odd"), OSError("odder")),
    )
    with capture_logs() as logs:
        removals.remove("podman", "c", container.remove)
        assert wait_until(lambda: not removals.pending, 60)
    assert (removals.late, container.attempts) == (1, 4)
    assert late(logs) == ["busy"]


def test_a_hanging_removal_returns_to_the_caller_and_ends_later() -> None:
    removals, gate = Removals(), threading.Event()
    with capture_logs() as logs:
        assert not removals.remove("podman", "c", lambda: _wait(gate))
        assert not removals.remove("podman", "c", lambda: pytest.fail("it is being removed"))
    assert removals.pending == ("c",)
    assert late(logs) == ["the engine did not finish within 0 s"]
    gate.set()
    assert wait_until(lambda: not removals.pending, 60)
    assert removals.settle() == ()


def test_the_end_tries_once_more_and_names_what_stays() -> None:
    removals, container = Removals(), Container(*[EngineError("busy")] * 99)
    removals.remove("podman", "c", container.remove)
    before = container.attempts
    assert removals.settle() == ("c",)
    assert container.attempts > before


def without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no thread start, as on a machine that has no more."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)


def test_a_removal_whose_thread_could_not_start_is_started_by_the_next_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    removals, container = Removals(), Container()
    with monkeypatch.context() as patch, capture_logs() as logs:
        without_threads(patch)
        assert not removals.remove("podman", "c", container.remove)
        assert not removals.remove("podman", "c", container.remove)
    assert (removals.late, removals.pending, container.attempts) == (1, ("c",), 0)
    assert late(logs) == ["can't start new thread"]
    assert removals.remove("podman", "c", container.remove, to_the_end=True)
    assert (removals.late, removals.pending, container.attempts) == (1, (), 1)


def test_the_end_starts_a_removal_whose_thread_could_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    removals, container = Removals(), Container()
    with monkeypatch.context() as patch:
        without_threads(patch)
        assert not removals.remove("podman", "c", container.remove)
        assert container.attempts == 0
    monkeypatch.setattr(module, "limit_s", lambda engine, verb: 60.0)
    assert removals.settle() == ()
    assert container.attempts == 1


def test_an_end_without_threads_names_what_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    removals, container = Removals(), Container()
    monkeypatch.setattr(module, "limit_s", lambda engine, verb: 60.0)
    without_threads(monkeypatch)
    assert not removals.remove("podman", "c", container.remove)
    assert removals.settle() == ("c",), "at once, because nothing is tried"
    assert container.attempts == 0


def test_a_container_that_is_removed_after_the_end_is_tried_once() -> None:
    removals, container = Removals(), Container(*[EngineError("busy")] * 99)
    removals.settle()
    assert not removals.remove("podman", "c", container.remove, to_the_end=True)
    assert removals.remove("podman", "d", Container().remove, to_the_end=True)
    assert wait_until(lambda: removals._pending["c"].is_over, 60)
    assert container.attempts == 1
