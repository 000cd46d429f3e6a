"""Files of runs that somebody else made hold values of any kind: each command says one sentence,
and never fails.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from hyperruntime.cli import main
from hyperruntime.cli.rollout.train import TrainSettings
from hyperruntime.option_fields import to_json
from tests.doubles.shown_runs import loop_run, rollout_run

DEEP = "[" * 5000 + "]" * 5000
WHOLE = ("[]", '"x"', "null", "3", "{}", DEEP, "", "\udc80")
WRONG: tuple[Any, ...] = ([], "x", None, 3, {"x": {"y": [1]}})
SHOWN = (("status",), ("status", "--json"))
OUTCOMES = (0, 1, 2, 3)


def train_directory(folder: Path) -> Path:
    folder.mkdir()
    (folder / "train.json").write_text(json.dumps(to_json(TrainSettings())))
    return folder


# Each kind of directory, and the commands that read it.
KINDS: dict[str, tuple[Callable[[Path], Path], Sequence[tuple[str, ...]]]] = {
    "loop": (
        lambda folder: loop_run(folder, 2),
        (
            *SHOWN,
            ("report", "--output", "OUT"),
            ("resume", "--trust"),
            ("evaluate", "1", "--split", "train", "--trust"),
        ),
    ),
    "rollout": (
        lambda folder: rollout_run(folder, 1, 2),
        (
            *SHOWN,
            ("report", "--output", "OUT"),
            ("rollout", "export"),
            ("rollout", "run", "--trust", "--resume-from"),
        ),
    ),
    "train": (train_directory, (("status",), ("rollout", "train", "--trust", "--resume-from"))),
}


def with_a_wrong_field(value: Any, depth: int = 0) -> Iterator[Any]:
    """Yield copies of a JSON value in which one value, at any depth, is of another kind."""
    keys: Sequence[Any] = list(value) if isinstance(value, dict) else range(min(1, len(value)))
    for key in keys:
        for wrong in WRONG:
            changed = copy.copy(value)
            changed[key] = wrong
            yield changed
        if isinstance(value[key], dict | list) and depth < 4:
            for inner in with_a_wrong_field(value[key], depth + 1):
                changed = copy.copy(value)
                changed[key] = inner
                yield changed


def texts(file: Path) -> Iterator[str]:
    """Yield texts of a JSON file, or of its first line, that somebody else may have written."""
    first, *others = (
        file.read_text().splitlines() if file.suffix == ".jsonl" else (file.read_text(),)
    )
    fields = (json.dumps(each) for each in with_a_wrong_field(json.loads(first)))
    yield from ("\n".join([line, *others]) for line in (*WHOLE, *fields))


def check(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], chosen: Callable[[str], bool]
) -> None:
    make, commands = KINDS[kind]
    run = make(tmp_path / kind)
    for file in sorted(path for path in run.rglob("*.json*") if chosen(path.name)):
        kept = file.read_bytes()
        for text in texts(file):
            for command in commands:
                words = [str(tmp_path / "out.html") if word == "OUT" else word for word in command]
                at = 1 if command[0] in ("evaluate", "report") else len(words)
                file.write_bytes(text.encode(errors="surrogateescape"))
                code = main(["--runtime", "no-such-engine", *words[:at], str(run), *words[at:]])
                said = capsys.readouterr().err
                shown = (command, file.name, text[:300], said[-500:])
                assert code in OUTCOMES, shown
                assert "unexpected " not in said, shown
                assert "Traceback" not in said, shown
        file.write_bytes(kept)


@pytest.mark.slow
def test_a_training_holds_anything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check("train", tmp_path, capsys, lambda name: True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run.json", "trajectories.jsonl"])
def test_a_rollout_run_holds_anything(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check("rollout", tmp_path, capsys, lambda found: found == name)


@pytest.mark.slow
@pytest.mark.timeout(1800)  # thousands of commands: minutes on a busy machine
@pytest.mark.parametrize("name", ["run.json", "others"])
def test_a_run_of_the_loop_holds_anything(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check("loop", tmp_path, capsys, lambda found: (found == "run.json") == (name == "run.json"))


@pytest.mark.parametrize(
    "text", ["[]", '"x"', "null", "3", '{"environment": 3}', '{"options": [3]}', '{"policy": []}']
)
def test_a_training_with_wrong_values_is_refused_in_one_sentence(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.json").write_text(text)
    assert main(["rollout", "train", "--resume-from", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "has no training: " in said
    assert said.count("\n") == 1
