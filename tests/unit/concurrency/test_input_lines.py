"""Lines of standard input: all of them, until the reader or the input ends; nothing waits for input
at the end.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

ALL = """
import asyncio
from hyperruntime.concurrency.input_lines import input_lines

async def main():
    print([line async for line in input_lines()])

asyncio.run(main())
"""
FIRST = """
import asyncio
from hyperruntime.concurrency.input_lines import input_lines

async def main():
    async for line in input_lines():
        print(line, end="", flush=True)
        return

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("given", "lines"),
    [
        (b"", []),
        (b"a\n\nb", ["a\n", "\n", "b"]),
        (b"\xff\r\n\0\n", ["\ufffd\r\n", "\0\n"]),
        (b"x" * 1_000_000 + b"\n" + b"y\n" * 100, ["x" * 1_000_000 + "\n", *["y\n"] * 100]),
    ],
    # pytest puts them into the environment
    ids=["nothing", "no end of line", "no text", "a long line"],
)
def test_all_lines_come(given: bytes, lines: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", ALL], input=given, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == f"{lines}\n"


def test_a_process_ends_while_its_input_is_open() -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", FIRST], **pipes) as process:  # type: ignore[call-overload]
        process.stdin.write(b"first\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"first\n"
        assert process.wait(30) == 0
        assert process.stderr.read() == b""


def test_closed_input_is_the_end() -> None:
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" -c "$1" <&-', sys.executable, ALL], capture_output=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"[]\n", b"")
