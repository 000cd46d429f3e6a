"""The domain ``speedrun``: train a small language model to the lowest loss within a budget.

The agent writes ``train.py``. ``speedrun:SECONDS`` sets the budget in processor seconds, and
``speedrun:SECONDS,gpu`` trains on a GPU. What keeps a score honest: docs/speedrun.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property, partial
from importlib import resources
from typing import Any

from hyperdomain_speedrun.corpus import ALPHABET, CONTEXT, training_tokens, windows
from hyperdomain_speedrun.loss import mean_loss
from hyperdomain_training import INSIDE, decode, inside_text, invalid, why
from hyperruntime.datasets.answered_files import parse_files
from hyperruntime.domain import DomainBase, Score, Split, Task, Trial, TrialResult, TriedDomain
from hyperruntime.errors import SpecError
from hyperruntime.host.seccomp import one_process_program

__all__ = ["Speedrun"]

NAME = "speedrun"
PROGRAM = "train.py"
WEIGHTS_BYTES = 8 * 1024**2
_RUNNER = "_runner.py"
_SECONDS = 30
_MOST_SECONDS = 24 * 60 * 60
# The second container gets a sixth of the budget, within these: weights can carry the text for
# training, so a model that is asked could train on.
_ASK_SECONDS = (5, 60)
# A deadline only ends a program that waits: the budget does not count on a clock.
_CLOCK_FACTOR = 20
_START_SECONDS = 60  # for the import of torch, before the limit
_BASE64_BYTES = 2 * WEIGHTS_BYTES
_STATEMENT = """\
Change train.py so that the model which it trains has a lower loss on text that is not shown to it.

train.py defines build(symbols), which returns a torch.nn.Module, and train(model, tokens, seconds_left), which
trains it in place. The module maps tokens (batch, length) to logits (batch, length, symbols); it is asked for the token
after {context} tokens. tokens are the {characters:,} characters of the training text: int64, from 0 to {last}.
seconds_left() returns the processor seconds that are left, of {seconds} at the start. A program that uses a few more
is ended, and has no score; so is one that starts processes. Threads share the budget. The weights
(state_dict) may have at most {weights} MiB as float32. They are loaded into a new build(symbols) in another container
and asked there, on the CPU and within {ask} processor seconds. torch is {where}. The score is
1 - loss / ln(symbols): 0 is a guess, and the loss is the mean cross-entropy in nats.
"""


class Speedrun(DomainBase, TriedDomain):
    """Train a small language model within a budget.

    Attributes:
        name: the name of the entry point, with the budget if it is not the default.
        description: one line for ``hyperrun domains``.
        splits: ``train`` and ``test``, which are asked about different texts.
        image: the image recipe of the containers; it has torch.
        agent: the agent template.
        needs_gpu: whether the training has a GPU.
        task_timeout_s: the agent's deadline, in seconds.
    """

    image: str = "torch"
    agent: str = "llm"
    task_timeout_s: float = 3600.0
    splits: tuple[Split, ...] = (Split(name="train"), Split(name="test"))

    def __init__(self, budget: str | None = None) -> None:
        """Choose the budget.

        Args:
            budget: ``SECONDS``, ``gpu`` or ``SECONDS,gpu``; None means 30 seconds on the CPU.

        Raises:
            SpecError: ``budget`` has another form.
        """
        words = [] if budget is None else budget.split(",")
        self.needs_gpu: bool = words[-1:] == ["gpu"]
        seconds = words[:-1] if self.needs_gpu else words
        self._seconds = _SECONDS if not seconds else _parse_seconds(",".join(seconds))
        self.name: str = NAME if budget is None else f"{NAME}_{budget.replace(',', '_')}"
        self.description: str = (
            f"train a small language model in {self._seconds} processor seconds"
            f"{' with a GPU' if self.needs_gpu else ''}; {NAME}:SECONDS sets them"
        )

    def tasks(self, split: str, limit: int | None = None) -> tuple[Task, ...]:
        """Return the one task of a split, with the program to start from.

        Args:
            split: name of the split.
            limit: the largest number of tasks; None means all.

        Raises:
            KeyError: the split is unknown.
        """
        if split not in {known.name for known in self.splits}:
            raise KeyError(split)
        inputs = {"statement": self._statement, "files": {PROGRAM: self._stub}}
        return (Task(id=f"{NAME}-{split}", inputs=inputs),)[:limit]

    def trial(self, task: Task, prediction: Any) -> Trial | Score:  # noqa: ANN401 - any JSON value an agent may return
        """Return the trial that trains the model; a score of 0 for an invalid answer."""
        files, problem = parse_files(prediction, {PROGRAM: self._stub})
        if problem:
            return invalid(task, problem)
        given: Mapping[str, str | bytes] = {**files, "tokens.bin": training_tokens()}
        return self._runs(
            "train", given, gpu=self.needs_gpu, then=partial(self._asks, task, files[PROGRAM])
        )

    def verdict(self, task: Task, prediction: Any, result: TrialResult) -> Score:  # noqa: ANN401
        """Return the score of the logits that a model printed.

        Args:
            task: the task.
            prediction: the answer; unused.
            result: the result of the last trial.
        """
        _, answers = windows(_split(task))
        loss = mean_loss(result.stdout, answers)
        if loss is None:
            return invalid(task, f"the model gave no valid logits{why(result, self._ask_seconds)}")
        facts = {"loss": loss, "bits": loss / math.log(2)}
        value = max(0.0, 1 - loss / math.log(len(ALPHABET)))
        detail = f"loss {loss:.4f} nats per character"
        return Score(task_id=task.id, value=value, valid=True, detail=detail, facts=facts)

    def score(self, task: Task, prediction: Any) -> Score:  # noqa: ANN401
        """Return 0: only trials can score a program (:meth:`trial`, :meth:`verdict`)."""
        return invalid(task, "not tried")

    def _asks(self, task: Task, program: str, result: TrialResult) -> Trial | Score:
        """Return the trial that asks the model whose training ended."""
        weights = decode(result.stdout) if len(result.stdout) < _BASE64_BYTES else None
        if not weights:
            return invalid(task, f"the training gave no weights{why(result, self._seconds)}")
        if len(weights) > WEIGHTS_BYTES:
            return invalid(task, f"the weights have more than {WEIGHTS_BYTES} bytes")
        contexts, _ = windows(_split(task))
        files: Mapping[str, str | bytes] = {
            PROGRAM: program,
            "weights.bin": weights,
            "contexts.bin": contexts,
        }
        return self._runs("ask", files)

    def _runs(self, verb: str, files: Mapping[str, str | bytes], **more: Any) -> Trial:  # noqa: ANN401
        runner = (resources.files("hyperdomain_speedrun") / "runner.py").read_text(encoding="utf-8")
        seconds = self._seconds if verb == "train" else self._ask_seconds
        words = (verb, seconds, len(ALPHABET), CONTEXT, (one_process_program() or b"").hex())
        return Trial(
            args=("python3", "-B", _RUNNER, *map(str, words)),
            files={**files, _RUNNER: runner, INSIDE: inside_text()},
            timeout_s=_CLOCK_FACTOR * (seconds + _START_SECONDS),
            output_limit_bytes=_BASE64_BYTES,
            **more,
        )

    @cached_property
    def _stub(self) -> str:
        return (resources.files("hyperdomain_speedrun") / PROGRAM).read_text(encoding="utf-8")

    @property
    def _ask_seconds(self) -> int:
        least, most = _ASK_SECONDS
        return min(max(least, self._seconds // 6), most)

    @property
    def _statement(self) -> str:
        return _STATEMENT.format(
            context=CONTEXT,
            characters=len(training_tokens()),
            last=len(ALPHABET) - 1,
            seconds=self._seconds,
            ask=self._ask_seconds,
            weights=WEIGHTS_BYTES // 1024**2,
            where="on a GPU" if self.needs_gpu else "for the CPU, and runs in one thread",
        )


def _parse_seconds(text: str) -> int:
    if text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= _MOST_SECONDS:
        return int(text)
    raise SpecError("domains", f"{NAME}:{text}", "SECONDS, gpu or SECONDS,gpu")


def _split(task: Task) -> str:
    return task.id.removeprefix(f"{NAME}-")
