"""Benchmark of rollouts: a thousand trajectories of a scripted model, and our share of their time.

The model and the commands take known times. The rest of a trajectory is ours: leases, command
starts, resets, records.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import hyperruntime as hr
from hyperenvironment_swe import Swe
from hyperruntime.errors import ModelError
from hyperruntime.images.store import ImageStore
from hyperruntime.rollout.environment import Fresh, Item, Outcome, Verdict
from hyperruntime.rollout.models import ModelOptions
from hyperruntime.rollout.run.options import PoolOptions, RolloutOptions
from hyperruntime.rollout.run.runner import Parts, run_rollouts
from hyperruntime.rollout.run.summary import RolloutSummary
from hyperruntime.rollout.run_files.turn_journal import JournalDirectory, TurnJournal
from hyperruntime.runtime import Runtime
from hyperruntime.sandbox import Sandbox
from tests.bench.measure import Row, in_turn, seconds
from tests.doubles import words
from tests.doubles.scripted_rollouts import ScriptedModel
from tests.swecase import bash, judge_all, make_repository, make_site, with_site, write_rows

GROUP, PARALLEL, COMMANDS = 8, 16, 4
TESTS = 50
JOURNALED = 1000
MODEL_S, COMMAND_S = 0.5, 0.5
THEIRS_S = (COMMANDS + 1) * MODEL_S + COMMANDS * COMMAND_S


class Counting:
    """An environment whose agent must write one line per command."""

    name = "counting"

    def __init__(self, items: int, slots_per_container: int | None) -> None:
        self.slots_per_container = slots_per_container
        self._items = items

    def items(self) -> Iterable[Item]:
        return [Item(id=f"i{number}") for number in range(self._items)]

    def spec(self, item: Item, base: hr.ContainerSpec, images: ImageStore) -> hr.ContainerSpec:
        return base

    async def setup(self, item: Item, lease: Sandbox) -> Mapping[str, Any]:
        (await lease.exec(["sh", "-c", "echo begun >log"])).check()
        return {}

    def messages(self, item: Item, meta: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        return [{"role": "user", "content": "count"}]

    async def verify(
        self, item: Item, outcome: Outcome, lease: Sandbox, fresh: Fresh, meta: Mapping[str, Any]
    ) -> Verdict:
        lines = (await lease.exec(["cat", "log"])).check().stdout.count(b"\n")
        return Verdict(reward=float(lines == COMMANDS + 1))


def count(turn: int, seed: int) -> str | None:
    """A command of a fixed duration, and at the end None."""
    return f"echo {turn} >>log; sleep {COMMAND_S}" if turn < COMMANDS else None


def trajectory_rows(runtime: Runtime, image: str, trajectories: int) -> list[Row]:
    """Measure trajectories, sixteen at once, with ten slots per container if the engine has users,
    else one.
    """
    slots = 10 if runtime.info.users else 1
    summary = asyncio.run(_run(runtime, image, trajectories // GROUP, slots))
    spent = summary.phases["total_s"] / (trajectories // GROUP * GROUP)
    ours = (spent - THEIRS_S) / spent
    ideal = 60 * PARALLEL / THEIRS_S
    where = "ten slots a container" if slots > 1 else "a container each"
    return [
        Row(
            what=f"trajectories of {COMMANDS} commands, {PARALLEL} at once, {where}",
            value=summary.per_minute,
            unit="/min",
            compared_to=f"the model's and commands' own time alone: {ideal:.0f}/min",
            ratio=summary.per_minute / ideal,
        ),
        Row(
            what=f"of {trajectories} trajectories' time, what is ours",
            value=ours * 100,
            unit="%",
            compared_to=f"{spent:.2f} s each, {THEIRS_S:.2f} s of it the model's and commands'",
            wanted="under 10 %",
            holds=ours < 0.1,
        ),
        Row(
            what="processor time of ours, for each trajectory",
            value=summary.cpu_s / summary.scored * 1e3,
            unit="ms",
        ),
    ]


def down_rows(runtime: Runtime, image: str) -> list[Row]:
    """Measure how soon a run ends whose model server is down: nobody listens, or no packet is
    answered.
    """
    rows = []
    for what, url in (
        ("is refused", "http://127.0.0.1:9/v1"),
        ("is never answered", "http://192.0.2.1/v1"),
    ):
        options = RolloutOptions(environment="counting", model=ModelOptions(name="m", base_url=url))

        def run(options: RolloutOptions = options) -> None:
            with contextlib.suppress(ModelError):
                asyncio.run(run_rollouts(runtime, options, parts=Parts(environment=Counting(1, 1))))

        took = seconds(run)
        rows.append(
            Row(
                what=f"until a run says that its model server is down, where a connection {what}",
                value=took,
                unit="s",
                compared_to="retries of one request: "
                f"{ModelOptions(name='m', base_url=url).patience_s:.0f} s",
                wanted="under 10 s, before any container",
                holds=took < 10
                and not any(found.owner.pid == os.getpid() for found in runtime.containers()),
            )
        )
    return rows


def journal_rows(runtime: Runtime, image: str) -> list[Row]:
    """Measure what the journal of turns costs a trajectory, where neither the model nor a container
    takes time.
    """
    opening = JournalDirectory.open

    async def in_memory(directory: JournalDirectory, trajectory_id: str) -> TurnJournal:
        return TurnJournal()

    def run(opened: Callable[..., Any]) -> None:
        JournalDirectory.open = opened  # type: ignore[method-assign]
        try:
            with tempfile.TemporaryDirectory() as folder:
                words.rollouts(
                    words.Boxes(), words.Adder(), Path(folder, "run"), world=words.Words(JOURNALED)
                )
        finally:
            JournalDirectory.open = opening  # type: ignore[method-assign]

    spent = in_turn({"with": lambda: run(opening), "without": lambda: run(in_memory)}, 3)
    entries = 2 * words.COMMANDS + 1
    return [
        Row(
            what=f"trajectories of {entries} journaled turns and tool calls, of a model and "
            "containers without delay",
            value=JOURNALED / spent["with"],
            unit="/s",
            compared_to=f"without files of the journal: {JOURNALED / spent['without']:.0f}/s",
            ratio=spent["without"] / spent["with"],
        ),
        Row(
            what="for each turn and tool call, what the journal costs",
            value=(spent["with"] - spent["without"]) / JOURNALED / entries * 1e3,
            unit="ms",
        ),
    ]


def judging_rows(runtime: Runtime, image: str) -> list[Row]:
    """Measure a trajectory of `swe` with small tests of pytest, each in its own process or all in
    one.
    """
    tests = "import odd\n" + "".join(
        f"def test_{n}():\n    assert odd.half({n}) == {n / 2}\n" for n in range(TESTS)
    )
    agent = {"agent": bash("sed -i s,//,/, odd/__init__.py")}
    with tempfile.TemporaryDirectory() as name:
        where = Path(name)
        files = {"odd/__init__.py": "def half(n):\n    return n // 2\n", "tests/test_odd.py": tests}
        row: dict[str, Any] = {
            "id": "odd",
            "base_commit": make_repository(where / "odd", files),
            "problem_statement": "halve",
        }
        row |= {
            "repo": str(where / "odd"),
            "FAIL_TO_PASS": [f"tests/test_odd.py::test_{n}" for n in range(TESTS)],
        }
        rows, cache = write_rows(where / "rows.jsonl", row), str(where / "cache")
        base = with_site(hr.ContainerSpec(image=image), make_site(where / "site"))

        def judge(per_process: int) -> Callable[[], object]:
            environment = Swe(items=rows, cache_dir=cache, tests_per_process=per_process)
            return lambda: asyncio.run(judge_all(runtime, base, environment, agent))

        spent = in_turn({"apart": judge(1), "together": judge(TESTS)}, 3)
    return [
        Row(
            what=f"for each of {TESTS} small tests of pytest that `swe` judges, what a process "
            "of its own costs",
            value=(spent["apart"] - spent["together"]) / TESTS * 1e3,
            unit="ms",
            compared_to=f"the trajectory: {spent['apart']:.1f} s; all in one process "
            f"{spent['together']:.1f} s",
            ratio=spent["apart"] / spent["together"],
        )
    ]


async def _run(runtime: Runtime, image: str, items: int, slots: int) -> RolloutSummary:
    options = RolloutOptions(
        environment="counting",
        group_size=GROUP,
        parallel=PARALLEL,
        container=hr.ContainerSpec(image=image),
        pool=PoolOptions(slots_per_container=slots),
        tools=("bash",),
        seed=1,
    )
    parts = Parts(environment=Counting(items, slots), model=ScriptedModel(count, thinks_s=MODEL_S))
    with tempfile.TemporaryDirectory() as folder:
        summary = await run_rollouts(runtime, options, run_dir=Path(folder, "run"), parts=parts)
    if summary.mean_reward != 1.0 or summary.scored != items * GROUP:
        raise AssertionError(summary)
    return summary
