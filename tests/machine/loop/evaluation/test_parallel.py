"""Parallel work on many items: the order of the results, and the effect of an error."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hyperruntime.concurrency.parallel_map import parallel_map
from hyperruntime.git.command import git
from hyperruntime.loop.run.plan import plan_run
from hyperruntime.loop.run.run import start_run
from hyperruntime.loop.run_files.options import GenerateOptions
from tests.doubles.fake_runtime import FakeRuntime, make_agent_repository

MEET = """
import os, time, uuid

class TaskAgent:
    def __init__(self, model=None, chat_history_file=None):
        open(os.path.join({folder!r}, uuid.uuid4().hex), "w").close()

    def forward(self, inputs):
        for _ in range(6000):
            if len(os.listdir({folder!r})) >= 3:
                return "low", []
            time.sleep(0.01)
        raise TimeoutError("alone")
"""


def test_results_keep_the_order_of_the_items() -> None:
    all_begun = threading.Barrier(4, timeout=120)
    assert parallel_map(4, lambda item: (all_begun.wait(), item)[1], [3, 1, 2, 0]) == (3, 1, 2, 0)


def test_one_worker_runs_in_the_calling_thread() -> None:
    assert (
        parallel_map(1, lambda _: threading.current_thread(), [1, 2])
        == (threading.current_thread(),) * 2
    )


def test_an_error_stops_items_that_have_not_started() -> None:
    begun: list[int] = []
    failed = threading.Event()

    def work(item: int) -> None:
        begun.append(item)
        if item == 0:
            failed.set()
            raise ValueError("the first")
        failed.wait(120)
        time.sleep(0.05)  # all items would take seconds

    with pytest.raises(ValueError, match="the first"):
        parallel_map(2, work, range(100))
    assert len(begun) < 100


def test_the_error_of_a_call_is_raised_and_not_that_of_a_call_that_then_did_not_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Event(threading.Event):
        """The thread that takes the first item asks whether a call has failed after the second one
        has.
        """

        def is_set(self) -> bool:
            if threading.current_thread().name.endswith("_0"):
                self.wait(120)
            return super().is_set()

    monkeypatch.setattr(
        "hyperruntime.concurrency.parallel_map.threading", SimpleNamespace(Event=Event)
    )

    def work(item: int) -> None:
        raise ValueError(item)

    with pytest.raises(ValueError, match="1"):
        parallel_map(2, work, range(2))


@pytest.mark.parametrize("domain", ["table", "polyglot", "babyai"])
def test_tasks_that_mostly_wait_run_in_parallel(domain: str, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    agent = make_agent_repository(tmp_path / "agent")
    (agent / "task_agent.py").write_text(MEET.format(folder=str(tmp_path / "here")))
    git(["-C", str(agent), "commit", "-q", "-a", "-m", "meets others"])
    options: dict[str, Any] = {
        "eval_samples": (3,),
        "eval_workers": 3,
        "skip_staged_eval": True,
        "max_generation": 0,
    }
    made = GenerateOptions(
        domains=domain, agent=str(agent), run_id="r", output_dir_parent=str(tmp_path), **options
    )
    (record,) = start_run(FakeRuntime(), plan_run(made)).generations
    assert record.failure is None
    (folder,) = (tmp_path / "generate_r/gen_initial").glob("*_eval")
    assert "alone" not in (folder / "predictions.jsonl").read_text()
