"""Displays on a terminal, as a person sees them in windows of tmux: the screen holds all that was
printed, once.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hyperruntime.host.process import wait_until
from tests.doubles.fake_runtime import make_agent_repository
from tests.doubles.window import WAIT_S, Window

COLUMNS = [120, 60]
THREADS = 4
EACH = 60
LONG = "x" * 100  # longer than the narrow window
RUN_LINE = re.compile(
    r"(generation \w+): score 0\.\d{4} in \S+; best 0\.\d{4} \(generation \w+\)"
    r"|(watch) it at http://127\.0\.0\.1:\d+/\S{20,}/|(run) /\S+, seed \d+, \w+ [\d.]+"
)
# Each thread prints as the parts of a run do: events of the loop, notes, log lines.
WRITERS = f"""
import sys, threading, time
from hyperruntime.cli.messages import configure_logging, note
from hyperruntime.cli.streams import guarded_streams
from hyperruntime.logs import get_logger
{{imports}}

def write(thread):
    for number in range({EACH}):
        name = f"{{{{thread}}}}.{{{{number}}}}"
        begin(name)
        time.sleep(0.002)
        finish(name)
        note(f"note {{{{name}}}} {LONG}")
        get_logger("x").warning(f"log {{{{name}}}}")

with guarded_streams():
    configure_logging("warning", as_json=False)
    {{display}}
    with display.shown():
        threads = [threading.Thread(target=write, args=(one,)) for one in range({THREADS})]
        [one.start() for one in threads]
        [one.join() for one in threads]
    print("end" "ed")
"""
LOOP = WRITERS.format(
    imports="""
from hyperruntime.cli.progress import LiveDisplay
from hyperruntime.cli.loop.progress import Tracker
from hyperruntime.loop.workbench.events import StepEvent
def begin(name):
    display.on_event(StepEvent(generation=name, step="evaluate", state="start"))
def finish(name):
    display.on_event(StepEvent(generation=name, step="generation", state="done", score=0.5, duration_s=1))
""",
    display=f"display = LiveDisplay(Tracker({THREADS * EACH}))",
)
ROLLOUTS = WRITERS.format(
    imports="""
from hyperruntime.cli.progress import LiveDisplay
from hyperruntime.cli.rollout.run import Tracker
from hyperruntime.rollout.run.progress import RolloutEvent
def begin(name):
    display.on_event(RolloutEvent(kind="start", id="x", done=0, wanted=9, mean_reward=None))
def finish(name):
    display.on_event(RolloutEvent(kind="done", id="x", done=1, wanted=9, mean_reward=None))
""",
    display="display = LiveDisplay(Tracker())",
)


@contextmanager
def opened(directory: Path, runtime_name: str, cols: int) -> Iterator[Window]:
    window = Window(directory, runtime_name, cols=cols, rows=40)
    try:
        yield window
    finally:
        window.close()


@pytest.mark.parametrize("cols", COLUMNS)
@pytest.mark.parametrize("program", [LOOP, ROLLOUTS], ids=["generations", "rollouts"])
def test_lines_of_several_threads_stand_above_a_display_once_each_and_nothing_else_stays(
    tmp_path: Path, program: str, cols: int
) -> None:
    (tmp_path / "program.py").write_text(program)
    with opened(tmp_path, "", cols) as window:
        window.type(f"echo be''gin; {sys.executable} program.py", "Enter")
        assert wait_until(lambda: "ended" in window.lines(), WAIT_S, 0.2), "\n".join(window.lines())
        lines = [line for line in window.lines() if line]
    names = [f"{thread}.{number}" for thread in range(THREADS) for number in range(EACH)]
    printed = [f"note {name} {LONG}" for name in names] + [f"log {name}" for name in names]
    if program is LOOP:
        printed += [
            f"generation {name}: score 0.5000 in 1.0s; best 0.5000 (generation N)" for name in names
        ]
    found = [
        re.sub(r"^.*\[warning *\] ", "", line)
        for line in lines[lines.index("begin") + 1 : lines.index("ended")]
    ]
    found = [
        re.sub(r"best 0.5000 \(generation [\d.]+\)", "best 0.5000 (generation N)", line)
        for line in found
    ]
    assert sorted(found) == sorted(printed)


@pytest.mark.engine
@pytest.mark.parametrize("cols", COLUMNS)
def test_a_run_with_a_live_page_leaves_its_address_and_each_generation_on_the_screen(
    tmp_path: Path, runtime_name: str, base_image: str, cols: int
) -> None:
    make_agent_repository(tmp_path / "agent")
    words = [
        "generate",
        "--domains=circle_packing",
        "--agent=agent",
        f"--image={base_image}",
        "--watch",
    ]
    with opened(tmp_path, runtime_name, cols) as window:
        window.type("export XDG_STATE_HOME=$PWD/state; clear", "Enter")
        window.start(*words, "--max-generation=5", "--eval-samples=1", "--parallel=3", "--run-id=a")
        window.expect("rc=0")
        lines = [line for line in window.lines() if line]
    begin = next(
        number for number, line in enumerate(lines) if line.startswith(("run ", "watch it"))
    )
    end = next(
        number for number, line in enumerate(lines) if line.startswith(("generation  ", "4 plots"))
    )
    printed = [RUN_LINE.fullmatch(line) for line in lines[begin:end]]
    assert all(printed), lines[begin:end]
    kinds = sorted(found.group(found.lastindex or 0) for found in printed if found)
    assert kinds == [
        *(f"generation {number}" for number in (1, 2, 3, 4, 5, "initial")),
        "run",
        "watch",
    ]
