"""The demo begins on engines that lack what its default limits ask for."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from hyperruntime.cli.command import State
from hyperruntime.cli.loop.demo import possible_limits
from hyperruntime.spec import Limits


@pytest.mark.parametrize(
    ("enforced", "pids", "said"),
    [
        ({"pids": "rlimit"}, 512, ""),
        ({"pids": "no"}, None, "apptainer limits no processes here"),
        ({}, None, "apptainer limits no processes here"),
    ],
)
def test_the_demo_asks_for_no_limit_that_the_engine_lacks(
    enforced: dict[str, str],
    pids: int | None,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    runtime: Any = SimpleNamespace(name="apptainer", info=SimpleNamespace(limits=enforced))
    state = State()
    monkeypatch.setattr(state, "open_runtime", lambda: nullcontext(runtime))
    limits = Limits(pids=512, disk_bytes=10**9)
    found = possible_limits(state, limits)
    assert (found.pids, found.disk_bytes) == (pids, 10**9)
    assert said in capsys.readouterr().err
