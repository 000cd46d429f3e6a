"""Signals end a command at any moment, in bounded time, with the exit code of the signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

import hyperruntime.cli
from hyperruntime.host.process import wait_until

ROOT = Path(__file__).parents[3]
PATIENCE_S = 120

# A command whose event loop gets a signal after it took a callback from its queue and before it
# calls it. If a signal handler raises there, the loop loses this callback, and its task never
# continues.
LOOP = """
import asyncio, contextlib, os, signal, sys
from asyncio.events import Handle
from types import SimpleNamespace
import hyperruntime.cli.{module} as module
from hyperruntime.cli import main
from hyperruntime.cli.command import State

moments, args = list(map(int, sys.argv[1].split(","))), sys.argv[2:]
count, begun, cleaned, run_handle = 0, 0, 0, Handle._run

def run(handle):
    global count
    count += 1
    if count == moment:
        os.kill(os.getpid(), number)
    run_handle(handle)

Handle._run = run

async def work(*_, **__):
    async def worker():
        global begun, cleaned
        begun += 1
        try:
            while True:
                await asyncio.sleep(0)
                await asyncio.to_thread(lambda: None)
        finally:
            await asyncio.sleep(0.001)
            cleaned += 1
    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(worker())

image = SimpleNamespace(ensure=lambda *_, **__: "x", exists=lambda _: True)
runtime = SimpleNamespace(images=image, name="x", info=SimpleNamespace(version="1"))
State.open_runtime = lambda *_, **__: contextlib.nullcontext(runtime)
module.{work} = work
for number in (signal.SIGTERM, signal.SIGINT):
    for moment in moments:
        count = begun = cleaned = 0
        print(moment, main(args), begun - cleaned)
"""
BATCH = ("rollout.batch", "run_batch", "rollout", "batch", "p.jsonl", "--model", "m",
         "--base-url", "http://127.0.0.1:1/v1")  # fmt: skip
RUN = ("rollout.run", "run_rollouts", "rollout", "run", "--environment", "toy", "--model", "m",
       "--base-url", "http://127.0.0.1:1/v1", "--output-dir", "run")  # fmt: skip
SUBMIT = (
    "rollout.export",
    "_submit",
    "rollout",
    "submit",
    ".",
    "--trainer-option",
    "url=http://127.0.0.1:1",
)
PREFLIGHT = ("rollout.models", "check_model", "rollout", "preflight", "--model", "m",
             "--base-url", "http://127.0.0.1:1/v1")  # fmt: skip


def python(folder: Path, script: str, *args: str) -> subprocess.CompletedProcess[str]:
    """Run a script and return its result."""
    words = [sys.executable, "-c", script, *args]
    return subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.mark.parametrize(
    ("command", "moments"),
    [(BATCH, range(1, 50)), (RUN, (2, 25)), (SUBMIT, (2, 25)), (PREFLIGHT, (2, 25))],
    ids=["batch", "run", "submit", "preflight"],
)
def test_a_signal_before_any_callback_of_the_loop_ends_the_command_and_cleans_up(
    command: tuple[str, ...], moments: Sequence[int], tmp_path: Path
) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "x"}\n')
    module, work, *args = command
    script = LOOP.format(module=module, work=work)
    done = python(tmp_path, script, ",".join(map(str, moments)), *args)
    assert done.stdout.splitlines() == [
        f"{moment} {128 + number} 0"
        for number in (signal.SIGTERM, signal.SIGINT)
        for moment in moments
    ], done.stderr
    assert done.stderr.count("hyperrun: interrupted\n") == 2 * len(moments)
    assert "Traceback" not in done.stderr


# Commands that the first signal does not end: its exception is lost, or a thread or a cleanup
# continues.
STUBBORN = """
import asyncio, os, signal, sys, threading, time
import click
import hyperruntime.cli.loop.domains as module
from hyperruntime.cli import main, signals
from hyperruntime.cli.app import COMMANDS

signals.SignalWatch.__init__.__defaults__ = ({grace_s},)
for_ever = threading.Event()
def send():
    os.kill(os.getpid(), signal.SIGTERM)

class Loses:
    def __del__(self):
        send()

@click.command()
def loses():
    Loses()  # an exception in __del__ is printed and not propagated
    while True:
        for_ever.wait(1)

@click.command()
@click.pass_obj
def goes_on(state):
    Loses()
    signals.run_until_signal(asyncio.sleep(10000), state)

@click.command()
@click.pass_obj
def goes_on_in_the_loop(state):
    Loses()
    with signals.last_signal(state):
        for_ever.wait()

@click.command()
def leaves():
    threading.Thread(target=for_ever.wait).start()
    send()

@click.command()
def cleans():
    try:
        send()
        for_ever.wait()
    finally:
        while True:
            send()
            for_ever.wait(0.2)

@click.command()
def bursts():
    try:
        for_ever.wait()
    finally:
        print("cleaned up", flush=True)

@click.command()
def sleeps():
    time.sleep(10000)

def pair():  # as a closing login session does
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGHUP)

def to_another():
    time.sleep(0.3)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

STARTED = {{"bursts": pair, "sleeps": to_another}}
if "{name}" in STARTED:
    threading.Thread(target=STARTED["{name}"], daemon=True).start()
module.one = {name}
COMMANDS["one"] = ("loop.domains", "one", "")
sys.argv[1:] = ["one"]
sys.exit(main())
"""


@pytest.mark.parametrize(
    ("name", "grace_s", "why"),
    [
        ("loses", 0.2, "the command did not end within 0.2 s"),
        ("leaves", 0.2, "the command did not end within 0.2 s"),
        ("cleans", 1000, "a second signal came"),
        ("sleeps", 1000, "hyperrun: interrupted\n"),
        ("goes_on", 1000, "hyperrun: interrupted\n"),
        ("goes_on_in_the_loop", 1000, "hyperrun: interrupted\n"),
    ],
)
def test_a_command_that_ignores_the_first_signal_is_ended(
    name: str, grace_s: float, why: str, tmp_path: Path
) -> None:
    done = python(tmp_path, STUBBORN.format(name=name, grace_s=grace_s))
    assert done.returncode == 143, done.stderr
    assert why in done.stderr


def test_two_signals_at_the_same_time_count_as_one(tmp_path: Path) -> None:
    """A closing login session sends SIGTERM and SIGHUP at the same time; the command still cleans
    up.
    """
    done = python(tmp_path, STUBBORN.format(name="bursts", grace_s=1000))
    assert done.returncode in (129, 143), done.stderr
    assert done.stdout == "cleaned up\n"


CLEANS_FOR_EVER = """
import asyncio, os, signal, sys
from hyperruntime.cli.command import State
from hyperruntime.cli.signals import interrupting, run_until_signal

async def work():
    try:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(1000)
    finally:
        while True:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.2)

state = State()
with interrupting(state):
    run_until_signal(work(), state)
"""


def test_a_second_signal_ends_an_event_loop_at_once(tmp_path: Path) -> None:
    assert python(tmp_path, CLEANS_FOR_EVER).returncode == 143


BUILDS = """
import asyncio, os, signal, sys, threading
from hyperruntime.host import process
from hyperruntime.cli.command import State
from hyperruntime.cli.signals import interrupting, run_until_signal

def on_line(line):
    os.kill(os.getpid(), signal.SIGTERM)

async def work():
    build = "trap '' TERM; echo step; sleep 1000"
    await asyncio.to_thread(process.stream_process, ["sh", "-c", build], on_line=on_line)

state = State()
with interrupting(state):
    try:
        run_until_signal(work(), state)
    except KeyboardInterrupt:
        print("interrupted", process._streaming.get())
"""


def test_a_build_in_a_thread_ends_with_its_event_loop(tmp_path: Path) -> None:
    done = python(tmp_path, BUILDS)
    assert (done.returncode, done.stdout) == (0, "interrupted {}\n"), done.stderr


def test_main_restores_signal_handlers_wakeup_descriptor_and_open_files(tmp_path: Path) -> None:
    script = (
        "import signal, threading, os; from hyperruntime.cli import main\nmine = "
        "os.pipe2(os.O_NONBLOCK)[1]; signal.set_wakeup_fd(mine)\nknown = [signal.getsignal(n) "
        "for n in (1, 2, 15)]; open_files = os.listdir('/proc/self/fd')\nassert "
        "main(['--version']) == 0\nassert [signal.getsignal(n) for n in (1, 2, 15)] == "
        "known\nassert os.listdir('/proc/self/fd') == "
        "open_files\nprint(signal.set_wakeup_fd(-1) == mine, threading.active_count())"
    )
    done = python(tmp_path, script)
    assert done.stdout.splitlines()[1:] == ["True 1"], done.stderr


def test_event_loops_are_started_only_in_the_module_signals() -> None:
    modules = Path(hyperruntime.cli.__file__).parent.rglob("*.py")
    assert [path.name for path in modules if "asyncio.run(" in path.read_text()] == ["signals.py"]


# A handler stops a run; another signal arrives at each line of the code that stops it.
STOPPING = """
import os, signal, sys
from hyperruntime.loop.workbench.open_containers import on_interrupt
from hyperruntime.loop.workbench.open_containers import OpenContainers
from tests.doubles.fake_runtime import FakeRuntime

def at(moment):
    count = 0
    def trace(frame, event, argument):
        nonlocal count
        count += event == "line"
        if count == moment:
            count += 1
            os.kill(os.getpid(), signal.SIGTERM)
        return trace
    return trace

for moment in range(1, 60):
    containers = OpenContainers(FakeRuntime())
    with on_interrupt(containers.stop):
        sys.settrace(at(moment))
        os.kill(os.getpid(), signal.SIGTERM)
        containers.stop()
        sys.settrace(None)
    assert containers.stopping
"""


def test_a_run_can_be_stopped_again_while_it_is_stopping(tmp_path: Path) -> None:
    assert python(tmp_path, STOPPING).returncode == 0


# A run that continues after the first signal; the second signal comes after the burst of the first
# one.
GOES_ON = """
import os, signal, time
from hyperruntime.cli.command import State
from hyperruntime.cli.signals import interrupting, last_signal
from hyperruntime.loop.workbench.open_containers import on_interrupt

state, stopped = State(), []
with interrupting(state), last_signal(state), on_interrupt(lambda: stopped.append(1)):
    os.kill(os.getpid(), signal.{first})
    os.kill(os.getpid(), signal.{second})
    print(len(stopped), flush=True)
    time.sleep(1.2)
    os.kill(os.getpid(), signal.{second})
    time.sleep(1)
    print("goes on", flush=True)
"""


@pytest.mark.parametrize(
    ("first", "second", "code"), [("SIGTERM", "SIGTERM", 143), ("SIGTERM", "SIGINT", 130)]
)
def test_a_second_signal_ends_a_run_at_once(
    first: str, second: str, code: int, tmp_path: Path
) -> None:
    done = python(tmp_path, GOES_ON.format(first=first, second=second))
    assert done.stdout == "2\n"
    assert "a second signal came" in done.stderr
    assert done.returncode == code


def full_pipe() -> tuple[int, int]:
    """Return the ends of a pipe that takes no more."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while os.write(writer, bytes(1 << 16)):
            pass
    os.set_blocking(writer, True)
    return reader, writer


def handles_signals(pid: int) -> bool:
    """Return whether a process has a handler for SIGTERM. Source: proc(5), SigCgt."""
    caught = next(
        line
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("SigCgt")
    )
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


# The command line, with a limit after a signal that is longer than the test waits.
PATIENT = """
import sys
from hyperruntime.cli import main
from hyperruntime.cli.signals import SignalWatch

SignalWatch.__init__.__defaults__ = (200.0,)
sys.exit(main())
"""


def test_a_signal_ends_a_command_whose_messages_nobody_reads(tmp_path: Path) -> None:
    reader, writer = full_pipe()
    words = [sys.executable, "-c", PATIENT, "watch", str(tmp_path / "none"), "--with-parent"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=writer, cwd=tmp_path) as process:
        assert wait_until(lambda: handles_signals(process.pid), PATIENCE_S)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM, "without the limit"
    os.close(reader)
    os.close(writer)
