"""What ``hyperrun shell`` takes back of a terminal's modes after a program was killed."""

from __future__ import annotations

from typing import cast

import pytest

from hyperruntime.cli.containers.attach import _Output
from hyperruntime.exec.spawn.terminal import Terminal


class Said:
    """A terminal with given output."""

    def __init__(self, *chunks: bytes) -> None:
        self._chunks = [*chunks, b""]

    def read(self) -> bytes:
        return self._chunks.pop(0)


def test_modes_set_together_are_taken_back_together(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    chunks = (b"\x1b[?1000;10", b"06;9999h\x1b[?25l", b"\x1b[?2004h\x1b[?1;2004l\x1b[?1049;1h")
    with _Output(cast("Terminal", Said(*chunks))):
        pass
    said = capfdbinary.readouterr().out.removeprefix(b"".join(chunks))
    expected = {b"\x1b[?1000l", b"\x1b[?1006l", b"\x1b[?25h", b"\x1b[?1l", b"\x1b[?1049l"}
    assert {part for part in expected if part in said} == expected
    assert b"9999" not in said
    assert b"2004" not in said
