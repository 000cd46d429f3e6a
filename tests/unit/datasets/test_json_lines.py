"""Files of JSON lines with odd lines: those are named, and the others are read as they are."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperruntime.datasets.json_lines import json_lines
from hyperruntime.datasets.left_out import FAIL, LeftOut
from hyperruntime.errors import SpecError

OBJECTS = st.dictionaries(
    st.text(max_size=5), st.none() | st.integers() | st.text(max_size=9), max_size=3
)
ODD = st.binary(max_size=20).map(lambda data: b"\xff" + data.replace(b"\n", b"")) | st.sampled_from(
    (b"{", b"[1]", b"null", b"[" * 100_000, b'{"a": 1} {"b": 2}')
)


@given(rows=st.lists(OBJECTS | ODD, max_size=8))
def test_every_line_is_read_or_named(rows: list[dict[str, Any] | bytes]) -> None:
    lines = [
        row if isinstance(row, bytes) else json.dumps(row, ensure_ascii=False).encode()
        for row in rows
    ]
    with TemporaryDirectory() as folder:
        path = Path(folder, "rows.jsonl")
        path.write_bytes(b"\xef\xbb\xbf" + b"\r\n\n".join(lines))
        left = LeftOut()
        found = list(json_lines(path, left, "train, "))
    good = {number: row for number, row in enumerate(rows, 1) if isinstance(row, dict)}
    assert [(line.record, line.value) for line in found] == list(good.items())
    assert [line.number for line in found] == [2 * number - 1 for number in good]
    odd = [
        f"train, line {2 * number - 1}"
        for number, row in enumerate(rows, 1)
        if isinstance(row, bytes)
    ]
    assert list(left.reasons) == odd


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b'{"a": "\xe9"}', "UTF-8; its byte 7 is not"),
        (b"{", "one JSON object on each line: "),
        (b"1", "one JSON object"),
    ],
)
def test_an_odd_line_is_an_error_on_request(tmp_path: Path, line: bytes, says: str) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b"{}\n" + line)
    with pytest.raises(SpecError, match=rf"rows\.jsonl:2=.*{says}"):
        list(json_lines(tmp_path / "rows.jsonl", LeftOut(FAIL)))


def test_numbers_that_are_no_json_are_odd_on_request(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"a": NaN}\n{"a": 1}')
    left = LeftOut()
    assert [line.value for line in json_lines(tmp_path / "rows.jsonl", left, finite=True)] == [
        {"a": 1}
    ]
    assert "NaN" in left.reasons["line 1"]
    assert len(list(json_lines(tmp_path / "rows.jsonl", LeftOut(FAIL)))) == 2
