"""Where ``hyperrun serve`` listens: what others could use is refused."""

from __future__ import annotations

import pytest

from hyperruntime.cli import main


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
