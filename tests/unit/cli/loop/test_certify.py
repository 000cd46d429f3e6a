"""``hyperrun certify``: the exact value, the exit codes, and files that are no certificates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hyperruntime.cli import main

RULER = [0, 1, 6, 10, 23, 26, 34, 41, 53, 55]
CERTIFICATE = {"domain": "math", "problem": "golomb-10", "value": "55", "answer": RULER}


def certified(folder: Path, text: str, *words: str) -> int:
    path = folder / "a certificate.json"
    path.write_text(text)
    return main(["certify", str(path), *words])


def test_a_certificate_is_checked_from_its_file_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert certified(tmp_path, json.dumps(CERTIFICATE)) == 0
    out = capsys.readouterr().out
    assert "length 55, the record is 55; no new record" in out
    assert "exact value: 55" in out
    assert certified(tmp_path, json.dumps(CERTIFICATE), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["value"], found["is_record"], found["score"]) == ("55", False, 1.0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"answer": [*RULER[:-1], 54]}, "occurs twice"),
        ({"value": "54"}, "states the value '54', but it is 55"),
        ({"value": 55}, "states the value a number"),
        ({"answer": None}, "null, not a list"),
    ],
)
def test_a_wrong_certificate_is_refused(
    change: dict[str, Any], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert certified(tmp_path, json.dumps({**CERTIFICATE, **change})) == 1
    assert reason in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "a certificate is a JSON object"),
        ("[1]", "a certificate is a JSON object"),
        ("[" * 10_000, "a certificate is a JSON object"),
        ('{"domain": "math", "answer": ' + "9" * 10_000 + "}", "a certificate is a JSON object"),
        ("{}", "names the domain that made it"),
        ('{"domain": "table:/etc/passwd"}', "names the domain that made it"),
        ('{"domain": "circle_packing"}', "makes no certificates"),
        ('{"domain": "math", "problem": "golomb"}', "is not allowed"),
    ],
)
def test_a_file_that_is_no_certificate_is_wrong_usage(
    text: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert certified(tmp_path, text) == 2
    assert reason in capsys.readouterr().err
