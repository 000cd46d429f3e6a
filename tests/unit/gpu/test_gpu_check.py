"""The program that checks a machine with a GPU: what it says when something cannot run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gpu import __main__ as gpu


def steps(*failing: str) -> tuple[tuple[str, Callable[[gpu.Check], str]], ...]:
    """Return steps of the program's names; those that are named fail."""

    def step(name: str) -> Callable[[gpu.Check], str]:
        def run(check: gpu.Check) -> str:
            if name in failing:
                raise gpu.StepError(f"{name} is broken")
            return f"{name} is good"

        return run

    return tuple((name, step(name)) for name, _ in gpu.STEPS)


def rows(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Return the result of each step, by its name."""
    printed = capsys.readouterr().out.splitlines()
    return {line[:14].strip(): line[15:23].strip() for line in printed}


def test_a_machine_without_a_gpu_is_told_so_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["gpu"])
    assert gpu.main() == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "No GPU: `nvidia-smi -L` lists none here, so nothing was run.\n"


def test_a_step_that_fails_is_named_and_so_are_those_that_need_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu", "--cpu"])
    names = [name for name, _ in gpu.STEPS]
    monkeypatch.setattr(gpu, "STEPS", steps())
    assert gpu.main() == 0
    assert rows(capsys) == dict.fromkeys(names, "passed")
    monkeypatch.setattr(gpu, "STEPS", steps("speedrun"))
    assert gpu.main() == 1
    assert rows(capsys) == {**dict.fromkeys(names, "passed"), "speedrun": "FAILED"}
    monkeypatch.setattr(gpu, "STEPS", steps("image"))
    assert gpu.main() == 1
    after = dict.fromkeys(names[names.index("image") :], "NOT RUN")
    assert rows(capsys) == {**dict.fromkeys(names, "passed"), **after, "image": "FAILED"}


def test_a_program_that_does_not_end_is_a_failed_step(tmp_path: Path) -> None:
    check = gpu.Check(gpu=True, image="", work=tmp_path, end=float("inf"))
    with pytest.raises(gpu.StepError, match=r"did not end within 0 s"):
        check.run("sleep", "60", limit_s=0.1)
    with pytest.raises(gpu.StepError, match=r"exit code 3: it is broken"):
        check.run("sh", "-c", "echo it is broken >&2; exit 3", limit_s=60)
    with pytest.raises(gpu.StepError, match="cannot be run"):
        check.run(str(tmp_path / "none"), limit_s=60)
    with pytest.raises(gpu.StepError, match="no time was left"):
        gpu.Check(gpu=True, image="", work=tmp_path, end=0).run("true", limit_s=60)
