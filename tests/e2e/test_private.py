"""Files that containers write on the host are out of reach of other accounts, before, during and
after a kill.

As root, the other account is ``nobody``, which really tries. For an ordinary user, the modes of the
files are checked.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hyperruntime import Runtime
from hyperruntime.loop.run.plan import plan_resume, plan_run
from hyperruntime.loop.run.run import RunSummary, resume_run, start_run
from hyperruntime.loop.run_files.options import GenerateOptions
from tests.command import cli
from tests.e2e.test_hostile import said_by_meta, said_by_tasks, write_agent, write_table

pytestmark = pytest.mark.engine

WAITS: dict[str, Any] = {"meta": "special", "wait": True}
NOBODY = ("setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups", "--")
WITHIN = ("-readable", "-o", "-writable", "-o", "-executable")
PATIENCE_S = 180.0


class World:
    """A directory that every account may enter, with an agent and its run.

    Attributes:
        folder: the directory.
        mark: a text that only an attacking generation writes.
        run_id: the id of the run.
        run_dir: the directory of the run.
        options: the options of the run.
    """

    def __init__(self, folder: Path, image: str) -> None:
        self.folder, self.mark = folder, f"hostile-{secrets.token_hex(6)}"
        self.run_id = f"private-{secrets.token_hex(4)}"
        self.run_dir = folder / "outputs" / f"generate_{self.run_id}"
        self.options: dict[str, Any] = {
            "domains": (f"table:{write_table(folder / 'table')}",),
            "image": image,
            "parent_selection": "best",
            "seed": 5,
            "run_id": self.run_id,
            "output_dir_parent": str(folder / "outputs"),
        }

    def use_agent(self, *steps: dict[str, Any]) -> None:
        """Make an agent with these attacks as its generations, and an honest generation at the
        end.
        """
        agent = write_agent(
            self.folder / "agent", dict(enumerate(steps, 1)), {"mark": self.mark}, ""
        )
        self.options |= {"agent": str(agent), "max_generation": len(steps) + 1}

    def command(self, runtime_name: str) -> list[str]:
        """Return the command that starts the run in a separate process."""
        options = [
            word
            for name, value in self.options.items()
            for word in (f"--{name.replace('_', '-')}", str(value))
        ]
        options[1] = self.options["domains"][0]
        return cli(
            "--runtime",
            runtime_name,
            "generate",
            *options,
        )

    def wait_for_agent(self) -> Path:
        """Wait until the agent has planted all its files; return the directory for its outputs."""
        deadline = time.monotonic() + PATIENCE_S
        while not (ready := list(self.run_dir.glob("work/*/agent/out/ready"))):
            assert time.monotonic() < deadline, "the agent did not become ready"
            time.sleep(0.02)
        return ready[0].parent

    def check_out_of_reach(self, *, finished: bool = False) -> None:
        """Check that another account reaches no file of a running agent, and no set-id or
        world-writable file.
        """
        for name in ("work", "repository.git"):
            assert within_reach(self.run_dir / name) == []
        reached = within_reach(self.run_dir)
        assert str(self.run_dir / "run.json") in reached, "otherwise the check sees nothing"
        for path in filter(os.path.isfile, reached):
            assert finished or self.mark.encode() not in Path(path).read_bytes(), path
            assert not os.stat(path).st_mode & 0o6002, path
        assert own_temporary_files_within_reach() == []


def within_reach(top: Path) -> list[str]:
    """Return the paths at and below ``top`` that another account may read, write, execute or
    enter.
    """
    if os.geteuid() == 0:
        found = subprocess.run(
            [*NOBODY, "find", str(top), "!", "-type", "l", "(", *WITHIN, ")", "-print0"],
            cwd="/",
            capture_output=True,
        )
        return [os.fsdecode(path) for path in found.stdout.split(b"\0") if path]
    return [str(path) for path in [top, *_below(top)] if _is_open(path)]


def _below(folder: Path) -> Iterator[Path]:
    """Yield the paths below a directory, as deep as another account can enter."""
    if not folder.is_dir() or folder.is_symlink() or not folder.stat().st_mode & 0o001:
        return
    for path in folder.iterdir():
        yield path
        yield from _below(path)


def _is_open(path: Path) -> bool:
    return not path.is_symlink() and bool(path.lstat().st_mode & 0o007)


def own_temporary_files_within_reach() -> list[str]:
    """Return the paths that another account reaches below this user's own temporary directories."""
    tops = [
        Path(root)
        for root in {tempfile.gettempdir(), os.environ.get("APPTAINER_TMPDIR", "/tmp"), "/tmp"}
    ]
    mine = [path for top in tops for path in top.glob("hyperruntime-*") if _is_mine(path)]
    return [found for path in mine for found in within_reach(path)]


def _is_mine(path: Path) -> bool:
    try:
        return path.lstat().st_uid == os.geteuid()
    except FileNotFoundError:  # another test has removed it meanwhile
        return False


def special_files(top: Path) -> list[str]:
    """Return the set-user-id and set-group-id files and directories below a directory."""
    found = subprocess.run(
        ["find", str(top), "-perm", "/6000", "-print0"], capture_output=True, check=True
    )
    return [os.fsdecode(path) for path in found.stdout.split(b"\0") if path]


@pytest.fixture
def world(base_image: str) -> Iterator[World]:
    """Yield a world in a place that is not hidden by the modes of pytest's own directories."""
    folder = Path(tempfile.mkdtemp(prefix="private-", dir="/var/tmp"))
    folder.chmod(0o755)
    umask = os.umask(0o002)  # it hides little, so the library's own modes must hide the files
    try:
        yield World(folder, base_image)
    finally:
        os.umask(umask)
        shutil.rmtree(folder, ignore_errors=True)
        assert not folder.exists(), "the user of the run could not remove everything"


Finished = Callable[[], RunSummary]


@pytest.fixture
def run_beside(world: World, runtime: Runtime) -> Callable[[], Finished]:
    """Return a function that starts the run in a thread and returns a function that waits for its
    summary.
    """

    def start() -> Finished:
        result: list[RunSummary] = []
        options = GenerateOptions(**world.options)
        thread = threading.Thread(
            target=lambda: result.append(start_run(runtime, plan_run(options)))
        )
        thread.start()

        def finished() -> RunSummary:
            thread.join()
            return result[0]

        return finished

    return start


def test_no_file_of_a_generation_is_in_reach_during_or_after_its_run(
    world: World, run_beside: Callable[[], Finished]
) -> None:
    world.use_agent(WAITS, {"task": "special"})
    finished = run_beside()
    out = world.wait_for_agent()
    try:
        if os.geteuid() == 0:
            assert special_files(out / "planted"), "otherwise there is nothing to reach"
        world.check_out_of_reach()
    finally:
        (out / "go").touch()
        summary = finished()
    attacked, judged, honest = summary.generations[1:]
    assert (attacked.failure, attacked.attempts, judged.attempts) == (None, 1, 1), attacked.detail
    assert (judged.failure, judged.score, honest.failure, honest.score) == (None, 0.0, None, 0.5)
    assert said_by_meta(summary, 1).keys() == {"owners", "tools"}
    assert said_by_tasks(summary, 2)["t0"].keys() == {"owners", "tools"}
    assert list((world.run_dir / "work").iterdir()) == []
    assert special_files(world.folder) == []
    world.check_out_of_reach(finished=True)


@pytest.mark.slow
def test_a_killed_run_leaves_no_file_in_reach_and_a_resume_removes_its_files(
    world: World, runtime: Runtime, runtime_name: str
) -> None:
    world.use_agent(WAITS)
    with subprocess.Popen(
        world.command(runtime_name), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as owner:
        out = world.wait_for_agent()
        owner.send_signal(signal.SIGKILL)
    world.check_out_of_reach()
    _wait_until(lambda: not _containers(runtime, world.run_id))
    world.check_out_of_reach()
    # the modes of earlier versions
    for path in (world.run_dir / "work", out.parents[1], out.parent):
        path.chmod(0o755)
    assert within_reach(out.parent), "otherwise the next check proves nothing"
    tightened, done = threading.Event(), threading.Event()
    ready = threading.Thread(target=lambda: _let_go(world, tightened, done))
    ready.start()
    try:
        summary = resume_run(runtime, plan_resume(world.run_dir))
    finally:
        done.set()
        ready.join()
    assert tightened.is_set()
    assert [record.failure for record in summary.generations] == [None] * 3
    assert special_files(world.folder) == []
    assert list((world.run_dir / "work").iterdir()) == []
    world.check_out_of_reach(finished=True)


def _let_go(world: World, tightened: threading.Event, done: threading.Event) -> None:
    """Let the agent of the resumed run continue as soon as none of its files is in reach."""
    while not done.wait(0.05):
        if within_reach(world.run_dir / "work") == []:
            tightened.set()
            # also the killed run's, at first
            for ready in world.run_dir.glob("work/*/agent/out/ready"):
                with suppress(FileNotFoundError):
                    ready.with_name("go").touch()


def _containers(runtime: Runtime, run_id: str) -> list[str]:
    return [
        owned.record.id
        for owned in runtime.containers()
        if owned.record.labels.get("io.hyperruntime.run") == run_id
        and owned.owner.pid != os.getpid()
    ]


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
