"""Run directories with contents of the test's choice, for pages about them."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hyperruntime.gateway.log.budget import Spent
from hyperruntime.loop.run_files.layout import AGENT_OUTPUT, CHAT_HISTORY, LOG, PATCH, Layout
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.run_files.parent_rules import GenId
from hyperruntime.loop.run_files.record import GenerationRecord, record_to_json
from hyperruntime.option_fields import to_json
from hyperruntime.rollout.models import ModelOptions
from hyperruntime.rollout.run.options import RolloutOptions
from hyperruntime.rollout.run_files.record import Segment, Trajectory
from hyperruntime.rollout.run_files.run_dir import TRAJECTORIES, to_line, write_run
from tests.unit.agents.llmtemplate import imported

DIFF = """diff --git a/task_agent.py b/task_agent.py
--- a/task_agent.py
+++ b/task_agent.py
@@ -1,3 +1,3 @@ def forward
 kept
-old {number}
+new {number}
"""


@cache
def agent_history() -> str:
    """Return a chat history as the shipped agent ``llm`` writes it; ``NUMBER`` is in it."""
    with imported(only=["history"]) as agent, tempfile.TemporaryDirectory() as folder:
        history = agent.history.History(Path(folder, "chat.md"))
        history.add("System (m)", "You improve agents.")
        history.add("Model", "I look first.")
        history.call("bash", {"command": "cat task_agent.py"})
        history.result("bash", "## not a heading\n```\nold NUMBER")
        history.add("Model", "I change line NUMBER.")
        return Path(folder, "chat.md").read_text()


def plain(number: int) -> dict[str, str]:
    return {
        "diff": DIFF.format(number=number),
        "history": agent_history().replace("NUMBER", str(number)),
        "log": f"== start\ngeneration {number}\n",
        "detail": "",
        "task": "n08",
        "answer": json.dumps([[0.1 + 0.25 * (k % 4), 0.1 + 0.5 * (k // 4), 0.1] for k in range(8)]),
    }


def loop_run(
    folder: Path,
    count: int,
    texts: Callable[[int], Mapping[str, str]] = plain,
    *,
    with_files: bool = True,
    made: int | None = None,
) -> Path:
    """Write a run of the loop with so many generations; every seventh failed.

    Args:
        folder: the run directory, which must not exist.
        count: generations that the run wants.
        texts: what a generation says, see :func:`plain`.
        with_files: whether generations have their directories.
        made: number of finished generations; None means all. :func:`grow` adds more.
    """
    layout = Layout(folder)
    folder.mkdir(parents=True)
    options = GenerateOptions(domains="circle_packing", max_generation=max(0, count - 1), seed=5)
    layout.run.write_text(json.dumps({"options": to_json(options), "seed": 5}))
    layout.journal.touch()
    grow(folder, count, range(count if made is None else made), texts, with_files=with_files)
    used = {"usage": {"input_tokens": 10, "output_tokens": 2}, "money": 0.5, "duration_s": 1.0}
    layout.exchanges.write_text(json.dumps({"sent_as": "small", **used}) + "\n")
    return folder


def grow(
    folder: Path,
    count: int,
    numbers: Sequence[int],
    texts: Callable[[int], Mapping[str, str]] = plain,
    *,
    with_files: bool = True,
) -> None:
    """Finish generations of a run that :func:`loop_run` began, in the given order.

    Args:
        folder: the run directory.
        count: generations that the run wants.
        numbers: the generations.
        texts: as for :func:`loop_run`.
        with_files: as for :func:`loop_run`.
    """
    layout, lines = Layout(folder), []
    made = _records(count, texts) if numbers else []
    for number in numbers:
        record, said = made[number]
        lines.append(json.dumps(record_to_json(record)) + "\n")
        if with_files:
            shown = None if record.failure else record.score
            _generation_files(layout.generation(record.genid), said, shown)
    with layout.journal.open("a") as file:
        file.write("".join(lines))


def _records(
    count: int, texts: Callable[[int], Mapping[str, str]]
) -> list[tuple[GenerationRecord, Mapping[str, str]]]:
    chance, score, made = random.Random(7), 0.2, []
    for number in range(count):
        said = texts(number)
        score = min(0.99, score + chance.random() * 3 / count)
        shown = score - chance.random() * 0.1
        is_failed = number % 7 == 3
        record = GenerationRecord(
            genid="initial" if number == 0 else number,
            parent=_parent(number, chance),
            score=None if is_failed else shown,
            scores={} if is_failed else {"circle_packing": {"train": shown + 0.01, "val": shown}},
            valid_parent=not is_failed,
            failure="agent" if is_failed else None,
            detail=said["detail"] or ("the meta agent ended with exit code 1" if is_failed else ""),
            durations={"meta agent": 3.0 + chance.random(), "evaluate": 10 * chance.random()},
            started=f"2026-11-{1 + number // 1440 % 28:02}T{number // 60 % 24:02}:{number % 60:02}:00+00:00",
            usage=Spent(requests=3, input_tokens=1000 + number, output_tokens=100, money=0.01),
        )
        made.append((record, said))
    return made


def _parent(number: int, chance: random.Random) -> GenId | None:
    if number < 3:
        return None if number == 0 else "initial"
    return chance.randrange(max(1, number - 40), number)


def _generation_files(folder: Path, said: Mapping[str, str], score: float | None) -> None:
    (folder / AGENT_OUTPUT).mkdir(parents=True)
    (folder / AGENT_OUTPUT / PATCH).write_text(said["diff"])
    (folder / AGENT_OUTPUT / CHAT_HISTORY).write_text(said["history"])
    (folder / LOG).write_text(said["log"])
    if score is not None:
        place = folder / "circle_packing_eval"
        (place / "agent_evals").mkdir(parents=True)
        (place / "agent_evals" / "n08.md").write_text(said["history"])
        facts = {"score": score, "valid": True, "detail": said["detail"] or "sum of radii"}
        (place / "report.json").write_text(json.dumps({"tasks": {said["task"]: facts}}))
        answer = {"task_id": said["task"], "prediction": json.loads(said["answer"])}
        (place / "predictions.jsonl").write_text(json.dumps(answer) + "\n")


def rollout_run(
    folder: Path, items: int, group_size: int, text: Callable[[int], str] = "answer {}".format
) -> Path:
    """Write a rollout run; the last trajectory of each group failed.

    Args:
        folder: the run directory, which must not exist.
        items: number of items.
        group_size: trajectories of each.
        text: what the model says in a trajectory.
    """
    chance = random.Random(7)
    folder.mkdir(parents=True)
    model = ModelOptions(
        name="small", base_url="http://127.0.0.1:9/v1", input_price=4.0, output_price=10.0
    )
    options = RolloutOptions(environment="swe", group_size=group_size, seed=5, model=model)
    write_run(folder, {"created": 0.0, "options": to_json(options)})
    with (folder / TRAJECTORIES).open("wb") as file:
        for number in range(items * group_size):
            file.write(to_line(_trajectory(number, group_size, text(number), chance)))
    return folder


def _trajectory(number: int, group_size: int, said: str, chance: random.Random) -> Trajectory:
    item, index = divmod(number, group_size)
    is_scored = index < group_size - 1
    call: dict[str, Any] = {
        "id": "c1",
        "function": {"name": "bash", "arguments": json.dumps({"command": said})},
    }
    return Trajectory(
        id=f"item {item}/{index}",
        item_id=f"item {item}",
        index=index,
        environment="swe",
        model="small",
        status="scored" if is_scored else "infrastructure",
        reward=chance.random() if is_scored else None,
        verdict={"phase": "tests", "detail": said},
        error=None if is_scored else {"kind": "NodeLostError", "message": said, "phase": "tools"},
        stop_reason="finished",
        turns=2,
        tool_calls=1,
        messages=(
            {"role": "system", "content": "You repair code."},
            {"role": "user", "content": f"repair item {item}"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": said},
            {"role": "assistant", "content": said},
        ),
        usage={"prompt_tokens": 100, "completion_tokens": 10},
        timing={"model_s": 1.0, "tools_s": 0.5, "total_s": 2.0},
        segments=(Segment(ids=(1, 2, 3, 4), mask=(0, 0, 1, 1), logprobs=(None, None, -0.1, -5.0)),),
        started_at=1_795_000_000.0 + number,
    )
