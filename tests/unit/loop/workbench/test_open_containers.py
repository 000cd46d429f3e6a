"""Commands that the end of the run's own job has ended."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from hyperruntime.loop.workbench import open_containers
from hyperruntime.loop.workbench.failures import RunInterruptedError
from hyperruntime.loop.workbench.open_containers import OpenContainers
from hyperruntime.spec import ExecResult


def test_a_command_that_sigterm_ended_just_before_the_run_is_interrupted_is_no_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runtime: Any = SimpleNamespace(info=SimpleNamespace(reclaim_args=()))
    containers = OpenContainers(runtime)
    terminated, done = (ExecResult(args=(), exit_code=code) for code in (143, 0))
    assert containers.check_ended(terminated) is terminated  # nobody interrupts the run
    monkeypatch.setattr(open_containers, "SETTLE_S", 120.0)
    threading.Timer(0.1, containers.stop).start()
    with pytest.raises(RunInterruptedError):
        containers.check_ended(terminated)
    assert containers.check_ended(done) is done
