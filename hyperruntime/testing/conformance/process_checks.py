"""Checks of commands that run beside their caller, and of signals to them and to a persistent
shell.
"""

from __future__ import annotations

import asyncio
import signal
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial

from hyperruntime.container import Container
from hyperruntime.errors import ContainerLostError, SpecError, WorkdirNotFoundError
from hyperruntime.exec.spawn.process import Process
from hyperruntime.testing.conformance.check import (
    check,
    expect,
    expect_equal,
    expect_error,
    expect_soon,
)
from hyperruntime.testing.conformance.context import Context, left_of, marker, shell

_WAIT_S = 20.0
_ALIVE = 'echo up; trap "echo heard; exit 3" USR1; while :; do sleep 0.05; done'
_TREE = "setsid env -i /bin/sh -c 'exec sleep '$1 & sleep $1 & echo up; wait"


def spawn_script(context: Context, container: Container, script: str, *args: str) -> Process:
    """Start a script in the background; return its process after its first line, ``up``.

    Args:
        context: the runtime under test.
        container: where the script runs.
        script: a script of ``sh`` that first prints ``up``.
        args: its arguments, from ``$1``.

    Raises:
        AssertionError: the line does not come in time.
    """
    process = container.spawn(["sh", "-c", script, "check", *args])
    try:
        expect_soon(
            context, lambda: process.stdout.startswith(b"up\n"), "the first output of a process"
        )
    except BaseException:
        process.close()
        raise
    return process


def _has_said(process: Process, output: bytes) -> bool:
    return process.stdout == output


@check("process.streams")
def streams(context: Context) -> None:
    """A background command's input stays open, its output can be read while it runs, and its result
    is that of exec.
    """
    with context.container.spawn(["sh", "-c", "cat; echo end >&2; exit 5"]) as process:
        for sent in (b"one\n", b"one\ntwo\n"):
            new = sent.splitlines(keepends=True)[-1]
            process.write(new)
            expect_soon(
                context, partial(_has_said, process, sent), "the output of a running command"
            )
            expect_equal(
                (process.read(), process.read(), process.poll()),
                (new, b"", None),
                "new output, and the state",
            )
        with expect_error(TimeoutError, "a wait for a command that runs on"):
            process.wait(0.01)
        process.close_stdin()
        result = process.wait(context.load.bound(_WAIT_S))
        expect_equal(
            (result.exit_code, result.stdout, result.stderr),
            (5, b"one\ntwo\n", b"end\n"),
            "the result",
        )
        expect_equal(process.poll(), 5, "the exit code afterwards")
        with expect_error(BrokenPipeError, "input for a command that has ended"):
            process.write(b"more")
    with expect_error(WorkdirNotFoundError, "a background command in a missing directory"):
        context.container.spawn(["true"], workdir="/no/such/place")


@check("process.signals")
def signals(context: Context) -> None:
    """A signal reaches a running command with all its processes, and no other command."""
    mark = marker()
    container = context.container
    with spawn_script(context, container, _ALIVE) as other:
        with spawn_script(context, container, _TREE, mark) as process:
            expect_soon(
                context,
                lambda: len(left_of(container, f"sleep {mark}")) >= 2,
                "a tree of processes",
            )
            expect(process.signal(signal.SIGTERM), "no process got the signal")
            expect_equal(
                process.wait(context.load.bound(_WAIT_S)).exit_code,
                128 + signal.SIGTERM,
                "exit code after SIGTERM",
            )
            expect_soon(
                context, lambda: not left_of(container, mark), "the end of its other processes"
            )
            expect(not process.signal(signal.SIGTERM), "a command that has ended got a signal")
        expect(other.signal(signal.SIGUSR1), "no process got the signal")
        result = other.wait(context.load.bound(_WAIT_S))
        expect_equal(
            (result.exit_code, result.stdout),
            (3, b"up\nheard\n"),
            "a command that handles its signal",
        )
    with (
        container.spawn(["sleep", mark]) as process,
        expect_error(SpecError, "signal 1000", "number"),
    ):
        process.signal(1000)


@check("process.interrupt")
def interrupt(context: Context) -> None:
    """SIGINT ends a running command with exit code 130, also by the name of its group and from an
    event loop.
    """
    container = context.container

    async def scenario() -> None:
        process = await container.aspawn(["sleep", marker()])
        expect(await process.ainterrupt(), "no process got the signal")
        expect_equal(
            (await process.await_end()).exit_code, 130, "exit code of an interrupted command"
        )
        await process.aclose()
        group = marker()
        running = asyncio.create_task(container.aexec(["sleep", group], group=group))
        while not await container.asignal_group(group, signal.SIGINT):
            await asyncio.sleep(0.01)
        expect_equal(
            (await running).exit_code, 130, "exit code of an exec whose group is interrupted"
        )

    asyncio.run(scenario())


@check("process.end")
def end(context: Context) -> None:
    """Closing a background command kills all its processes, and it ends with its container."""
    mark = marker()
    with context.start() as container:
        process = spawn_script(context, container, _TREE, mark)
        expect(process.close(), "processes of a closed command are left")
        expect_equal(
            (left_of(container, mark), process.wait().exit_code),
            ([], 137),
            "what is left, and the exit code",
        )
        process = spawn_script(context, container, _TREE, mark)
        container.close()
        with expect_error(ContainerLostError, "a wait for a command of a closed container"):
            process.wait(context.load.bound(_WAIT_S))
        expect(process.close(), "a command of a closed container has processes")


@check("process.merged-output")
def merged_output(context: Context) -> None:
    """With merge_output, standard error is in the standard output, in the order of the writes."""
    script = (
        'i=0; while [ $i -lt 50 ]; do echo "out $i"; echo "err $i" >&2; i=$((i + 1)); done; exit 4'
    )
    wanted = b"".join(b"out %d\nerr %d\n" % (i, i) for i in range(50))
    result = shell(context.container, script, merge_output=True)
    expect_equal(
        (result.stdout, result.stderr, result.exit_code), (wanted, b"", 4), "the merged output"
    )
    missing = context.container.exec(["no-such-program"], merge_output=True)
    expect_equal(
        (missing.exit_code, missing.not_executed),
        (127, True),
        "a missing program with merged output",
    )


@check("process.shell-interrupt")
def shell_interrupt(context: Context) -> None:
    """SIGINT ends the running text of a persistent shell; its state, earlier jobs and other
    commands go on.
    """
    container = context.container
    mark = marker()
    with container.shell() as text, ThreadPoolExecutor(1) as thread:
        text.run(f"cd /tmp; sleep {mark} & job=$!")
        for loop in (
            "sleep 300; echo no",
            "while :; do sleep 0.05; done; echo no",
            "while :; do :; done; echo no",
        ):
            running = thread.submit(text.run, f"before=yes; {loop}")
            while not running.done():
                text.interrupt()
                wait([running], 0.05)
            result = running.result()
            expect_equal(
                (result.exit_code, result.stdout), (130, b""), f"an interrupted text ({loop})"
            )
        said = text.run(
            'echo "$before $PWD"; kill -0 "$job" && echo job; echo e >&2', merge_output=True
        )
        expect_equal(
            (said.stdout, said.stderr), (b"yes /tmp\njob\ne\n", b""), "the state afterwards"
        )
        expect(not text.interrupt(), "a shell without a running text was interrupted")
