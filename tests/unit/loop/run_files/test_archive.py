"""The archive and the files below it: truncated lines, adoption, atomic writes, the owner of a
run.
"""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import attrs
import pytest

from hyperruntime.errors import ArchiveError, SpecError, StorageError
from hyperruntime.loop.run_files.archive import Archive, load_run
from hyperruntime.loop.run_files.follow import JournalFollower
from hyperruntime.loop.run_files.layout import Layout, parse_genid
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.run_files.record import (
    GenerationMark,
    GenerationRecord,
    record_from_json,
    record_to_json,
)
from hyperruntime.option_fields import from_json, to_json
from hyperruntime.runs.lock import RunLock
from hyperruntime.spec import Limits
from hyperruntime.storage.atomic import (
    append_line,
    finish_directory,
    make_directory,
    storage_errors,
    write_atomic,
)


def record(
    genid: str | int, score: float | None = 0.5, parent: str | int | None = None
) -> GenerationRecord:
    return GenerationRecord(
        genid=genid,
        parent=parent,
        score=score,
        scores={"circle_packing": {"train": 0.25, "val": score or 0.0}},
        valid_parent=score is not None,
        failure=None if score is not None else "agent",
        detail="" if score is not None else 'it went wrong: \n"quoted" \u2603',
        commit="a" * 40,
        durations={"meta agent": 1.5},
        dropped=(("hyperrun.toml", "is protected"),),
    )


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    run = Layout(tmp_path / "generate_a run's directory")
    run.root.mkdir()
    options = GenerateOptions(
        domains="circle_packing", max_generation=2, seed=5, limits=Limits(cpus=2)
    )
    run.run.write_text(json.dumps({"options": to_json(options), "seed": 5}))
    return run


@pytest.mark.parametrize("genid", ["initial", 0, 7])
@pytest.mark.parametrize("score", [0.5, None])
def test_a_record_survives_json(genid: str | int, score: float | None) -> None:
    one = record(genid, score, parent=None if genid == "initial" else "initial")
    assert record_from_json(json.loads(json.dumps(record_to_json(one)))) == one


@pytest.mark.parametrize(
    "value", [None, [], {}, {"current_genid": True}, {"current_genid": -1}, {"current_genid": "x"}]
)
def test_an_invalid_record_is_rejected(value: object) -> None:
    with pytest.raises(ValueError, match="no"):
        record_from_json(value)


def test_a_truncated_line_is_skipped_and_reported_and_the_next_line_is_separate(
    layout: Layout,
) -> None:
    archive = Archive.load(layout)
    archive.add(record("initial"))
    archive.add(record(1, parent="initial"))
    layout.journal.write_bytes(layout.journal.read_bytes()[:-20])
    torn = Archive.load(layout)
    assert [one.genid for one in torn] == ["initial"]
    assert "line 2" in torn.problems[0]
    torn.add(record(1, parent="initial"))
    again = Archive.load(layout)
    assert [one.genid for one in again] == ["initial", 1]
    assert len(again.problems) == 1


@pytest.mark.parametrize(
    "damage",
    [
        b"\0" * 50,
        b"{}",
        b'{"current_genid": [1]}',
        b'{"current_genid": 2, "settings": [1]}',
        b"[" * 100_000,
        b'"' + b"x" * 100_000 + b'"',
        b"\xff\xfe",
        b"null",
    ],
    ids=["zeros", "empty", "genid", "settings", "deep", "long", "no text", "null"],
)
def test_other_lines_are_read_when_one_line_is_damaged(layout: Layout, damage: bytes) -> None:
    append_line(layout.journal, record_to_json(record("initial")))
    with layout.journal.open("ab") as file:
        file.write(damage + b"\n")
    append_line(layout.journal, record_to_json(record(1, parent="initial")))
    view = load_run(layout.root)
    assert [one.genid for one in view.generations] == ["initial", 1]
    assert len(view.problems) == 1
    assert len(view.problems[0]) < 300


CHAINS: dict[str, list[tuple[str | int, str | int | None]]] = {
    "a cycle": [("initial", None), (1, 2), (2, 1), (3, "initial")],
    "its own parent": [("initial", None), (1, 1), (3, "initial")],
    "a parent that appears later": [("initial", None), (1, 3), (3, "initial")],
    "an unknown parent, and its child": [("initial", None), (1, 77), (2, 1), (3, "initial")],
}


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_a_generation_whose_parent_is_not_before_it_is_skipped_and_reported(
    layout: Layout, chain: list[tuple[str | int, str | int | None]]
) -> None:
    layout.journal.write_text(
        "".join(f"{json.dumps(record_to_json(record(n, parent=p)))}\n" for n, p in chain)
    )
    archive, follower = Archive.load(layout), JournalFollower(layout.root)
    follower.read_new()
    left_out = [
        (number, parent) for number, (genid, parent) in enumerate(chain, 1) if genid in (1, 2)
    ]
    said = [
        f"line {number} of journal.jsonl was skipped: its parent {parent} is not a generation "
        "before it"
        for number, parent in left_out
    ]
    assert archive.problems == follower.problems == said
    assert [one.genid for one in archive] == ["initial", 3]
    assert [one.genid for one in follower.archive] == ["initial", 3]
    assert archive.depth(3) == 1


def test_children_of_a_damaged_line_are_kept_if_the_directory_of_their_parent_has_its_record(
    layout: Layout,
) -> None:
    lines = [
        json.dumps(record_to_json(one))
        for one in (record("initial"), record(1, parent="initial"), record(2, parent=1))
    ]
    layout.journal.write_text("\n".join([lines[0], lines[1][:-9], lines[2]]) + "\n")
    for genid in (1, 2):
        layout.generation(genid).mkdir()
    metadata = {"hyperruntime": json.loads(lines[1])}
    (layout.generation(1) / "metadata.json").write_text(json.dumps(metadata))
    archive = Archive.load(layout)
    assert [(one.genid, archive.depth(one.genid)) for one in archive] == [
        ("initial", 0),
        (1, 1),
        (2, 2),
    ]
    assert len(archive.problems) == 1
    archive.repair()
    assert [one.genid for one in Archive.load(layout)] == ["initial", 1, 2]


DAMAGED: dict[str, dict[str, object]] = {
    "a score that is not a number": {"score": float("nan")},
    "an infinite score": {"score": float("inf")},
    "a huge score": {"score": 10**400},
    "a huge id": {"current_genid": 10**300},
    "a domain that leaves the directory": {"scores": {"../../../private": {"train": 0.5}}},
    "an absolute domain": {"scores": {"/etc/passwd": {"train": 0.5}}},
    "a domain with an escape sequence": {"scores": {"\x1b]0;x\x07": {"train": 0.5}}},
    "a split that leaves the directory": {"scores": {"circle_packing": {"x/../../private": 0.5}}},
    "a split with a NUL byte": {"scores": {"circle_packing": {"a\0b": 0.5}}},
}


@pytest.mark.parametrize("changes", DAMAGED.values(), ids=DAMAGED)
def test_a_line_with_a_dangerous_value_is_skipped_and_reported(
    layout: Layout, changes: dict[str, object]
) -> None:
    good, bad = (
        record_to_json(record("initial")),
        {**record_to_json(record(1, parent="initial")), **changes},
    )
    layout.journal.write_text(f"{json.dumps(good)}\n{json.dumps(bad)}\n")
    archive = Archive.load(layout)
    assert [one.genid for one in archive] == ["initial"]
    assert len(archive.problems) == 1
    assert archive.problems[0].startswith("line 2 of journal.jsonl is damaged and was skipped: ")
    assert len(archive.problems[0]) < 400
    assert archive.problems[0].isprintable()


def test_a_generation_counts_only_once(layout: Layout) -> None:
    for one in (record("initial"), record(1, 0.1), record(1, 0.9)):
        append_line(layout.journal, record_to_json(one))
    archive = Archive.load(layout)
    assert [(one.genid, one.score) for one in archive] == [("initial", 0.5), (1, 0.1)]
    assert "repeats" in archive.problems[0]
    with pytest.raises(ArchiveError, match="already"):
        archive.add(record(1))


def test_a_finished_directory_that_the_journal_lacks_is_adopted_once(layout: Layout) -> None:
    append_line(layout.journal, record_to_json(record("initial")))
    folder = layout.generation(1)
    folder.mkdir()
    (folder / "metadata.json").write_text(
        json.dumps({"hyperruntime": record_to_json(record(1, parent="initial"))})
    )
    (layout.root / "gen_2").mkdir()
    (layout.root / "gen_x").mkdir()
    archive = Archive.load(layout)
    assert [one.genid for one in archive] == ["initial", 1]
    assert any("gen_2" in problem for problem in archive.problems)
    archive.repair()
    assert len(layout.journal.read_bytes().splitlines()) == 2
    Archive.load(layout).repair()
    assert len(layout.journal.read_bytes().splitlines()) == 2


def test_children_and_marks_are_the_same_while_writing_and_after_a_load(layout: Layout) -> None:
    archive = Archive(layout)
    for one in (
        record("initial", 0.3),
        record(1, 0.4, "initial"),
        record(2, 0.8, 1),
        record(3, None, 1),
    ):
        archive.add(one)
    archive.mark(
        GenerationMark(kind="no-parent", genid=1, by=3, detail="its child's meta agent failed")
    )
    archive.mark(GenerationMark(kind="no-selection", genid=2))
    archive.mark(GenerationMark(kind="no-parent", genid=1, by=4))
    again = Archive.load(layout)
    for known in (archive, again):
        assert [(one.genid, one.children) for one in known.candidates()] == [("initial", 1), (2, 0)]
        assert not known[1].valid_parent
        assert [known.can_select(genid) for genid in ("initial", 2, 9)] == [True, False, False]
    assert len(layout.journal.read_bytes().splitlines()) == 6
    assert [mark.by for mark in again.marks] == [3, None]
    with pytest.raises(ArchiveError, match="not in the archive"):
        archive.mark(GenerationMark(kind="no-parent", genid=9))


def test_a_lineage_is_listed_in_chapters_of_limited_length(layout: Layout) -> None:
    archive = Archive.load(layout)
    archive.add(record("initial"))
    for number in range(1, 7):
        archive.add(record(number, parent=number - 1 or "initial"))
    assert archive.lineage("initial", 4) == ([], None)
    assert archive.lineage(3, 4) == ([1, 2, 3], None)
    assert archive.lineage(4, 4) == ([], 4)
    assert archive.lineage(6, 4) == ([5, 6], 4)
    assert archive.depth(6) == 6


def test_adding_a_generation_writes_few_bytes_even_after_ten_thousand(layout: Layout) -> None:
    archive = Archive.load(layout)
    for number in range(10_000):
        archive._index(record(number, parent=max(0, number - 1)))
    size = layout.journal.stat().st_size if layout.journal.exists() else 0
    archive.add(record(10_000, parent=9_999))
    assert layout.journal.stat().st_size - size < 1000


@pytest.mark.parametrize(
    ("name", "genid"),
    [("gen_initial", "initial"), ("gen_12", 12), ("gen_012", None), ("gen_", None), ("12", None)],
)
def test_a_directory_name_is_parsed_to_a_generation_id(name: str, genid: object) -> None:
    assert parse_genid(name) == genid


def test_a_run_is_interrupted_until_all_its_generations_exist(layout: Layout) -> None:
    for one in (record("initial"), record(1)):
        append_line(layout.journal, record_to_json(one))
    assert load_run(layout.root).state == "interrupted"
    append_line(layout.journal, record_to_json(record(2, None)))
    assert load_run(layout.root).state == "finished"
    with RunLock(layout.root):
        assert load_run(layout.root).state == "running"


def test_options_and_seed_are_loaded_from_run_json(layout: Layout) -> None:
    view = load_run(layout.root)
    assert view.options.limits == Limits(cpus=2)
    assert view.options.domains == ("circle_packing",)
    assert view.seed == 5


@pytest.mark.parametrize(
    "content", [None, "", "[]", "{}", '{"seed": 1, "options": {"domains": []}}']
)
def test_a_directory_without_a_valid_run_raises_a_one_line_error(
    tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    with pytest.raises(ArchiveError) as caught:
        load_run(tmp_path)
    assert "\n" not in str(caught.value)


def test_an_unknown_option_of_a_later_version_is_ignored() -> None:
    stored = {**to_json(GenerateOptions(domains="a")), "colour": "blue"}
    assert from_json(GenerateOptions, stored, strict=False).domains == ("a",)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("max_generation", -1, "0 or more"),
        ("parallel", 0, "1 or more"),
        ("eval_samples", (0,), "-1 for all"),
        ("eval_samples", (1, 2), "each of 1 domains"),
        ("timeout_meta_s", 0, "positive"),
        ("timeout_eval_s", float("nan"), "positive"),
        ("run_id", "../x", "letters"),
        ("network", "lan", "known: bridge, host, none"),
        ("domains", (), "at least one"),
        ("seed", -3, "0 or more"),
        ("max_file_bytes", 0, "1 or more"),
    ],
)
def test_invalid_options_are_rejected_with_the_reason(field: str, value: object, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        attrs.evolve(GenerateOptions(domains="circle_packing"), **{field: value})  # type: ignore[arg-type]


def test_settled_options_have_a_run_id_and_a_seed() -> None:
    one, two = (
        GenerateOptions(domains="a").settled(),
        GenerateOptions(domains="a", seed=3, run_id="x").settled(),
    )
    assert one.run_id is not None
    assert len(one.run_id) == len("20260101_000000_000000")
    assert one.seed is not None
    assert (two.seed, two.run_id) == (3, "x")


def test_a_failed_atomic_write_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "file.json"
    write_atomic(target, b"old")
    (tmp_path / ".file.json.partial").mkdir()
    with pytest.raises(StorageError, match=r"file\.json"):
        write_atomic(target, b"new")
    assert target.read_bytes() == b"old"


def test_a_finished_directory_appears_at_once_under_its_name(tmp_path: Path) -> None:
    partial = make_directory(tmp_path / "work" / "gen_1")
    (partial / "a").write_text("b")
    finish_directory(partial, tmp_path / "gen_1")
    assert (tmp_path / "gen_1" / "a").read_text() == "b"
    assert not partial.exists()


def test_storage_errors_for_no_space_and_no_permission_have_one_line() -> None:
    for code, said in (
        (errno.ENOSPC, "no space"),
        (errno.EACCES, "no permission"),
        (errno.EROFS, "read-only"),
    ):
        with pytest.raises(StorageError, match=said) as caught, storage_errors("/some/where"):
            raise OSError(code, os.strerror(code))
        assert "'/some/where'" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_file_in_place_of_a_directory_raises_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="part of the path is a file"):
        make_directory(tmp_path / "file" / "below")


def test_a_full_device_and_a_journal_that_is_a_device_raise_storage_errors() -> None:
    full = Path("/dev/full")
    with (
        pytest.raises(StorageError, match="no space"),
        storage_errors(full),
        full.open("wb", buffering=0) as file,
    ):
        file.write(b"a line")
    with pytest.raises(StorageError, match="it is a device, not a regular file; remove it"):
        append_line(full, {"a": 1})  # a journal is never a device
