"""A container that another process is removing is gone when our removal returns, also if the other
one fails.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hyperruntime.errors import EngineError
from hyperruntime_docker import container as module

pytest.importorskip("docker")


class Daemon:
    """Answers 409 to so many removals, as the daemon does while another removal runs; the container
    stays meanwhile.
    """

    def __init__(self, busy: int) -> None:
        self.busy, self.asked = busy, 0

    def remove_container(self, name: str, **_: object) -> None:
        from docker.errors import APIError

        self.asked += 1
        if self.asked <= self.busy:
            response: Any = SimpleNamespace(status_code=409, url="", reason="Conflict", text="")
            raise APIError("409", response, f"removal of container {name} is already in progress")

    def inspect_container(self, name: str) -> None:
        """The container is still there."""


def remove(daemon: Daemon) -> None:
    engine: Any = SimpleNamespace(api=lambda: daemon)
    module.remove(engine, "c")


def test_a_removal_is_tried_again_if_another_one_in_progress_does_not_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_REMOVAL_AGAIN_S", 0.0)
    daemon = Daemon(busy=3)
    remove(daemon)
    assert daemon.asked == 4


def test_a_removal_that_stays_in_progress_is_an_error_that_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_REMOVAL_AGAIN_S", 0.0)
    monkeypatch.setattr(module, "limit_s", lambda engine, verb: 0.1)
    with pytest.raises(EngineError, match="in progress"):
        remove(Daemon(busy=10**9))
