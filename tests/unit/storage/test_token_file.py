"""The file with the token of a service: made once, and refused if others could know it."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hyperruntime.errors import SpecError
from hyperruntime.storage.token_file import token_of


def test_a_token_is_made_once_for_this_user_alone(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with ThreadPoolExecutor(8) as threads:
        tokens = set(threads.map(token_of, [file] * 8))
    assert tokens == {file.read_text().strip()}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["token"]
    assert len(tokens.pop()) >= 43


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("x" * 40, 0o640),
        ("x" * 40, 0o604),
        ("short", 0o600),
        ("x" * 40 + "\ny", 0o600),
        ("", 0o600),
    ],
)
def test_a_file_that_others_may_read_or_that_has_no_token_is_refused(
    tmp_path: Path, text: str, mode: int
) -> None:
    file = tmp_path / "token"
    file.write_text(text)
    file.chmod(mode)
    with pytest.raises(SpecError, match="token_file="):
        token_of(file)


def test_a_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    token_of(file)
    monkeypatch.setattr(os, "geteuid", lambda: file.stat().st_uid + 1)
    with pytest.raises(SpecError, match="a file of yours"):
        token_of(file)


def test_a_named_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "token", 0o600)
    with pytest.raises(SpecError, match="a file of yours"):
        token_of(tmp_path / "token")
