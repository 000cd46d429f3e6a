"""The plots of a run that a signal ended are left out if they take too long; the next step is shown
in every case.
"""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hyperruntime.cli.loop import report
from hyperruntime.cli.loop.report import plots_at_end
from hyperruntime.errors import StorageError

OPTIONS = cast(Any, SimpleNamespace(optimize_option="best"))


@pytest.fixture(autouse=True)
def scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "whose_scores", lambda option: None)


@pytest.mark.parametrize("most_s", [None, 60.0])
def test_plots_that_are_drawn_in_time_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], most_s: float | None
) -> None:
    monkeypatch.setattr(report, "write_plots", lambda *_: ("a", "b"))
    plots_at_end("/r", cast(Any, [1]), OPTIONS, most_s)
    assert capsys.readouterr().err == "2 plots are in /r\nlook at it with: hyperrun report /r\n"


@pytest.mark.parametrize("most_s", [None, 60.0])
def test_plots_that_cannot_be_written_have_a_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], most_s: float | None
) -> None:
    def fail(*_: object) -> None:
        raise StorageError("no space")

    monkeypatch.setattr(report, "write_plots", fail)
    plots_at_end("/r", cast(Any, [1]), OPTIONS, most_s)
    assert capsys.readouterr().err.startswith("no plots: no space\n")


def test_plots_that_take_too_long_are_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    may_end = threading.Event()
    monkeypatch.setattr(report, "write_plots", lambda *_: may_end.wait(120) and ())
    plots_at_end("/r", cast(Any, [1]), OPTIONS, 0.05)
    may_end.set()
    assert capsys.readouterr().err == (
        "no plots: they would take too long, because the machine is busy\nlook at it with: "
        "hyperrun report /r\n"
    )
