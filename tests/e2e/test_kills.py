"""Runs killed at random instants or interrupted at chosen ones are resumed completely and leave
nothing.
"""

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
from hyperruntime.loop.generation.publish import patches_before
from hyperruntime.loop.run_files.archive import Archive, RunView, load_run
from hyperruntime.loop.run_files.layout import Layout
from tests.doubles.fake_runtime import make_agent_repository
from tests.params import first_quick

pytestmark = pytest.mark.engine

KILLS, GENERATIONS = 25, 4
SERVER = """
import glob, json, os, signal, sys, time
from hyperruntime.cli import main
import hyperruntime.cli.loop.generate, hyperruntime.runtime, hyperruntime_podman.driver

def read(log):
    try:
        return open(log).read()
    except FileNotFoundError:  # its generation was published meanwhile
        return ""

def reached(logs, text, count):
    return sum(text in read(log) for log in glob.glob(logs)) >= count

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
    """Yield the directory for temporary files of the processes under test; check that none of ours
    is left.

    A killed Podman may leave files with numbers as names: empty ones, or the configuration of an
    image. A killed Python may leave the file with which its ``tempfile`` tests the directory.
    """
    folder = Path(tempfile.mkdtemp(prefix="kills-"))
    monkeypatch.setenv("TMPDIR", str(folder))
    try:
        yield folder
        wait_until_none(lambda: [path.name for path in folder.iterdir() if not is_foreign(path)])
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # a guard may remove files at the same time


@pytest.fixture
def sit(temporary: Path, runtime_name: str) -> Iterator[Sit]:
    """Yield a function that runs ``hyperrun`` and signals it; it returns whether it sent the
    signal, and the exit code.

    The signal comes after ``wait_s`` seconds. With ``until`` (a glob pattern of logs, a text and a
    number) this time begins when that many logs contain the text. One server process has everything
    imported and forks for each call, so that many calls fit in a minute.
    """
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert server.stdin is not None
    assert server.stderr is not None
    talk, answers = server.stdin, server.stderr

    def call(
        wait_s: float, number: signal.Signals, *args: str, until: tuple[str, str, int] | None = None
    ) -> tuple[bool, int]:
        talk.write(
            json.dumps([wait_s, number, ["--runtime", runtime_name, *args], until]).encode() + b"\n"
        )
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
    """Return a function that makes an agent and returns the arguments that start a run of it."""

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
def test_a_run_killed_at_any_instant_is_resumed_completely(
    tmp_path: Path,
    sit: Sit,
    start_args: Callable[..., list[str]],
    runtime: Runtime,
    number: signal.Signals,
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
            kills += sent and code != 0  # a run that had just ended does not count
            assert code in (-number, 0, *([] if number == signal.SIGKILL else [128 + number]))
            orderly += code == 128 + number  # else the signal came before its handler was set
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
            alone.add(
                tuple((one.genid, one.parent, one.score, one.commit) for one in view.generations)
            )
    assert number == signal.SIGKILL or orderly > KILLS // 2
    assert len(alone) == 1  # runs of the same seed are equal, whenever they were killed
    wait_until_none(lambda: left_of(runtime, tmp_path))


STUBBORN = "\n".join(
    [
        "import signal, time",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
        "subprocess.Popen(['setsid', 'sh', '-c', 'trap \"\" TERM INT HUP; while :; do sleep "
        "0.1; done'])",
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


@pytest.mark.parametrize("number", first_quick(signal.SIGTERM, signal.SIGINT))
@pytest.mark.parametrize(
    ("action", "step"), first_quick((STUBBORN, "meta agent"), (SLOW_TASK, "evaluate"))
)
def test_an_interrupt_ends_everything_in_time_even_if_agents_ignore_signals(
    tmp_path: Path,
    sit: Sit,
    start_args: Callable[..., list[str]],
    runtime: Runtime,
    number: signal.Signals,
    action: str,
    step: str,
) -> None:
    run_dir = tmp_path / f"generate_{tmp_path.name}"
    args = start_args(
        tmp_path.name, dict.fromkeys(range(1, GENERATIONS + 1), action), "--parallel", "4"
    )
    begun = f"== {step}\n"
    until = (f"{run_dir}/work/gen_*/generate.log", begun, 4)
    assert sit(1.0, number, *args, until=until) == (True, 128 + number)
    wait_until_none(lambda: left_of(runtime, tmp_path))
    assert [begun in path.read_text() for path in run_dir.glob("work/gen_*/generate.log")] == [
        True
    ] * 4
    assert load_run(run_dir).state == "interrupted"
    assert [record.genid for record in load_run(run_dir).generations] == ["initial"]
    assert json.loads((run_dir / "archive.jsonl").read_text())["archive"] == ["initial"]


SLOW = "import time; time.sleep(4); improve()"


@pytest.mark.slow
def test_a_signal_before_the_end_of_a_job_lets_a_run_finish_what_it_has_begun(
    tmp_path: Path, sit: Sit, start_args: Callable[..., list[str]], runtime: Runtime
) -> None:
    run_dir = tmp_path / f"generate_{tmp_path.name}"
    args = start_args(
        tmp_path.name, dict.fromkeys(range(1, GENERATIONS + 1), SLOW), "--parallel", "2"
    )
    until = (f"{run_dir}/work/gen_*/generate.log", "== meta agent\n", 2)
    assert sit(0.1, signal.SIGUSR1, *args, until=until) == (True, 128 + signal.SIGUSR1)
    assert load_run(run_dir).state == "interrupted"
    assert {record.genid for record in load_run(run_dir).generations} == {"initial", 1, 2}
    assert not list((run_dir / "work").glob("gen_*"))
    assert sit(120, signal.SIGUSR1, "resume", str(run_dir)) == (False, 0)
    check_whole(load_run(run_dir))
    wait_until_none(lambda: left_of(runtime, tmp_path))


@pytest.fixture
def own_image(base_image: str, tmp_path: Path) -> Iterator[str]:
    """Yield an image of its own: Podman lists a build's container under any name of the image that
    it starts from.
    """
    name = f"localhost/hyperruntime-test/base-of-{os.getpid()}:{tmp_path.name.lower()}"
    lines = f"FROM {base_image}\nLABEL of={tmp_path}\n"
    subprocess.run(
        ["podman", "build", "--quiet", "--tag", name, "-"], input=lines.encode(), check=True
    )
    yield name
    subprocess.run(["podman", "rmi", name], check=True)


@pytest.mark.parametrize("wait_s", first_quick(1.2, 2.0, 4.0))
def test_an_interrupted_build_leaves_no_process_and_no_container(
    tmp_path: Path, sit: Sit, own_image: str, runtime_name: str, wait_s: float
) -> None:
    if runtime_name != "podman":
        return
    seconds = f"3117.{os.getpid()}"
    (tmp_path / "Containerfile").write_text(
        f"FROM {own_image}\nRUN trap '' TERM; sleep {seconds}\n"
    )
    name = f"localhost/hyperruntime-test/interrupted:{os.getpid()}"
    args = ["image", "build", name, "--file", str(tmp_path / "Containerfile")]
    assert sit(wait_s, signal.SIGTERM, *args) == (True, 143)
    wait_until_none(
        lambda: [str(p.pid) for p in psutil.process_iter() if f"sleep {seconds}" in command_line(p)]
    )
    assert building_from(own_image) == []


def check_whole(view: RunView) -> None:
    """Check that the files of a finished run agree with each other."""
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
    assert sorted(path.name for path in layout.view.iterdir()) == sorted(
        f"gen_{genid}" for genid in ids
    )
    for record in view.generations:
        metadata = json.loads((layout.generation(record.genid) / "metadata.json").read_text())
        assert (metadata["current_genid"], metadata["parent_genid"]) == (
            record.genid,
            record.parent,
        )
        assert metadata["prev_patch_files"] == patches_before(archive, record.parent)
        patches = [
            root / name for name in (*metadata["prev_patch_files"], *metadata["curr_patch_files"])
        ]
        first = view.generations[0].commit
        assert store.replay(first, [path.read_bytes() for path in patches]) == store.tree(
            record.commit
        )
        report = layout.generation(record.genid) / "circle_packing_eval_val" / "report.json"
        assert json.loads(report.read_text())["score"] == record.score


def left_of(runtime: Runtime, folder: Path) -> list[str]:
    """Return the containers of the runs in a directory, by label, and the processes that name it in
    their arguments.
    """
    records = (owned.record for owned in runtime.containers())
    found = [
        one.id
        for one in records
        if one.labels.get("io.hyperruntime.run", "").startswith(folder.name)
    ]
    return found + [str(p.pid) for p in psutil.process_iter() if str(folder) in command_line(p)]


def is_foreign(path: Path) -> bool:
    """Return whether the file is one that a killed Podman or Python leaves."""
    try:
        return path.is_file() and (path.name.isdecimal() or path.read_bytes() in (b"", b"blat"))
    except FileNotFoundError:
        return True  # it was removed meanwhile


def command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def building_from(image: str) -> list[str]:
    """Return the build containers that start from an image.

    Podman's list fails if a container of another test is removed while it is made; it is asked
    again then.
    """
    args = ["podman", "ps", "--all", "--external", "--no-trunc", "--format", "{{.Image}} {{.ID}}"]
    deadline = time.monotonic() + 60
    while (listed := subprocess.run(args, capture_output=True, text=True)).returncode:
        assert time.monotonic() < deadline, listed.stderr
        time.sleep(0.2)
    return [line for line in listed.stdout.splitlines() if line.startswith(f"{image} ")]


def wait_until_none(left: Callable[[], list[str]]) -> None:
    """Wait up to 60 s until nothing is left, then fail with the rest."""
    deadline = time.monotonic() + 60
    while found := left():
        assert time.monotonic() < deadline, found
        time.sleep(0.2)
