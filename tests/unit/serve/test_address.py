"""Where ``hyperrun serve`` listens: what others could use is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hyperruntime.cli import main
from hyperruntime.cli.containers.serve import _remove_own


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("--host", "0.0.0.0"),
            "--host 0.0.0.0 is not allowed: the service listens on 127.0.0.1 only",
        ),
        (("--host", "::"), "--host :: is not allowed"),
        (("--no-token",), "--no-token needs --socket"),
        (
            ("--socket", "s", "--no-token", "--token-file", "t"),
            "--no-token and --token-file exclude each other",
        ),
        (("--port", "1", "--socket", "s"), "--port and --socket exclude each other"),
        (("--memory", "1k"), "memory_bytes=1024 is not allowed"),
    ],
)
def test_an_unsafe_option_is_refused_by_name(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--runtime", "none", "serve", *words]) == 2
    assert said in capsys.readouterr().err


def test_the_end_of_a_service_leaves_the_socket_of_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    path.touch()
    own = os.lstat(path)
    path.rename(tmp_path / "old")
    path.touch()
    _remove_own(path, own)
    assert path.exists()
    _remove_own(path, os.lstat(path))
    assert not path.exists()
