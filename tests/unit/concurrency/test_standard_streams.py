"""Standard input and output of an event loop: all lines and whole texts, in order; neither a task
nor the process waits for the other side at its end.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

READ = """
import asyncio, sys
from hyperruntime.concurrency.standard_streams import input_lines

async def main():
    lines = []
    async for line in input_lines():
        lines.append(line)
        if line == "first\\n":
            print("begun", flush=True)
            return
    print(lines)

asyncio.run(main())
"""
WRITE = """
import asyncio
from hyperruntime.concurrency.standard_streams import own_standard_output

async def main():
    async with own_standard_output() as output:
        print("of others", flush=True)
        for number in range(3):
            await output.write(f"{number}" * 100_000 + "\\ud800\\n")
            await output.flush()
    print("after", flush=True)

asyncio.run(main())
"""
FILL = """
import asyncio
from hyperruntime.concurrency.standard_streams import own_standard_output

async def main():
    async with own_standard_output() as output:
        for _ in range(2):
            try:
                await asyncio.wait_for(output.write("x" * 10_000_000), 0.2)
            except (BrokenPipeError, TimeoutError) as error:
                print(type(error).__name__, flush=True)

asyncio.run(main())
"""


def start(program: str) -> subprocess.Popen[bytes]:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, stderr=pipe)


def test_all_lines_come() -> None:
    given = b"a\n\n\xff\r\n\0\n" + b"x" * 1_000_000 + b"\n" + b"y\n" * 100 + b"no end of line"
    lines = ["a\n", "\n", "\ufffd\r\n", "\0\n", "x" * 1_000_000 + "\n", *["y\n"] * 100]
    with start(READ) as process:
        said, errors = process.communicate(given)
    assert (process.returncode, errors) == (0, b"")
    assert said.decode() == f"{[*lines, 'no end of line']}\n"


def test_a_process_ends_while_its_input_is_open() -> None:
    with start(READ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"first\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"begun\n"
        assert process.wait(30) == 0


def test_closed_input_is_the_end() -> None:
    closed = ["sh", "-c", 'exec "$0" -c "$1" <&-', sys.executable, READ]
    done = subprocess.run(closed, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"[]\n", b"")


@pytest.mark.parametrize("blocking", [True, False])
def test_all_texts_come_in_order_and_what_others_print_goes_to_standard_error(
    blocking: bool,
) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, blocking)
    with subprocess.Popen(
        [sys.executable, "-c", WRITE], stdout=writer, stderr=subprocess.PIPE
    ) as process:
        os.close(writer)
        with open(reader, "rb") as output:
            said = output.read().decode()
        assert process.stderr is not None
        assert process.stderr.read() == b"of others\n"
    assert process.returncode == 0
    assert said == "".join(f"{number}" * 100_000 + "?\n" for number in range(3)) + "after\n"


@pytest.mark.parametrize(("gone", "error"), [(False, b"TimeoutError"), (True, b"BrokenPipeError")])
def test_nothing_waits_for_a_reader_that_does_not_read_or_is_gone(gone: bool, error: bytes) -> None:
    with start(FILL.replace("0.2", "20") if gone else FILL) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        if gone:
            process.stdout.close()
        assert process.wait(30) == 0
        assert process.stderr.read() == (error + b"\n") * 2
