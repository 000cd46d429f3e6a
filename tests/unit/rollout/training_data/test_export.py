"""Training data of runs: only scored trajectories, with exactly the tokens that the server
emitted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperruntime.cli import main
from hyperruntime.errors import RunError, SpecError
from hyperruntime.rollout.run_files.record import INFRASTRUCTURE, Segment, Trajectory
from hyperruntime.rollout.run_files.run_dir import SCHEMA
from hyperruntime.rollout.training_data.export import ExportOptions, export_run
from hyperruntime.rollout.training_data.samples import (
    LAST,
    Sample,
    ScoredGroup,
    group_advantages,
    scored_group,
)
from hyperruntime.rollout.training_data.scored_data import IGNORED, NO_LOGPROB, to_scored_data

CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "bash", "arguments": '{"command": "ls"}'},
}
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "do it — ☃"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "a\nb"},
    {"role": "assistant", "content": "done"},
]


def make(item: str, index: int, reward: float | None, **more: Any) -> Trajectory:
    """Return a trajectory of one segment; without a reward, it failed because of the
    infrastructure.
    """
    segment = Segment(ids=[5, 6, 7, 8], mask=[0, 0, 1, 1], logprobs=[None, None, -0.25, -1e-9])
    facts: dict[str, Any] = {"segments": [segment], "messages": MESSAGES} | more
    if reward is None:
        facts |= {
            "status": INFRASTRUCTURE,
            "error": {"kind": "SandboxLostError", "message": "gone"},
        }
    else:
        facts.setdefault("status", "scored")
    return Trajectory(
        id=f"{item}/{index}",
        item_id=item,
        index=index,
        environment="toy",
        model="tiny",
        reward=reward,
        **facts,
    )


def write_run(directory: Path, *trajectories: Trajectory, size: int | None = None) -> Path:
    """Write a run directory with these trajectories; return it."""
    directory.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(attrs.asdict(each)) for each in trajectories]
    (directory / "trajectories.jsonl").write_text("".join(f"{line}\n" for line in lines))
    if size is not None:
        run = {"schema": SCHEMA, "options": {"group_size": size, "temperature": 0.5}}
        (directory / "run.json").write_text(json.dumps(run))
    return directory


def export(
    tmp_path: Path, to: str, *trajectories: Trajectory, **options: Any
) -> list[dict[str, Any]]:
    """Return the lines of an export."""
    run = write_run(tmp_path / "run", *trajectories)
    output = tmp_path / f"out-{to}.jsonl"
    export_run(run, output, ExportOptions(to=to, **options))
    return [json.loads(line) for line in output.read_text().splitlines()]


def from_scored_data(data: Mapping[str, Any]) -> ScoredGroup:
    """Return the group of a ``to_scored_data`` value, as a trainer reads it."""
    facts, logprobs = (
        data["group_overrides"],
        data["inference_logprobs"] or [None] * len(data["tokens"]),
    )
    columns = zip(data["tokens"], data["masks"], logprobs, strict=True)
    segments = [
        Segment(
            ids=ids,
            mask=[int(value != IGNORED) for value in masks],
            logprobs=[
                None if value == IGNORED else logprob
                for value, logprob in zip(masks, known or [None] * len(ids), strict=True)
            ],
        )
        for ids, masks, known in columns
    ]
    samples = [
        Sample(
            segment=segment,
            reward=reward,
            advantage=advantages[0],
            messages=tuple(messages),
            **override,
        )
        for segment, reward, advantages, messages, override in zip(
            segments,
            data["scores"],
            data["advantages"],
            data["messages"],
            data["overrides"],
            strict=True,
        )
    ]
    return ScoredGroup(
        **facts, samples=tuple(samples), temperature=data["generation_params"]["temperature"]
    )


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    """Draw a segment of any length and mask, with log-probabilities only for emitted tokens."""
    mask = draw(st.lists(st.integers(0, 1), min_size=1, max_size=40))
    ids = draw(st.lists(st.integers(0, 2**31 - 1), min_size=len(mask), max_size=len(mask)))
    logprob = st.floats(max_value=0, allow_nan=False, allow_infinity=False)
    return Segment(ids=ids, mask=mask, logprobs=[draw(logprob) if flag else None for flag in mask])


@given(st.lists(st.lists(segments(), min_size=1, max_size=3), min_size=1, max_size=4), st.data())
def test_a_scored_group_survives_the_round_trip_through_scored_data(
    parts: list[list[Segment]], data: st.DataObject
) -> None:
    """R3, W23: JSON keeps every id, mask, log-probability, reward and advantage of every
    segment.
    """
    rewards = data.draw(st.lists(st.floats(-1e6, 1e6), min_size=len(parts), max_size=len(parts)))
    group = scored_group(
        [make("i", n, rewards[n], segments=part) for n, part in enumerate(parts)], temperature=0.7
    )
    if not group.samples:
        return
    sent = json.loads(json.dumps(to_scored_data(group)))
    again = from_scored_data(sent)
    assert [s.segment for s in again.samples] == [s.segment for s in group.samples]
    assert [(s.trajectory, s.part, s.reward, s.advantage) for s in again.samples] == [
        (s.trajectory, s.part, s.reward, s.advantage) for s in group.samples
    ]
    assert again.temperature == 0.7
    assert (again.size, again.scored, again.complete) == (group.size, group.scored, True)


@given(segments())
def test_only_emitted_tokens_are_trained(segment: Segment) -> None:
    """R3, W23: the mask of an emitted token is its id; of any other token -100, with
    log-probability 1.0.
    """
    group = scored_group([make("i", 0, 1.0, segments=[segment])])
    emitted = [token for token, flag in zip(segment.ids, segment.mask, strict=True) if flag]
    if not emitted:
        assert not group.samples
        return
    sent = to_scored_data(group)
    assert [mask for mask in sent["masks"][0] if mask != IGNORED] == emitted
    assert sent["tokens"][0] == segment.ids
    for flag, mask, logprob in zip(
        segment.mask, sent["masks"][0], sent["inference_logprobs"][0], strict=True
    ):
        assert (mask == IGNORED) == (logprob == NO_LOGPROB) == (not flag)


@given(st.lists(st.one_of(st.none(), st.floats(-100, 100)), max_size=12))
def test_advantages_are_centered_on_the_mean_and_keep_the_order_of_rewards(
    rewards: list[float | None],
) -> None:
    """They sum to zero; a trajectory without a reward has no advantage.

    Source: arXiv:2402.03300.
    """
    advantages = group_advantages(rewards)
    assert [a is None for a in advantages] == [r is None for r in rewards]
    known = [
        (r, a) for r, a in zip(rewards, advantages, strict=True) if r is not None and a is not None
    ]
    assert abs(math.fsum(a for _, a in known)) < 1e-6 * (len(known) + 1)
    ordered = sorted(known)
    assert all(a <= b for (_, a), (_, b) in pairwise(ordered))
    if len({r for r, _ in known}) == 1:
        assert all(abs(a) < 1e-3 for _, a in known)


def test_infrastructure_failures_are_never_rewards(tmp_path: Path) -> None:
    """W23: no export format contains them, neither as reward 0.0 nor as a line."""
    run = [make("a", 0, 1.0), make("a", 1, None), make("a", 2, 0.0), make("b", 0, None)]
    for to in ("jsonl", "huggingface", "atropos"):
        output = tmp_path / to
        summary = export_run(
            write_run(tmp_path / "run", *run), output, ExportOptions(to=to, incomplete="keep")
        )
        assert (summary.trajectories, summary.not_scored) == (2, 2)
        text = (output / "data/train.jsonl" if to == "huggingface" else output).read_text()
        assert "a/0" in text
        assert "a/2" in text
        assert "a/1" not in text
        assert "b/0" not in text


def test_only_the_last_record_of_a_trajectory_counts(tmp_path: Path) -> None:
    """A failed attempt that was scored later is exported once, with its reward."""
    rows = export(tmp_path, "jsonl", make("a", 0, None), make("a", 1, 0.5), make("a", 0, 1.0))
    assert [(row["id"], row["reward"]) for row in rows] == [("a/0", 1.0), ("a/1", 0.5)]
    assert rows[0]["messages"] == MESSAGES


def test_incomplete_and_equal_groups_are_exported_only_on_request(tmp_path: Path) -> None:
    """Trainers of atroposlib need full groups with different rewards."""
    run = [
        make("a", 0, 1.0),
        make("b", 0, 1.0),
        make("b", 1, 1.0),
        make("c", 0, 1.0),
        make("c", 1, 0.0),
    ]
    write_run(tmp_path / "run", *run, size=2)
    choices: list[tuple[dict[str, Any], list[str]]] = [
        ({}, ["c"]),
        ({"incomplete": "keep"}, ["c"]),
        ({"equal": "keep"}, ["b", "c"]),
        ({"incomplete": "keep", "equal": "keep"}, ["a", "b", "c"]),
    ]
    for number, (options, items) in enumerate(choices):
        output = tmp_path / str(number)
        export_run(tmp_path / "run", output, ExportOptions(to="atropos", **options))
        groups = [json.loads(line) for line in output.read_text().splitlines()]
        assert [group["group_overrides"]["item_id"] for group in groups] == items, options
        assert {group["generation_params"]["temperature"] for group in groups} == {0.5}


def test_every_message_has_role_and_content_for_atroposlib(tmp_path: Path) -> None:
    """A turn that only calls tools has no content; the atroposlib server rejects such a message."""
    (group,) = export(tmp_path, "atropos", make("a", 0, 1.0), make("a", 1, 0.0))
    assert [[m["content"] for m in messages] for messages in group["messages"]] == [
        ["do it — ☃", "", "a\nb", "done"]
    ] * 2
    assert group["messages"][0][1]["tool_calls"] == [CALL]
    assert [sum(row) for row in zip(*group["advantages"], strict=True)] == pytest.approx([0.0] * 4)


def test_unknown_log_probabilities_are_exported_as_none(tmp_path: Path) -> None:
    """W23: a group from a server without log-probabilities has none; they are not 0.0."""
    silent = Segment(ids=[1, 2], mask=[0, 1], logprobs=[None, None])
    (group,) = export(tmp_path, "atropos", make("a", 0, 1.0, segments=[silent]), make("a", 1, 0.0))
    assert group["inference_logprobs"] is None
    assert group["masks"] == [[IGNORED, 2], [IGNORED, IGNORED, 7, 8]]


def test_an_export_has_all_segments_or_only_the_last_one(tmp_path: Path) -> None:
    """A trajectory whose prompts were rendered anew has several segments; trainers of fixed groups
    need one.
    """
    two = [Segment(ids=[n, n], mask=[0, 1], logprobs=[None, -0.5]) for n in (1, 2)]
    run = [make("a", 0, 1.0, segments=two), make("a", 1, 0.0)]
    (both,) = export(tmp_path / "all", "atropos", *run)
    (last,) = export(tmp_path / "last", "atropos", *run, segments=LAST)
    assert both["tokens"] == [[1, 1], [2, 2], [5, 6, 7, 8]]
    assert both["scores"] == [1.0, 1.0, 0.0]
    assert last["tokens"] == [[2, 2], [5, 6, 7, 8]]
    assert last["overrides"][0] == {"trajectory": "a/0", "part": 1, "parts": 2}


def test_groups_that_are_too_long_or_without_tokens_are_skipped_and_counted(tmp_path: Path) -> None:
    run = [make("a", 0, 1.0), make("a", 1, 0.0), make("b", 0, 1.0, segments=[]), make("b", 1, 0.0)]
    write_run(tmp_path / "run", *run)
    summary = export_run(
        tmp_path / "run", tmp_path / "1", ExportOptions(to="atropos", max_tokens=3)
    )
    assert (summary.groups, summary.too_long, summary.no_tokens) == (0, 1, 1)
    summary = export_run(
        tmp_path / "run", tmp_path / "2", ExportOptions(to="atropos", max_tokens=4)
    )
    assert (summary.groups, summary.too_long, summary.no_tokens) == (1, 0, 1)


@pytest.mark.parametrize("logprob", [float("nan"), float("-inf"), float("inf")])
def test_a_log_probability_that_is_not_finite_is_rejected(logprob: float) -> None:
    """The error names the trajectory."""
    segment = Segment(ids=[1], mask=[1], logprobs=[logprob])
    with pytest.raises(RunError, match="'a/0' has a token"):
        scored_group([make("a", 0, 1.0, segments=[segment])])


def test_a_damaged_record_leaves_no_output(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", make("a", 0, 1.0))
    with (run / "trajectories.jsonl").open("a") as file:
        file.write('{"id": "b/0", "segments": [7]}\n')
    with pytest.raises(RunError, match="is damaged"):
        export_run(run, tmp_path / "out", ExportOptions())
    assert list(tmp_path.iterdir()) == [run]
    short = Segment(ids=[1], mask=[1, 1], logprobs=[-1.0, -1.0])
    with pytest.raises(RunError, match="its lengths differ"):
        scored_group([make("a", 0, 1.0, segments=[short])])
    with pytest.raises(SpecError, match="to"):
        ExportOptions(to="parquet")


def test_the_export_command_reports_what_it_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``hyperrun rollout export`` prints the path to standard output and the omissions to standard
    error.
    """
    run = str(write_run(tmp_path / "run", make("a", 0, 1.0), make("a", 1, None)))
    output = str(tmp_path / "o.jsonl")
    assert main(["rollout", "export", run, "--to", "jsonl", "--output", output]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{output}\n"
    assert "left out: 1 trajectories without a reward" in shown.err
    assert main(["rollout", "export", run, "--to", "jsonl", "--output", output]) == 1
    assert "exists already" in capsys.readouterr().err
    assert main(["rollout", "export", str(tmp_path), "--output", f"{output}2"]) == 1
    assert "has no trajectories.jsonl" in capsys.readouterr().err
