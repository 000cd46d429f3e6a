"""Where ``hyperrun serve`` listens, and the file with its token: what others could use is refused."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hyperruntime.cli import main
from hyperruntime.errors import SpecError
from hyperruntime.serve.token_file import token_of


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--host", "0.0.0.0"), "--host 0.0.0.0 is not allowed: the service listens on 127.0.0.1 only"),
        (("--host", "::"), "--host :: is not allowed"),
        (("--no-token",), "--no-token needs --socket"),
        (("--socket", "s", "--no-token", "--token-file", "t"), "--no-token and --token-file exclude each other"),
        (("--port", "1", "--socket", "s"), "--port and --socket exclude each other"),
        (("--memory", "1k"), "memory_bytes=1024 is not allowed"),
    ],
)
def test_an_unsafe_option_is_refused_by_name(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--runtime", "none", "serve", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_token_is_made_once_for_this_user_alone(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with ThreadPoolExecutor(8) as threads:
        tokens = set(threads.map(token_of, [file] * 8))
    assert tokens == {file.read_text().strip()}
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["token"]
    assert len(tokens.pop()) >= 43


@pytest.mark.parametrize(
    ("text", "mode"), [("x" * 40, 0o640), ("x" * 40, 0o604), ("short", 0o600), ("x" * 40 + "\ny", 0o600), ("", 0o600)]
)
def test_a_file_that_others_may_read_or_that_has_no_token_is_refused(tmp_path: Path, text: str, mode: int) -> None:
    file = tmp_path / "token"
    file.write_text(text)
    file.chmod(mode)
    with pytest.raises(SpecError, match="token_file="):
        token_of(file)
