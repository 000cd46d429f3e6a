"""Standard output of an event loop: whole texts in order; neither a task nor the process waits for
a reader.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ALL = """
import asyncio, sys
from hyperruntime.concurrency.output_text import own_standard_output

async def main():
    async with own_standard_output() as output:
        print("of others", flush=True)
        for number in range(3):
            await output.write(f"{number}" * 100_000 + "\\ud800\\n")
            await output.flush()
    print("after", flush=True)

asyncio.run(main())
"""
FULL = """
import asyncio
from hyperruntime.concurrency.output_text import own_standard_output

async def main():
    async with own_standard_output() as output:
        try:
            await asyncio.wait_for(output.write("x" * 10_000_000), 0.2)
        except TimeoutError:
            print("cancelled", flush=True)

asyncio.run(main())
"""
GONE = """
import asyncio, sys
from hyperruntime.concurrency.output_text import own_standard_output

async def main():
    async with own_standard_output() as output:
        for _ in range(2):
            try:
                await output.write("x" * 10_000_000)
            except BrokenPipeError:
                print("gone", flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("blocking", [True, False])
def test_all_texts_come_in_order_and_what_others_print_goes_to_standard_error(
    blocking: bool,
) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, blocking)
    with subprocess.Popen(
        [sys.executable, "-c", ALL], stdout=writer, stderr=subprocess.PIPE
    ) as process:
        os.close(writer)
        with open(reader, "rb") as output:
            said = output.read().decode()
        assert process.stderr is not None
        assert process.stderr.read() == b"of others\n"
    assert process.returncode == 0
    assert said == "".join(f"{number}" * 100_000 + "?\n" for number in range(3)) + "after\n"


def test_neither_a_task_nor_the_process_waits_for_a_reader_that_does_not_read() -> None:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", FULL], **pipes) as process:  # type: ignore[call-overload]
        assert process.wait(30) == 0
        assert process.stderr.read() == b"cancelled\n"


def test_a_reader_that_is_gone_is_an_error() -> None:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", GONE], **pipes) as process:  # type: ignore[call-overload]
        process.stdout.close()
        assert process.stderr.read() == b"gone\ngone\n"
        assert process.wait(30) == 0
