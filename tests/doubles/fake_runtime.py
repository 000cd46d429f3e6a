"""A runtime without an engine for tests of the loop, and an agent to run.

:class:`FakeRuntime` runs commands on the host, in the source directories of mounts. It isolates
nothing: use it only to test the loop. :func:`make_agent_repository` makes an agent; a test can
script each of its generations.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile, mkdtemp
from typing import IO, Any, BinaryIO, Unpack

from hyperruntime.driver import EngineInfo
from hyperruntime.errors import ContainerLostError, ImageNotFoundError
from hyperruntime.exec.options import CommandKeywords
from hyperruntime.git.command import git
from hyperruntime.host.process import DEVNULL, HostProcess, kill_group, spawn
from hyperruntime.spec import ContainerSpec, ExecResult, Mount

_KEPT_VARIABLES = ("PATH", "HOME", "LANG")


class FakeImages:
    """Images that exist because the test names them."""

    def __init__(self, known: Sequence[str]) -> None:
        """Store the names of the existing images."""
        self._known = tuple(known)

    def ensure(self, name: str) -> str:
        """Return the name.

        Raises:
            ImageNotFoundError: the test did not name it.
        """
        if name not in self._known:
            raise ImageNotFoundError(name, "pass it to FakeRuntime(images=...)")
        return name


class FakeContainer:
    """Runs commands on the host, with the targets of mounts replaced by their sources, and a TMPDIR
    of its own.
    """

    def __init__(self, spec: ContainerSpec, on_close: Callable[[FakeContainer], None]) -> None:
        """Make an open container.

        Args:
            spec: the requested spec.
            on_close: called with the container when it is closed.
        """
        self.spec = spec
        self._on_close = on_close
        self._lock = threading.Lock()
        self._running: list[HostProcess] = []
        self._closed = False
        self._temporary = mkdtemp(prefix="hyperruntime-fake-")

    def exec(
        self,
        args: Sequence[str | bytes],
        **options: Unpack[CommandKeywords],
    ) -> ExecResult:
        """Run a command on the host and wait for its end.

        Args:
            args: the argv; mount targets in it are replaced by their sources.
            timeout_s: seconds until the process group is killed; None means no limit.
            on_output: called with ``stdout`` chunks while the command runs, and with all of
                ``stderr`` afterwards.
            merge_output: whether standard error goes to standard output.
            output_limit_bytes: how many of the last bytes of each stream are returned.

        Raises:
            ContainerLostError: the container is closed, or was closed while the command ran.
        """
        timeout_s = options.get("timeout_s")
        on_output = options.get("on_output")
        limit = options.get("output_limit_bytes", 1 << 20)
        cwd = self._outside(options.get("workdir") or "/")
        env = options.get("env") or {}
        argv = [self._outside(os.fsdecode(arg)) for arg in args]
        argv[0] = sys.executable if argv[0] == "python3" else argv[0]
        kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ} | {
            "TMPDIR": self._temporary
        }
        with _as_file(options.get("input")) as source:
            merge = ["sh", "-c", 'exec "$@" 2>&1', "sh"] if options.get("merge_output") else []
            process = self._spawn([*merge, *argv], cwd, {**kept, **self.spec.env, **env}, source)
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            kill_group(process)

        timer = threading.Timer(timeout_s or 0, expire)
        if timeout_s is not None:
            timer.start()
        stdout, stderr = _read(process, on_output)
        timer.cancel()
        if self._closed:
            raise ContainerLostError("the container was closed while a command ran in it")
        if on_output is not None and stderr:
            on_output("stderr", stderr)
        code = process.returncode if process.returncode >= 0 else 128 - process.returncode
        return ExecResult(
            args=tuple(argv),
            exit_code=124 if expired.is_set() else code,
            stdout=stdout[-limit:],
            stderr=stderr[-limit:],
            timed_out=expired.is_set(),
        )

    def on_connection(self, listener: Callable[[Any], None]) -> None:
        """Never call the listener: commands run on the host."""

    def close(self) -> None:
        """Kill the running commands, and remove their temporary files; may be called again."""
        with self._lock:
            self._closed = True
            for process in self._running:
                kill_group(process)
        shutil.rmtree(self._temporary, ignore_errors=True)
        self._on_close(self)

    def _spawn(
        self, argv: Sequence[str], cwd: str, env: Mapping[str, str], stdin: int | IO[bytes]
    ) -> HostProcess:
        with self._lock:
            if self._closed:
                raise ContainerLostError("the container is closed")
            process = spawn(argv, stdin=stdin, cwd=cwd, env=env)
            self._running.append(process)
        return process

    def _outside(self, text: str) -> str:
        mounts: list[Mount] = sorted(self.spec.mounts, key=lambda mount: -len(mount.target))
        for mount in mounts:
            text = text.replace(mount.target, mount.source)
        return text


@contextmanager
def _as_file(source: bytes | BinaryIO | None) -> Iterator[int | IO[bytes]]:
    """Yield the input in a form that a process can start with."""
    if source is None:
        yield DEVNULL
    elif isinstance(source, bytes):
        with TemporaryFile() as file:
            file.write(source)
            file.seek(0)
            yield file
    else:
        yield source


def _read(process: HostProcess, on_output: Callable[..., None] | None) -> tuple[bytes, bytes]:
    """Read standard output and standard error to their ends; pass output on as it arrives."""
    assert process.stdout is not None
    assert process.stderr is not None
    errors: list[bytes] = []
    reader = threading.Thread(
        target=lambda file: errors.append(file.read()), args=(process.stderr,)
    )
    reader.start()
    output = bytearray()
    with process.stdout as file:
        while chunk := os.read(file.fileno(), 1 << 16):
            output += chunk
            if on_output is not None:
                on_output("stdout", chunk)
    reader.join()
    process.stderr.close()
    process.wait()
    return bytes(output), b"".join(errors)


class FakeRuntime:
    """A runtime without an engine.

    Attributes:
        images: the existing images.
        info: the engine's declared features; all at their defaults.
        started: number of containers started so far.
        open: the open containers.
    """

    def __init__(
        self,
        *,
        images: Sequence[str] = ("base",),
        before_start: Callable[[ContainerSpec], None] | None = None,
    ) -> None:
        """Make a runtime without containers.

        Args:
            images: names of the existing images.
            before_start: called with each spec before a start; it may raise an engine's error. None
                does nothing.
        """
        self.images = FakeImages(images)
        self.info = EngineInfo(engine="fake", version="1", rootless=os.geteuid() != 0)
        self.started = 0
        self.open: list[FakeContainer] = []
        self._before_start = before_start
        self._lock = threading.Lock()

    def container(
        self, spec: ContainerSpec, *, labels: Mapping[str, str] | None = None
    ) -> FakeContainer:
        """Return a container that runs commands on the host."""
        if self._before_start is not None:
            self._before_start(spec)
        container = FakeContainer(spec, self._forget)
        with self._lock:
            self.started += 1
            self.open.append(container)
        return container

    def _forget(self, container: FakeContainer) -> None:
        with self._lock:
            self.open = [other for other in self.open if other is not container]


_TASK_AGENT = '''
import math

from value import VALUE


class TaskAgent:
    """Answers a packing task with a grid of equal circles; a larger VALUE makes them larger, up to 1."""

    def __init__(self, model=None, chat_history_file=None):
        self.chat_history_file = chat_history_file

    def forward(self, inputs):
        n = inputs["n"]
        side = math.ceil(math.sqrt(n))
        radius = min(VALUE, 1.0) / (2 * side)
        with open(self.chat_history_file, "w") as file:
            file.write(f"asked for {n} circles")
        return [[(i % side + 0.5) / side, (i // side + 0.5) / side, radius] for i in range(n)], []
'''

_META_AGENT = '''
import random


class MetaAgent:
    """Makes VALUE a little larger, by an amount that follows from seed and generation."""

    def forward(self, repo, seed, generation):
        with open(f"{repo}/value.py") as file:
            value = float(file.read().split("=")[1])
        step = random.Random(f"{seed}/{generation}").random() / 20
        with open(f"{repo}/value.py", "w") as file:
            file.write(f"VALUE = {value + step}\\n")
'''

_RUN_META_AGENT = """
import argparse
import json
import os
import subprocess

from meta_agent import MetaAgent

parser = argparse.ArgumentParser()
for name in ("chat_history_file", "repo_path", "evals_folder", "git_dir", "base_commit", "outdir", "iterations_left"):
    parser.add_argument("--" + name)
options = parser.parse_args()
repo, out, evals = options.repo_path, options.outdir, options.evals_folder
generation = os.environ["HYPERRUN_GENERATION"]
with open("actions.json") as file:
    action = json.load(file).get(generation, "improve()")


def improve():
    MetaAgent().forward(repo, os.environ["HYPERRUN_SEED"], generation)


def hand_in():
    git = ["git", "-c", "safe.directory=*", "-C", repo]
    subprocess.run([*git, "add", "--all"], check=True)
    diff = subprocess.run([*git, "diff", "--cached", "--binary", options.base_commit], check=True, capture_output=True)
    with open(f"{out}/model_patch.diff", "wb") as file:
        file.write(diff.stdout)


with open(options.chat_history_file, "w") as file:
    file.write(f"generation {generation} saw {sorted(os.listdir(evals))}\\n")
exec(action)
if not os.path.lexists(f"{out}/model_patch.diff") and "by_tree" not in action:
    hand_in()
"""


def make_agent_repository(path: Path, actions: Mapping[int, str] | None = None) -> Path:
    """Make a git repository of an agent for the domain ``circle_packing`` that works and needs no
    model.

    Args:
        path: the repository's directory; must not exist.
        actions: generation number -> Python source that its meta agent runs instead of
            ``improve()``. The source can use ``repo``, ``out``, ``evals``, ``improve``, ``hand_in``
            and ``options``. Afterwards the meta agent writes a diff, unless one exists or the
            source contains ``by_tree``.

    Returns:
        The path.
    """
    files = {
        "task_agent.py": _TASK_AGENT,
        "meta_agent.py": _META_AGENT,
        "run_meta_agent.py": _RUN_META_AGENT,
        "value.py": "VALUE = 0.5\n",
        "actions.json": json.dumps(
            {str(number): action for number, action in (actions or {}).items()}
        ),
    }
    path.mkdir(parents=True)
    for name, text in files.items():
        (path / name).write_text(text.lstrip("\n"))
    for command in (
        ["init", "-q", "-b", "main"],
        ["add", "--all"],
        ["commit", "-q", "-m", "agent"],
    ):
        git(["-C", str(path), *command])
    return path
