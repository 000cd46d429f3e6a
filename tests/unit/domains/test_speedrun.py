"""A small language model: the text, the loss, and what a program that cheats gets."""

from __future__ import annotations

import base64
import hashlib
import math
from array import array
from collections.abc import Callable
from typing import Any

import pytest

from hyperdomain_speedrun import WEIGHTS_BYTES, Speedrun
from hyperdomain_speedrun.corpus import (
    ALPHABET,
    CONTEXT,
    SECRET_VARIABLE,
    WINDOWS,
    training_tokens,
    windows,
)
from hyperdomain_speedrun.loss import mean_loss
from hyperruntime.domain import Score, Task, Trial, TrialResult
from hyperruntime.errors import SpecError

SYMBOLS = len(ALPHABET)
RUNNER = ("_runner.py", "hyperdomain_training/inside.py")


@pytest.fixture
def domain() -> Speedrun:
    return Speedrun()


@pytest.fixture
def task(domain: Speedrun) -> Task:
    return domain.tasks("train")[0]


def printed(values: array[float] | bytes) -> bytes:
    return base64.b64encode(values if isinstance(values, bytes) else values.tobytes())


def ended(stdout: bytes = b"", code: int = 0, stderr: bytes = b"") -> TrialResult:
    return TrialResult(exit_code=code, stdout=stdout, stderr=stderr)


def asked(domain: Speedrun, task: Task, result: TrialResult) -> Trial | Score:
    """Return what follows a training with this result."""
    first = domain.trial(task, dict(task.inputs))
    assert isinstance(first, Trial)
    assert first.then is not None
    return first.then(result)


def test_the_text_is_the_same_on_every_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    parts = [training_tokens(), *windows("train"), *windows("test")]
    digest = hashlib.sha256(b"".join(parts)).hexdigest()
    assert digest == "efdf8cf791958fe3d3f680f5b884dd17780bb3ae1db11506fb74464058eb79d4"


def test_a_secret_changes_the_text_of_test_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    public = [windows(split) for split in ("train", "test")]
    for word in ("a", "b"):
        monkeypatch.setenv(SECRET_VARIABLE, word)
        assert windows("train") == public[0]
        assert windows("test") == windows("test")
        public.append(windows("test"))
    assert len(set(public)) == 4


def test_no_text_that_decides_is_in_the_training_text_or_shared() -> None:
    text = training_tokens()
    held = {}
    for split in ("train", "test"):
        contexts, answers = windows(split)
        assert (len(contexts), len(answers)) == (CONTEXT * WINDOWS, WINDOWS)
        held[split] = {contexts[at : at + CONTEXT] for at in range(0, len(contexts), CONTEXT)}
        assert not any(context in text for context in held[split])
    assert not held["train"] & held["test"]


def test_a_guess_loses_the_logarithm_of_the_alphabet_and_certainty_nothing() -> None:
    answers = bytes([0, 3, SYMBOLS - 1])
    assert mean_loss(printed(array("f", [7.0] * 3 * SYMBOLS)), answers) == pytest.approx(
        math.log(SYMBOLS)
    )
    sure = array("f", [-3e38] * 3 * SYMBOLS)
    for at, answer in enumerate(answers):
        sure[at * SYMBOLS + answer] = 3e38
    assert mean_loss(printed(sure), answers) == 0.0
    assert mean_loss(printed(sure), bytes([1, 1, 1])) == pytest.approx(6e38, rel=1e-6)


def test_a_container_gets_no_answer(domain: Speedrun, task: Task) -> None:
    first = domain.trial(task, "a program")
    assert isinstance(first, Trial)
    second = asked(domain, task, ended(printed(b"weights")))
    assert isinstance(second, Trial)
    assert set(first.files) == {"train.py", "tokens.bin", *RUNNER}
    assert set(second.files) == {"train.py", "weights.bin", "contexts.bin", *RUNNER}
    assert (first.input, second.input) == (b"", b"")
    contexts, answers = windows("train")
    assert second.files["contexts.bin"] == contexts
    assert not any(answers in value for value in second.files.values() if isinstance(value, bytes))


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (ended(), "no weights"),
        (ended(b"score: 1.0"), "no weights"),
        (ended(b"A" * 4 * WEIGHTS_BYTES), "no weights"),
        (ended(printed(bytes(WEIGHTS_BYTES + 1))), "more than"),
        (ended(code=152), "used more than 30 processor seconds"),
        (ended(code=1, stderr=b"Traceback\nValueError: odd"), "ValueError: odd"),
        (TrialResult(exit_code=137, stdout=b"", stderr=b"", timed_out=True), "did not end"),
    ],
)
def test_a_training_without_valid_weights_scores_nothing(
    domain: Speedrun, task: Task, result: TrialResult, reason: str
) -> None:
    score = asked(domain, task, result)
    assert isinstance(score, Score)
    assert (score.value, score.valid) == (0.0, False)
    assert reason in score.detail


@pytest.mark.parametrize(
    "forge",
    [
        lambda logits: b'{"loss": 0.0}',
        lambda logits: printed(logits[:-1]),
        lambda logits: printed(logits + array("f", [0.0])),
        lambda logits: printed(array("f", [math.nan]) + logits[1:]),
        lambda logits: printed(array("f", [math.inf]) + logits[1:]),
        lambda logits: printed(logits) * 2,
        lambda logits: "\u00e9".encode() * 9,
    ],
)
def test_output_that_is_not_one_logit_for_each_symbol_scores_nothing(
    domain: Speedrun, task: Task, forge: Callable[[array[float]], bytes]
) -> None:
    logits = array("f", [0.0] * SYMBOLS * WINDOWS)
    score = domain.verdict(task, None, ended(forge(logits)))
    assert (score.value, score.valid) == (0.0, False)
    assert domain.verdict(task, None, ended(printed(logits))).valid


def test_a_model_that_is_worse_than_a_guess_scores_zero(domain: Speedrun, task: Task) -> None:
    _, answers = windows("train")
    wrong = array("f", [0.0] * SYMBOLS * WINDOWS)
    for at, answer in enumerate(answers):
        wrong[at * SYMBOLS + answer] = -9.0
    score = domain.verdict(task, None, ended(printed(wrong)))
    assert (score.value, score.valid) == (0.0, True)
    assert score.facts["loss"] > math.log(SYMBOLS)


@pytest.mark.parametrize(
    ("budget", "name", "seconds", "ask_seconds", "gpu"),
    [
        (None, "speedrun", "30", "5", False),
        ("5", "speedrun_5", "5", "5", False),
        ("gpu", "speedrun_gpu", "30", "5", True),
        ("120,gpu", "speedrun_120_gpu", "120", "20", True),
        ("86400", "speedrun_86400", "86400", "60", False),
    ],
)
def test_the_argument_sets_the_budget(
    budget: str | None, name: str, seconds: str, ask_seconds: str, gpu: bool
) -> None:
    domain = Speedrun(budget)
    task = domain.tasks("test")[0]
    trial = domain.trial(task, "a program")
    assert isinstance(trial, Trial)
    assert (domain.name, trial.args[4], trial.gpu, domain.needs_gpu) == (name, seconds, gpu, gpu)
    asks = asked(domain, task, ended(printed(b"weights")))
    assert isinstance(asks, Trial)
    assert (asks.args[3:5], asks.gpu) == (("ask", ask_seconds), False)
    assert f"within {ask_seconds} processor seconds" in task.inputs["statement"]


@pytest.mark.parametrize("budget", ["", "0", "-1", "1.5", "gpu,5", "5,cpu", "9" * 5000, "٣"])
def test_another_argument_is_refused(budget: str) -> None:
    with pytest.raises(SpecError, match="SECONDS"):
        Speedrun(budget)


@pytest.mark.parametrize(
    "prediction", [None, 3, [], {}, {"files": {}}, {"files": {"other.py": ""}}, "\ud800"]
)
def test_an_answer_that_is_no_program_is_not_run(
    domain: Speedrun, task: Task, prediction: Any
) -> None:
    score = domain.trial(task, prediction)
    assert isinstance(score, Score)
    assert (score.value, score.valid) == (0.0, False)
