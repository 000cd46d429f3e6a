"""Runs that are killed at random instants, and interrupted at chosen ones: resumed whole, and nothing is left."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from hyperruntime import Runtime
from hyperruntime.git.store import RepositoryStore
from hyperruntime.loop.generation.metadata import patches_before
from hyperruntime.loop.run_files.archive import Archive, RunView, load_run
from hyperruntime.loop.run_files.layout import Layout
from hyperruntime.testing import make_agent_repository

pytestmark = pytest.mark.engine

KILLS, GENERATIONS = 25, 4
SERVER = """
import glob, json, os, signal, sys, time
from hyperruntime.cli import main
import hyperruntime.cli.loop.generate, hyperruntime.runtime, hyperruntime_podman.driver

def reached(logs, text, count):
    return sum(text in open(log).read() for log in glob.glob(logs)) >= count

for line in sys.stdin:
    wait_s, number, args, until = json.loads(line)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        code = main(args)
        sys.stdout.flush()
        os._exit(code)
    begun, sent, ended = time.monotonic(), False, 0
    deadline = None if until else begun + wait_s
    while not ended:
        if deadline is None:
            deadline = time.monotonic() + wait_s if reached(*until) or time.monotonic() > begun + 120 else None
        if not sent and deadline and time.monotonic() > deadline:
            os.kill(child, number)
            sent, deadline = True, time.monotonic() + 60
        if sent and time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            sys.exit("it did not end within 60 s")
        ended, status = os.waitpid(child, os.WNOHANG)
        time.sleep(0.005)
    print(json.dumps({"sent": sent, "code": os.waitstatus_to_exitcode(status)}), file=sys.stderr, flush=True)
"""
Sit = Callable[..., tuple[bool, int]]


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory for temporary files of what a test starts; nothing of ours may be there afterwards.

    A killed Podman may leave files of its own, with a number for their names: empty, or with an image's configuration.
    A killed Python may leave the file by which its ``tempfile`` tries the directory out.
    """
    folder = Path(tempfile.mkdtemp(prefix="kills-"))
    monkeypatch.setenv("TMPDIR", str(folder))
    try:
        yield folder
        wait_until_none(lambda: [path.name for path in folder.iterdir() if not is_foreign(path)])
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # a guard may be at it too


@pytest.fixture
def sit(temporary: Path, runtime_name: str) -> Iterator[Sit]:
    """Return a function that runs ``hyperrun`` and signals it after some seconds: whether it was, and its code.

    With ``until``, a pattern of logs, a text and a number, the seconds begin when so many logs hold the text.
    One process has everything imported and forks for each call, so that many fit in a minute.
    """
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert server.stdin is not None
    assert server.stderr is not None
    talk, answers = server.stdin, server.stderr

    def call(
        wait_s: float, number: signal.Signals, *args: str, until: tuple[str, str, int] | None = None
    ) -> tuple[bool, int]:
        talk.write(json.dumps([wait_s, number, ["--runtime", runtime_name, *args], until]).encode() + b"\n")
        talk.flush()
        said = []
        while line := answers.readline():
            said.append(line)
            if line.startswith(b'{"sent"'):
                answer = json.loads(line)
                assert answer["code"] in (-number, 128 + number, 0), b"".join(said).decode()
                return answer["sent"], answer["code"]
        raise AssertionError(b"".join(said).decode())

    yield call
    talk.close()
    server.wait()
    answers.close()


@pytest.fixture
def start_args(tmp_path: Path, base_image: str) -> Callable[..., list[str]]:
    """Return a function that makes an agent and returns how a run of it is started."""

    def make(run_id: str, actions: dict[int, str] | None = None, *more: str) -> list[str]:
        agent = tmp_path / "agent"
        if not agent.exists():
            make_agent_repository(agent, actions)
        return [
            "generate", "--domains", "circle_packing", "--agent", str(agent), "--image", base_image, "--seed", "11",
            "--run-id", run_id, "--output-dir-parent", str(tmp_path), "--eval-samples", "1",
            "--max-generation", str(GENERATIONS), *more,
        ]  # fmt: skip

    return make


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_killed_at_any_instant_is_resumed_whole(
    tmp_path: Path, sit: Sit, start_args: Callable[..., list[str]], runtime: Runtime, number: signal.Signals
) -> None:
    source, kills, orderly, runs, alone = random.Random(int(number)), 0, 0, 0, set()
    while kills < KILLS:
        runs += 1
        run_id = f"{tmp_path.name}.{runs}"
        run_dir, parallel = tmp_path / f"generate_{run_id}", str(1 + runs % 3)
        start, resume = start_args(run_id, None, "--parallel", parallel), ["resume", str(run_dir)]
        finished: set[str | int] = set()
        for _ in range(8):
            args = resume if (run_dir / "run.json").exists() else start
            sent, code = sit(source.uniform(0.05, 1.8), number, *args)
            kills += sent and code != 0  # not one that had just ended by itself
            assert code in (-number, 0, *([] if number == signal.SIGKILL else [128 + number]))
            orderly += code == 128 + number  # else the signal came before anybody could handle it
            if (run_dir / "run.json").exists():
                now = {record.genid for record in load_run(run_dir).generations}
                assert finished <= now
                finished = now
            if len(finished) == GENERATIONS + 1:
                break
        args = resume if (run_dir / "run.json").exists() else start
        assert sit(120, number, *args) == (False, 0)
        view = load_run(run_dir)
        check_whole(view)
        if parallel == "1":
            alone.add(tuple((one.genid, one.parent, one.score, one.commit) for one in view.generations))
    assert number == signal.SIGKILL or orderly > KILLS // 2
    assert len(alone) == 1  # whenever they were killed, runs of the same seed are the same
    wait_until_none(lambda: left_of(runtime, tmp_path))


STUBBORN = "\n".join(
    [
        "import signal, time",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
        "subprocess.Popen(['setsid', 'sh', '-c', 'trap \"\" TERM INT HUP; while :; do sleep 0.1; done'])",
        "time.sleep(600)",
    ]
)
SLOW_TASK = "\n".join(
    [
        "text = open('task_agent.py').read()",
        "slow = 'n = inputs[\"n\"]; import time; time.sleep(600)'",
        "open('task_agent.py', 'w').write(text.replace('n = inputs[\"n\"]', slow))",
    ]
)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(("action", "step"), [(STUBBORN, "meta agent"), (SLOW_TASK, "evaluate")])
def test_an_interrupt_ends_everything_in_time_whatever_agents_do(
    tmp_path: Path,
    sit: Sit,
    start_args: Callable[..., list[str]],
    runtime: Runtime,
    number: signal.Signals,
    action: str,
    step: str,
) -> None:
    run_dir = tmp_path / f"generate_{tmp_path.name}"
    args = start_args(tmp_path.name, dict.fromkeys(range(1, GENERATIONS + 1), action), "--parallel", "4")
    begun = f"== {step}\n"
    until = (f"{run_dir}/work/gen_*/generate.log", begun, 4)
    assert sit(1.0, number, *args, until=until) == (True, 128 + number)
    wait_until_none(lambda: left_of(runtime, tmp_path))
    assert [begun in path.read_text() for path in run_dir.glob("work/gen_*/generate.log")] == [True] * 4
    assert load_run(run_dir).state == "interrupted"
    assert [record.genid for record in load_run(run_dir).generations] == ["initial"]
    assert json.loads((run_dir / "archive.jsonl").read_text())["archive"] == ["initial"]


@pytest.fixture
def own_image(base_image: str, tmp_path: Path) -> Iterator[str]:
    """A name of the base image that nobody else builds from meanwhile."""
    name = f"localhost/hyperruntime-test/base-of-{os.getpid()}:{tmp_path.name.lower()}"
    subprocess.run(["podman", "tag", base_image, name], check=True)
    yield name
    subprocess.run(["podman", "untag", name, name], check=True)  # this name alone


@pytest.mark.parametrize("wait_s", [1.2, 2.0, 4.0])
def test_an_interrupted_build_leaves_no_step_and_no_container(
    tmp_path: Path, sit: Sit, own_image: str, runtime_name: str, wait_s: float
) -> None:
    if runtime_name != "podman":
        return
    seconds = f"3117.{os.getpid()}"
    (tmp_path / "Containerfile").write_text(f"FROM {own_image}\nRUN trap '' TERM; sleep {seconds}\n")
    name = f"localhost/hyperruntime-test/interrupted:{os.getpid()}"
    args = ["image", "build", name, "--file", str(tmp_path / "Containerfile")]
    assert sit(wait_s, signal.SIGTERM, *args) == (True, 143)
    wait_until_none(lambda: [str(p.pid) for p in psutil.process_iter() if f"sleep {seconds}" in command_line(p)])
    assert building_from(own_image) == []


def check_whole(view: RunView) -> None:
    """Check that a run's files agree with each other, whatever happened while it was made."""
    root, layout = Path(view.run_dir), Layout(Path(view.run_dir))
    archive, store = Archive.load(layout), RepositoryStore(layout.repository)
    ids = [record.genid for record in view.generations]
    assert view.state == "finished"
    assert sorted(map(str, ids)) == sorted(["initial", *map(str, range(1, GENERATIONS + 1))])
    assert [record.failure for record in view.generations] == [None] * len(ids)
    assert all(record.valid_parent for record in view.generations)
    assert archive.marks == []
    assert json.loads(layout.archive.read_text().splitlines()[-1])["archive"] == ids
    assert list(layout.work.iterdir()) == []
    assert sorted(path.name for path in layout.view.iterdir()) == sorted(f"gen_{genid}" for genid in ids)
    for record in view.generations:
        metadata = json.loads((layout.generation(record.genid) / "metadata.json").read_text())
        assert (metadata["current_genid"], metadata["parent_genid"]) == (record.genid, record.parent)
        assert metadata["prev_patch_files"] == patches_before(archive, record.parent)
        patches = [root / name for name in (*metadata["prev_patch_files"], *metadata["curr_patch_files"])]
        first = view.generations[0].commit
        assert store.replay(first, [path.read_bytes() for path in patches]) == store.tree(record.commit)
        report = layout.generation(record.genid) / "circle_packing_eval_val" / "report.json"
        assert json.loads(report.read_text())["score"] == record.score


def left_of(runtime: Runtime, folder: Path) -> list[str]:
    """Return what is left of the runs in a directory: containers by their label, processes by their arguments."""
    records = (owned.record for owned in runtime.containers())
    found = [one.id for one in records if one.labels.get("io.hyperruntime.run", "").startswith(folder.name)]
    return found + [str(p.pid) for p in psutil.process_iter() if str(folder) in command_line(p)]


def is_foreign(path: Path) -> bool:
    """Tell whether a file is one that a program beside us leaves when it is killed."""
    try:
        return path.is_file() and (path.name.isdecimal() or path.read_bytes() in (b"", b"blat"))
    except FileNotFoundError:
        return True  # it has gone meanwhile


def command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def building_from(image: str) -> list[str]:
    """Return the containers of builds that begin with an image."""
    args = ["podman", "ps", "--all", "--external", "--no-trunc", "--format", "{{.Image}} {{.ID}}"]
    listed = subprocess.run(args, capture_output=True, check=True).stdout.decode().splitlines()
    return [line for line in listed if line.startswith(f"{image} ")]


def wait_until_none(left: Callable[[], list[str]]) -> None:
    """Give guards time, then fail with what is left."""
    deadline = time.monotonic() + 60
    while found := left():
        assert time.monotonic() < deadline, found
        time.sleep(0.2)
