"""The domain ``genesis``: the reward by which a robot with four legs learns to move.

The agent writes ``reward.py``. ``genesis:walk``, ``genesis:back`` and ``genesis:hop`` choose what
the robot is to do, and ``genesis:walk,gpu`` trains on a GPU. Design: docs/design/loop.md#domains.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from functools import cached_property, partial
from importlib import resources
from typing import Any

import attrs

from hyperdomain_training import INSIDE, decode, inside_text, invalid, why
from hyperruntime.datasets.answered_files import parse_files
from hyperruntime.domain import DomainBase, Score, Split, Task, Trial, TrialResult, TriedDomain
from hyperruntime.errors import SpecError
from hyperruntime.host.seccomp import one_process_program

__all__ = ["Genesis"]

NAME = "genesis"
PROGRAM = "reward.py"
ROBOTS = 16
SECONDS = 10
WEIGHTS_BYTES = 4 * (45 * 128 + 128 + 128 * 64 + 64 + 64 * 12 + 12)
_FLOATS = 4  # that say what a robot did in a second
_RUNNER = "_runner.py"
_TRAIN_SECONDS = 900
_MEASURE_SECONDS = 120
_CLOCK_FACTOR = 20
_START_SECONDS = 120  # for the start of the simulator, before the limit
_SEEDS = {"train": 1, "test": 2}
_STANDS = 0.34  # the height of the trunk of a robot that stands, in metres
_STATEMENT = """\
Change reward.py so that a robot which is trained by it {goal}.

The robot is a Go2: four legs, twelve motors, 15 kg. A simulator trains {robots} of them at once, {updates} updates
of PPO with 24 steps each; a step is a fiftieth of a second. After each step, reward(robots) returns a tensor with one
number for each robot. An episode ends after 20 seconds, or when a robot fell. These are tensors with a row for each
robot: robots.velocity (3) and robots.spin (3) of the trunk, as the robot sees them: x is to the front, z is up;
robots.gravity (3), (0, 0, -1) if it is upright; robots.place (3) in the world, the third one is the height of the
trunk, about 0.3 if it stands; robots.joints (12) and robots.joint_speeds (12), from the pose of rest;
robots.action (12) and robots.last_action (12); robots.steps and robots.fell.
The legs are FR, FL, RR, RL; each has hip, thigh and calf.

Then {measured} robots move for {seconds} seconds by the trained policy, where reward.py is not.
{score}
A robot that fell gets 0 from then on. The training has {limit} processor seconds and may not start processes.
"""


@attrs.frozen
class _Goal:
    """What the robot is to do.

    Attributes:
        words: the end of a sentence that begins with "the robot".
        score: how a second is scored, as a sentence.
        speed: the wanted speed to the front, in metres per second; None to hop.
    """

    words: str
    score: str
    speed: float | None


_WALK = (
    "The score of a second is 1 less the distance between where the robot is and where it would "
    "be at {speed} m/s, in half metres."
)
_GOALS = {
    "walk": _Goal("walks to the front with 0.5 m/s", _WALK.format(speed="0.5"), 0.5),
    "back": _Goal("walks to the back with 0.5 m/s", _WALK.format(speed="-0.5"), -0.5),
    "hop": _Goal(
        "hops as high as it can",
        "The score of a second is the greatest height of the trunk in it: 0 at "
        f"{_STANDS} m, 1 at {_STANDS + 0.5} m.",
        None,
    ),
}


class Genesis(DomainBase, TriedDomain):
    """Write the reward by which a robot with four legs learns to move.

    Attributes:
        name: the name of the entry point, with the goal if it is not the default.
        description: one line for ``hyperrun domains``.
        splits: ``train`` and ``test``, whose robots begin in different poses.
        image: the image recipe of the containers; it has the simulator.
        agent: the agent template.
        needs_gpu: whether the training has a GPU.
        task_timeout_s: the agent's deadline, in seconds.
    """

    image: str = "genesis"
    agent: str = "llm"
    task_timeout_s: float = 3600.0
    splits: tuple[Split, ...] = (Split(name="train"), Split(name="test"))

    def __init__(self, goal: str | None = None) -> None:
        """Choose what the robot is to do.

        Args:
            goal: ``walk``, ``back`` or ``hop``, then ``,gpu`` to train on a GPU; None means
                ``walk``, on the CPU.

        Raises:
            SpecError: ``goal`` has another form.
        """
        word, *more = ["walk"] if goal is None else goal.split(",")
        if word not in _GOALS or more not in ([], ["gpu"]):
            raise SpecError("domains", f"{NAME}:{goal}", "walk, back or hop, and ,gpu after it")
        self._goal = _GOALS[word]
        self.needs_gpu: bool = bool(more)
        self.name: str = NAME if goal is None else f"{NAME}_{goal.replace(',', '_')}"
        self.description: str = (
            f"write the reward by which a robot with four legs {self._goal.words}"
        )

    def tasks(self, split: str, limit: int | None = None) -> tuple[Task, ...]:
        """Return the one task of a split, with the program to start from.

        Args:
            split: name of the split.
            limit: the largest number of tasks; None means all.

        Raises:
            KeyError: the split is unknown.
        """
        if split not in _SEEDS:
            raise KeyError(split)
        inputs = {"statement": self._statement, "files": {PROGRAM: self._stub}}
        return (Task(id=f"{NAME}-{split}", inputs=inputs),)[:limit]

    def trial(self, task: Task, prediction: Any) -> Trial | Score:  # noqa: ANN401 - any JSON value an agent may return
        """Return the trial that trains the robot; a score of 0 for an invalid answer."""
        files, problem = parse_files(prediction, {PROGRAM: self._stub})
        if problem:
            return invalid(task, problem)
        words = ("train", *self._size, 0, "gpu" if self.needs_gpu else "cpu", _TRAIN_SECONDS)
        forbidden = (one_process_program() or b"").hex()
        then = partial(self._measures, task)
        return self._runs(words, forbidden, files, gpu=self.needs_gpu, then=then)

    def verdict(self, task: Task, prediction: Any, result: TrialResult) -> Score:  # noqa: ANN401
        """Return the score of what the robots did.

        Args:
            task: the task.
            prediction: the answer; unused.
            result: the result of the last trial.
        """
        data = decode(result.stdout) or b""
        if len(data) != 4 * _FLOATS * ROBOTS * SECONDS:
            return invalid(task, f"the robots were not measured{why(result, _MEASURE_SECONDS)}")
        values = array("f", data)
        rows = [values[at : at + _FLOATS] for at in range(0, len(values), _FLOATS)]
        score = math.fsum(map(self._second, rows)) / len(rows)
        standing = math.fsum(row[3] for row in rows[SECONDS - 1 :: SECONDS]) / ROBOTS
        detail = f"{standing:.0%} of the robots are on their feet after {SECONDS} seconds"
        metrics = {"on_feet": standing}
        return Score(task_id=task.id, value=score, valid=True, detail=detail, metrics=metrics)

    def score(self, task: Task, prediction: Any) -> Score:  # noqa: ANN401
        """Return 0: only trials can score a program (:meth:`trial`, :meth:`verdict`)."""
        return invalid(task, "not tried")

    def _second(self, row: array[float]) -> float:
        """Return the score of a second of a robot; 0 if it fell, or if its world broke."""
        front, left, height, upright = row
        if upright != 1.0 or not all(map(math.isfinite, row)):
            return 0.0
        if self._goal.speed is None:
            value = (height - _STANDS) / 0.5
        else:
            value = 1 - math.hypot(front - self._goal.speed, left) / 0.5
        return min(1.0, max(0.0, value))

    def _measures(self, task: Task, result: TrialResult) -> Trial | Score:
        """Return the trial that measures robots whose policy is trained."""
        weights = decode(result.stdout)
        if not weights or len(weights) != WEIGHTS_BYTES:
            return invalid(task, f"the training gave no policy{why(result, _TRAIN_SECONDS)}")
        seed = _SEEDS[task.id.removeprefix(f"{NAME}-")]
        words = ("measure", ROBOTS, SECONDS, seed, "cpu", _MEASURE_SECONDS)
        return self._runs(words, "", {"weights.bin": weights})

    def _runs(
        self,
        words: tuple[object, ...],
        forbidden: str,
        files: Mapping[str, str | bytes],
        **more: Any,  # noqa: ANN401
    ) -> Trial:
        return Trial(
            args=("python3", "-B", _RUNNER, *map(str, words), forbidden),
            files={
                **files,
                _RUNNER: _text("hyperdomain_genesis", "runner.py"),
                "robot.py": _text("hyperruntime_images", "genesis", "robot.py"),
                INSIDE: inside_text(),
            },
            timeout_s=_CLOCK_FACTOR * (_START_SECONDS + float(str(words[-1]))),
            **more,
        )

    @property
    def _size(self) -> tuple[int, int]:
        """The number of robots and of updates of a training."""
        return (4096, 100) if self.needs_gpu else (256, 60)

    @cached_property
    def _stub(self) -> str:
        return _text("hyperdomain_genesis", PROGRAM)

    @property
    def _statement(self) -> str:
        robots, updates = self._size
        return _STATEMENT.format(
            goal=self._goal.words,
            score=self._goal.score,
            robots=robots,
            updates=updates,
            measured=ROBOTS,
            seconds=SECONDS,
            limit=_TRAIN_SECONDS,
        )


def _text(package: str, *names: str) -> str:
    return resources.files(package).joinpath(*names).read_text(encoding="utf-8")
