"""Parts of the loop that handle an agent's output: the harness output, copied files, contracts and
commands.
"""

from __future__ import annotations

import json
import os
import tracemalloc
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperruntime.cli.app import app
from hyperruntime.cli.config_file import agent_domains, agent_table
from hyperruntime.driver import PostMortem
from hyperruntime.errors import (
    AgentError,
    ContainerLostError,
    EngineError,
    ExecStartError,
    HyperRuntimeError,
    PatchError,
    RepositoryError,
)
from hyperruntime.loop.evaluation.evaluator import SplitResult, unanswered
from hyperruntime.loop.evaluation.task_runner import (
    Prediction,
    PredictionReader,
    prediction_to_json,
)
from hyperruntime.loop.run_files.contract import (
    Contract,
    agent_needs,
    detect_contract,
    parse_contract,
)
from hyperruntime.loop.workbench.container import copy_files, read_file
from hyperruntime.loop.workbench.failures import translate_failure
from hyperruntime.registry import load_executor
from hyperruntime.units import one_line
from tests.doubles.fake_runtime import make_agent_repository
from tests.doubles.unsafe_files import make_unsafe

LINES = (
    b'{"task_id": "a", "prediction": [1, 2], "error": null, "duration_s": 0.5}\n'
    b"noise\n"
    b'{"task_id": "a", "prediction": "again", "error": null}\n'
    b'{"task_id": "not asked", "prediction": 1}\n'
    b'{"task_id": ["a"], "prediction": 1}\n'
    b"[[[[\n"
    b'{"task_id": "b", "prediction": null, "error": "cannot", "duration_s": "x"}\n'
    b'{"task_id": "c", "prediction": 1}'
)


@given(st.lists(st.integers(0, len(LINES)), max_size=12))
def test_predictions_do_not_depend_on_how_the_output_is_split(cuts: list[int]) -> None:
    reader = PredictionReader(["a", "b", "c"], lambda data: None)
    places = [0, *sorted(cuts), len(LINES)]
    for start, end in pairwise(places):
        reader.take("stdout", LINES[start:end])
    assert reader.predictions == {
        "a": Prediction(task_id="a", value=[1, 2], duration_s=0.5),
        "b": Prediction(task_id="b", error="cannot"),
    }


def test_an_endless_line_does_not_fill_the_memory() -> None:
    reader = PredictionReader(["a"], lambda data: None)
    tracemalloc.start()
    try:
        for _ in range(40):
            reader.take("stdout", b"x" * (1 << 20))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 30 << 20
    reader.take("stdout", b'\n{"task_id": "a", "prediction": 1}\n')
    assert reader.predictions["a"].value == 1


@pytest.mark.parametrize("value", [float("nan"), [float("inf")], {"a": float("-inf")}])
def test_a_prediction_that_json_cannot_hold_becomes_an_error(value: object) -> None:
    stored = prediction_to_json(Prediction(task_id="a", value=value))
    assert stored["prediction"] is None
    assert "NaN or infinity" in stored["error"]
    json.dumps(stored, allow_nan=False)


def test_tasks_without_an_answer_are_counted_with_their_most_common_reason() -> None:
    late, wrong = "the task took more than 60 s", "NameError: name 'x' is not defined"

    def said(*errors: str | None) -> str:
        predictions = tuple(
            Prediction(task_id=str(n), error=error) for n, error in enumerate(errors)
        )
        return unanswered(
            {"d": {"train": SplitResult(predictions=predictions, scores=(), total=9, mean=0.0)}}
        )

    assert said(None, None) == ""
    assert said(late, None, late, None, None) == "2 of 5 tasks timed out"
    assert said(wrong, wrong) == f"2 of 2 tasks failed: {wrong}"
    assert said(wrong, "x", wrong, late) == (
        f"1 of 4 tasks timed out; 3 of 4 tasks failed, the most common reason: {wrong}"
    )


def test_only_regular_files_below_the_folder_are_copied(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "file").write_text("kept")
    (source / "other").write_text("not asked for")
    os.mkfifo(source / "sub" / "pipe")
    (source / "sub" / "link").symlink_to("/etc/passwd")
    (source / "away").symlink_to("/etc")
    assert copy_files(source, target, below="sub") == 1
    assert copy_files(source, tmp_path / "nothing", below="away") == 0
    assert [path.name for path in target.rglob("*")] == ["file"]


def test_copy_files_can_keep_an_existing_file(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "target").mkdir()
    (tmp_path / "source" / "a").write_text("new")
    (tmp_path / "target" / "a").write_text("old")
    copy_files(tmp_path / "source", tmp_path / "target", keep=True)
    assert (tmp_path / "target" / "a").read_text() == "old"


def test_a_patch_is_read_only_from_a_regular_file_within_the_limit(tmp_path: Path) -> None:
    assert read_file(tmp_path, b"patch", 10) is None
    (tmp_path / "patch").write_bytes(b"12345678901")
    assert read_file(tmp_path, b"patch", 11) == b"12345678901"
    with pytest.raises(PatchError, match="more than 10"):
        read_file(tmp_path, b"patch", 10)
    (tmp_path / "folder").mkdir()
    with pytest.raises(PatchError):
        read_file(tmp_path, b"folder", 10)


def test_the_default_contract_applies_if_hyperrun_toml_is_missing_or_empty() -> None:
    assert parse_contract(None) == parse_contract(b"") == Contract()
    own = parse_contract(b'[commands]\nmeta_agent = ["./evolve"]\ntask_agent = "a.b:C"\n')
    assert own == Contract(meta_agent=("./evolve",), task_agent="a.b:C", load=("a.b:C",))


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("pipe", "a named pipe, not"),
        ("link", "a symbolic link, not"),
        ("large", "at most 1.0 MiB are read"),
    ],
)
def test_the_hyperrun_toml_of_an_agent_is_a_regular_file_of_limited_size(
    tmp_path: Path, kind: str, why: str
) -> None:
    make_agent_repository(tmp_path / "agent")
    agent, path = str(tmp_path / "agent"), tmp_path / "agent" / "hyperrun.toml"
    make_unsafe(path, kind)
    said = rf"hyperrun\.toml' cannot be read: .*{why}.*; correct or remove it"
    for read in (
        detect_contract,
        agent_needs,
        lambda _: agent_domains(path.parent),
        lambda _: agent_table(path, app, "podman"),
    ):
        with pytest.raises(AgentError, match=said):
            read(agent)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff",
        b"= x",
        b"commands = 1",
        b"load = 3",
        b"[commands]\nmeta_agent = []",
        b"[load]\ncheck = ['x']",
        b"[commands]\nmeta_agent = 'python3'",
        b"[commands]\ntask_agent = 'x'",
    ],
)
def test_an_invalid_contract_raises_a_one_line_error(data: bytes) -> None:
    with pytest.raises(AgentError, match=r"hyperrun\.toml") as caught:
        parse_contract(data)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "step", "failure", "final"),
    [
        (EngineError("x"), "evaluate", "infrastructure", False),
        (ContainerLostError("x"), "meta agent", "agent", False),
        (
            ContainerLostError("x", PostMortem(state="exited", oom_killed=True)),
            "evaluate",
            "evaluation",
            True,
        ),
        (ContainerLostError("x"), "start", "infrastructure", False),
        (ExecStartError("x"), "load check", "does-not-load", True),
        (RepositoryError("x"), "diff", "refused-patch", False),
        (RepositoryError("x"), "parent", "infrastructure", False),
        (RuntimeError("a domain's mistake"), "evaluate", "evaluation", False),
    ],
)
def test_an_error_is_translated_to_its_failure_class(
    error: Exception, step: str, failure: str, final: bool
) -> None:
    translated = translate_failure(error, step)
    assert (translated.failure, translated.again) == (failure, not final)


def test_text_of_an_agent_is_made_safe_to_print() -> None:
    assert one_line("a\x1b[31mred\n\tb\0 \u202ec") == "a [31mred b c"
    assert len(one_line("x" * 10_000)) < 1000


def test_the_local_executor_is_an_entry_point() -> None:
    with load_executor("local")(2) as executor:
        assert executor.submit(max, 1, 2).result() == 2
    with pytest.raises(HyperRuntimeError, match="did you mean 'local'"):
        load_executor("locl")
