"""Checks of exec: arguments, input, environment, output and exit codes are exact."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hyperruntime.errors import (
    CommandFailedError,
    SpecError,
    UserNotFoundError,
    WorkdirNotFoundError,
)
from hyperruntime.run_as import RunAs
from hyperruntime.spec import ExecResult
from hyperruntime.testing.conformance.check import (
    check,
    expect,
    expect_equal,
    expect_error,
    expect_in_time,
)
from hyperruntime.testing.conformance.context import Context, left_of, marker, shell

JOB_S = 5.0
TOGETHER_S = 10.0
EVERY_BYTE = bytes(range(256))
ARGUMENTS = (
    b"",
    b"two words",
    b"a\nb\n",
    b'it\'s "quoted"',
    b"$HOME `id` $(id) *",
    b"-n",
    b"\\0\\n",
    b"\xff\xfe\x80",
)
ENVIRONMENT = {
    "PLAIN": "1",
    "SPACES": " a  b ",
    "LINES": "a\nb\n",
    "QUOTES": "'\"`$(id)\\",
    "UNICODE": "ä→",
    "EMPTY": "",
}
ODD_NAMES = {
    "with.dot": "a b",
    "with-dash": "c",
    "1digit": "d",
    "IFS": "x",
    "PPID": "77",
    "OPTIND": "9",
    "ÜMLAUT": "a\nb",
}


@check("exec.argv")
def argv(context: Context) -> None:
    """Arguments arrive unchanged, byte for byte, and a shell string is refused."""
    script = r"""for a; do printf '%s\0' "$a"; done"""
    result = context.container.exec(["sh", "-c", script, "check", *ARGUMENTS])
    expect_equal(
        result.stdout, b"".join(argument + b"\0" for argument in ARGUMENTS), "the arguments"
    )
    for malformed in ("echo hello", [], [""], ["a\0b"]):
        with expect_error(SpecError, f"exec({malformed!r})", "args"):
            context.container.exec(malformed)


@check("exec.exact-bytes")
def exact_bytes(context: Context) -> None:
    """Input and output are exact for every byte value, from 0 bytes to more than a pipe holds."""
    for data in (b"", b"no newline", EVERY_BYTE * 3, b"\xff\xfe\n\0\n", EVERY_BYTE * 9000):
        expect_equal(
            context.container.exec(["cat"], input=data).stdout,
            data,
            f"{len(data)} bytes through cat",
        )


@check("exec.streams-apart")
def streams_apart(context: Context) -> None:
    """Standard output, standard error and the exit code are returned separately."""
    result = shell(context.container, "printf out; printf err >&2; printf put; exit 7")
    expect_equal(
        (result.stdout, result.stderr, result.exit_code),
        (b"output", b"err", 7),
        "stdout, stderr and code",
    )
    expect(
        not (result.timed_out or result.truncated),
        "a short command is reported as timed out or truncated",
    )


@check("exec.input")
def takes_input(context: Context) -> None:
    """Input comes from bytes or a file; without input, a command reads an empty stream."""
    path = context.place() / "input"
    path.write_bytes(EVERY_BYTE * 1000)
    with path.open("rb") as file:
        file.seek(256)
        expect_equal(
            context.container.exec(["cat"], input=file).stdout,
            EVERY_BYTE * 999,
            "a file from its position on",
        )
    expect_equal(
        context.container.exec(["cat"], input=io.BytesIO(b"memory")).stdout,
        b"memory",
        "a file in memory",
    )
    expect_equal(context.container.exec(["cat"]).stdout, b"", "no input")


@check("exec.unread-input")
def unread_input(context: Context) -> None:
    """A command that does not read its input does not block the call."""
    data = b"x" * 3_000_000
    expect_equal(
        context.container.exec(["true"], input=data, timeout_s=20).exit_code,
        0,
        "the exit code of true",
    )
    expect_equal(
        shell(context.container, "exec head -c 3", input=data, timeout_s=20).stdout,
        b"xxx",
        "head -c 3",
    )


@check("exec.environment")
def environment(context: Context) -> None:
    """The variables of the spec and of the exec reach a command, also with odd names and values."""
    for name, value in ENVIRONMENT.items():
        result = shell(context.container, f'printf %s "${name}"', env={name: value})
        expect_equal(result.stdout, value.encode(), f"the variable {name} of an exec")
    _expect_variables(context.container.exec(["env"], env=ODD_NAMES), ODD_NAMES)
    with context.start(env={**ENVIRONMENT, **ODD_NAMES, "LATER": "spec"}) as container:
        result = container.exec(["env"], env={"LATER": "exec"})
        _expect_variables(result, {**ENVIRONMENT, **ODD_NAMES, "LATER": "exec"})


def _expect_variables(result: ExecResult, variables: Mapping[str, str]) -> None:
    listed = result.stdout.decode()
    for name, value in variables.items():
        expect(
            f"{name}={value}\n" in listed,
            f"the variable {name}={value!r} did not arrive: {listed!r}",
        )


@check("exec.workdir")
def workdir(context: Context) -> None:
    """A command starts in the working directory of the exec, else in that of the spec."""
    expect_equal(context.container.exec(["pwd"], workdir="/dev").stdout, b"/dev\n", "pwd")
    with context.start(workdir="/tmp") as container:  # noqa: S108 - inside
        expect_equal(container.exec(["pwd"]).stdout, b"/tmp\n", "pwd with workdir /tmp in the spec")
        expect_equal(
            container.exec(["pwd"], workdir="/").stdout, b"/\n", "pwd with workdir / in the exec"
        )


@check("exec.missing-workdir")
def missing_workdir(context: Context) -> None:
    """A missing working directory raises WorkdirNotFoundError, and the container stays usable."""
    for _ in range(5):
        with expect_error(WorkdirNotFoundError, "a missing workdir", "/no/such dir"):
            context.container.exec(["true"], workdir="/no/such dir")
        expect_equal(context.container.exec(["echo", "on"]).stdout, b"on\n", "the next command")


@check("exec.user", needs="exec.user")
def user(context: Context) -> None:
    """A command can run as another user and group; the next one does not; a missing program is
    reported then too.
    """
    ids = "id -u; id -g"
    usual = shell(context.container, ids).stdout
    expect_equal(
        shell(context.container, ids, user="1234:5678").stdout, b"1234\n5678\n", "id as 1234:5678"
    )
    expect_equal(shell(context.container, ids).stdout, usual, "id of the next command")
    for other in ("1234:5678", RunAs(uid=20_005)):
        expect(
            context.container.exec(["no-such"], user=other).not_executed,
            f"{other} sees no report of a missing program",
        )
    result = shell(
        context.container,
        "setsid sleep $1 & sleep $1",
        mark := marker(),
        user="1234:5678",
        timeout_s=0.5,
    )
    expect(result.timed_out, "a command of another user did not time out")
    expect(not left_of(context.container, mark), "a process of another user outlived its timeout")


@check("exec.unknown-user")
def unknown_user(context: Context) -> None:
    """A command of an unknown user raises UserNotFoundError, also without other users; the
    container stays usable.
    """
    with expect_error(UserNotFoundError, "a command of an unknown user", "user", "nobody-at-all"):
        context.container.exec(["true"], user="nobody-at-all")
    expect_equal(context.container.exec(["echo", "on"]).stdout, b"on\n", "the next command")


@check("exec.exit-codes")
def exit_codes(context: Context) -> None:
    """Exit codes from 0 to 255 are exact; a failed command is a result, and its check() raises an
    error.
    """
    for code in (0, 1, 2, 63, 124, 125, 126, 127, 128, 137, 200, 255):
        result = shell(context.container, f"exit {code}")
        expect_equal((result.exit_code, result.timed_out), (code, False), f"exit {code}")
    with expect_error(CommandFailedError, "check() of a failed command", "told", "why"):
        shell(context.container, "echo told; echo why >&2; exit 3").check()


@check("exec.signals")
def signals(context: Context) -> None:
    """A command killed by signal n has exit code 128+n, and signals have their default actions."""
    for number in (
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGABRT,
        signal.SIGKILL,
        signal.SIGTERM,
    ):
        # no shell
        result = shell(
            context.container, '(sleep 0.1; kill "-$1" $$) & exec sleep 20', str(int(number))
        )
        expect_equal(
            result.exit_code, 128 + number, f"exit code of a command killed by {number.name}"
        )
    script = "kill 0; sleep 5; echo survived"
    expect_equal(
        shell(context.container, script).exit_code,
        128 + signal.SIGTERM,
        "a command that kills its group",
    )


@check("exec.not-runnable")
def not_runnable(context: Context) -> None:
    """A program that cannot be executed is a result that says so, with exit code 127 (missing) or
    126; not an error.
    """

    def run(*args: str, **options: Any) -> tuple[int, bool]:  # noqa: ANN401 - keywords of an exec
        result = context.container.exec(args, **options)
        return result.exit_code, result.not_executed

    expect_equal(run("no-such-program"), (127, True), "a missing program")
    expect_equal(
        run("no-such-program", env={"a.b": "1"}),
        (127, True),
        "a missing program with an odd variable",
    )
    expect_equal(run("/no/such/program"), (127, True), "a missing path")
    expect_equal(run("/tmp"), (126, True), "a directory")  # noqa: S108 - inside
    expect_equal(run("sh", "-c", "no-such-program"), (127, False), "a missing program of a shell")
    expect_equal(run("sh", "-c", "exit 126"), (126, False), "the exit code of a program")
    expect_equal(run("true"), (0, False), "true afterwards")


@check("exec.output-limit")
def output_limit(context: Context) -> None:
    """Above the output limit, head and tail are kept, the command runs on, and the result is marked
    truncated.
    """
    script = "echo first; yes 0123456789 | head -c 3000000; echo last; exit 3"
    result = shell(context.container, script, output_limit_bytes=1000)
    expect_equal((result.truncated, result.exit_code), (True, 3), "truncated and exit code")
    expect(result.stdout.startswith(b"first\n"), "the head is lost")
    expect(result.stdout.endswith(b"last\n"), "the tail is lost")
    expect(
        b"bytes of output dropped" in result.stdout, "the output does not say how much was dropped"
    )
    expect(len(result.stdout) < 1200, f"{len(result.stdout)} bytes were kept with a limit of 1000")


@check("exec.streaming")
def streaming(context: Context) -> None:
    """Output is passed on while the command runs."""
    seen: list[tuple[str, bytes]] = []
    read_fd, write_fd = os.pipe()

    def hear(name: str, chunk: bytes) -> None:
        seen.append((name, chunk))
        if len(seen) == 2:
            os.write(write_fd, b"go on\n")

    script = "echo one; echo two >&2; read -r _; echo three"
    with os.fdopen(read_fd, "rb", buffering=0) as source, os.fdopen(write_fd, "wb"):
        result = shell(context.container, script, input=source, on_output=hear, timeout_s=30)
    expect(not result.timed_out, "the output of a waiting command did not arrive")
    parts = {("stdout", b"one\n"), ("stderr", b"two\n"), ("stdout", b"three\n")}
    expect_equal(
        (set(seen), seen[-1]), (parts, ("stdout", b"three\n")), "the chunks, and the last one"
    )


@check("exec.background-job")
def background_job(context: Context) -> None:
    """A background job does not block the call, does not end with it, and writes to no other
    command's output.
    """
    started = time.monotonic()
    script = "sleep $1 & echo $!; (while sleep 0.05; do echo noise; done) & echo $!"
    printed = shell(context.container, script, mark := marker()).stdout
    jobs = [word for word in printed.split() if word.isdigit()]
    expect_in_time(context, started, JOB_S, "a call that leaves a background job")
    for _ in range(20):
        expect_equal(
            context.container.exec(["echo", "clean"]).stdout, b"clean\n", "another command's output"
        )
    expect(bool(left_of(context.container, mark)), "the background job ended with its command")
    expect_equal(
        context.container.exec(["sh", "-c", 'kill "$@"', "check", *jobs]).exit_code,
        0,
        "killing both jobs",
    )


@check("exec.concurrent")
def concurrent(context: Context) -> None:
    """Twenty execs run at the same time in one container, each with its own output."""

    def work(number: int) -> None:
        for turn in range(5):
            text = f"{number} {turn}"
            result = shell(context.container, 'echo "$1"; echo "$1" >&2', text)
            expect_equal(
                (result.stdout, result.stderr), (f"{text}\n".encode(),) * 2, "one of many outputs"
            )

    with ThreadPoolExecutor(20) as threads:
        for done in [threads.submit(work, number) for number in range(20)]:
            done.result()
        # ends once all twenty run
        together = 'echo >>"$1"; until [ "$(wc -l <"$1")" -ge 20 ]; do sleep 0.1; done'
        paths = [f"/tmp/{marker()}"] * 20  # noqa: S108 - inside
        bound_s = context.load.bound(TOGETHER_S)
        ended = list(
            threads.map(
                lambda path: shell(context.container, together, path, timeout_s=bound_s), paths
            )
        )
    expect(
        not any(result.timed_out for result in ended), "twenty commands do not run at the same time"
    )


@check("exec.async")
def asynchronous(context: Context) -> None:
    """The method aexec does not block the event loop, and cancelling it ends the command."""
    mark = marker()

    async def scenario() -> None:
        slow = asyncio.create_task(context.container.aexec(["sleep", mark]))
        results = await asyncio.gather(
            *(context.container.aexec(["echo", str(i)]) for i in range(10))
        )
        expect_equal(
            [r.stdout for r in results],
            [f"{i}\n".encode() for i in range(10)],
            "ten outputs at once",
        )
        slow.cancel()
        with expect_error(asyncio.CancelledError, "a cancelled aexec"):
            await slow

    asyncio.run(scenario())
    expect(not left_of(context.container, mark), "a cancelled command lives on")
