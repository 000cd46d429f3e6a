"""Labels are removed from tables and added again; the agent's text decides only its answers."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperruntime.errors import AgentError
from hyperruntime.loop.hyperagents.labels import (
    blank,
    copy_without_labels,
    format_table,
    parse_table,
    relabel,
)

FIELDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
IDS = st.one_of(
    st.text("abc0157.", min_size=1, max_size=3),
    st.sampled_from(["7", "007", "7.0", 'a"b', "a,b", "a\nb"]),
)
LABELS = st.sampled_from(["accept", "reject"])
ROWS = st.lists(st.tuples(IDS, FIELDS, LABELS), min_size=1, max_size=8)
HEADER = ("question_id", "text", "outcome")


def dataset(rows: list[tuple[str, str, str]]) -> bytes:
    return format_table(HEADER, rows)


def read(data: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(data.decode(), newline="")))


@given(ROWS)
def test_blank_removes_only_the_labels(rows: list[tuple[str, str, str]]) -> None:
    found = parse_table(blank(dataset(rows), ["outcome", "absent"], "t"), "t")
    assert found.rows == tuple((name, text, "") for name, text, _ in rows)


@given(st.lists(st.tuples(FIELDS, FIELDS), min_size=1, max_size=8))
def test_a_table_without_labels_is_unchanged(rows: list[tuple[str, str]]) -> None:
    data = format_table(("a", "b"), rows).replace(b"\n", b"\r\n")
    assert blank(data, ["outcome"], "t") == data


@given(ROWS, st.data())
def test_answers_are_matched_by_id_in_any_order_and_extra_rows_are_ignored(
    rows: list[tuple[str, str, str]], data: st.DataObject
) -> None:
    unique = list({row[0]: row for row in rows}.values())
    answered = {row[0]: data.draw(LABELS) for row in unique if data.draw(st.booleans())}
    lines = [(name, "other text", "accept", said) for name, said in answered.items()]
    extra = [
        (f"extra {name}", "", "", "accept") for name in data.draw(st.lists(FIELDS, max_size=3))
    ]
    written = format_table((*HEADER, "prediction"), data.draw(st.permutations([*lines, *extra])))
    found = relabel(dataset(unique), written, "question_id", None)
    assert found.ids == tuple(row[0] for row in unique)
    assert found.answers == tuple(answered.get(name) for name in found.ids)
    assert found.ignored == len(extra)
    assert [tuple(line.values()) for line in read(found.table)] == [
        (*row, answered.get(row[0], "")) for row in unique
    ]


@given(ROWS, st.integers(0, 9))
def test_only_the_requested_number_of_rows_counts(
    rows: list[tuple[str, str, str]], count: int
) -> None:
    said = format_table(("question_id", "prediction"), [(row[0], "accept") for row in rows])
    found = relabel(dataset(rows), said, "question_id", count)
    assert len(read(found.table)) == len(found.ids) == min(count, len(rows))
    assert set(found.answers) <= {"accept"}


def test_a_repeated_id_gets_its_answers_in_order() -> None:
    rows = [("q", "first", "accept"), ("q", "second", "reject"), ("q", "third", "accept")]
    said = format_table(("prediction", "question_id"), [("one", "q"), ("two", "q")])
    assert relabel(dataset(rows), said, "question_id", None).answers == ("one", "two", None)


def test_a_second_answer_for_one_id_is_ignored() -> None:
    said = format_table(("question_id", "prediction"), [("q", "reject"), ("q", "accept")])
    found = relabel(dataset([("q", "", "accept")]), said, "question_id", None)
    assert (found.answers, found.ignored) == (("reject",), 1)


@pytest.mark.parametrize(("stored", "written"), [("007", "7"), ("7", "7.0"), ("1", "1")])
def test_an_id_that_the_agent_wrote_as_a_number_is_matched(stored: str, written: str) -> None:
    said = format_table(("question_id", "prediction"), [(written, "accept")])
    assert relabel(dataset([(stored, "", "accept")]), said, "question_id", None).answers == (
        "accept",
    )


def test_ids_with_the_same_numeric_value_are_not_confused() -> None:
    said = format_table(("question_id", "prediction"), [("7", "one"), ("007", "two")])
    found = relabel(
        dataset([("007", "", "accept"), ("7", "", "accept")]), said, "question_id", None
    )
    assert found.answers == ("two", "one")


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"question_id\nq\n",
        b"prediction\naccept\n",
        b'question_id,prediction\n"q',
        b"a,a\n1,2\n",
        b"a,b\n1\n",
    ],
)
def test_an_invalid_table_of_answers_is_rejected(said: bytes) -> None:
    with pytest.raises(AgentError):
        relabel(dataset([("q", "", "accept")]), said, "question_id", None)


def test_a_field_may_be_long() -> None:
    text = "x" * 500_000
    assert relabel(
        dataset([("q", text, "accept")]), b"question_id,prediction\nq,yes\n", "question_id", None
    ).answers


def test_a_directory_with_the_name_of_a_table_does_not_stop_the_copy(tmp_path: Path) -> None:
    (tmp_path / "source" / "odd.csv").mkdir(parents=True)
    (tmp_path / "source" / "odd.csv" / "t.csv").write_bytes(b"id,label\n0,accept\n")
    copy_without_labels(tmp_path / "source", tmp_path / "target", ["label"])
    assert (tmp_path / "target" / "odd.csv" / "t.csv").read_bytes() == b"id,label\n0,\n"
