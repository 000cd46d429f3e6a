"""A process that owns containers with everything open in them, for measurements and tests that kill
it.

It prints ``begun`` with its private directory when its runtime is open, and ``open`` when
everything is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import attrs

from hyperruntime import Container, ContainerSpec, Limits, Runtime, Service, open_runtime
from hyperruntime.host.process import DEVNULL, PIPE, python_args, read_proc, spawn
from hyperruntime.host.python import PYTHONPATH, safe_python_path
from hyperruntime.testing.conformance.context import marker

MODULE = "tests.bench.owner"
# A program that ignores signals, as a hostile or a busy one does.
STUBBORN = "trap '' TERM INT HUP; setsid sleep $1 & sleep $1"


class OpenOwner:
    """A running owner, and how to find what is left of it."""

    def __init__(self, process: subprocess.Popen[bytes], mark: str) -> None:
        """Take over its process.

        Args:
            process: it prints the lines.
            mark: the seconds that its commands sleep.
        """
        self._process, self._words = process, [mark]
        self._directories: list[str] = []

    def wait_for(self, word: str) -> None:
        """Wait until it has printed a word; learn its directory and the names of its containers."""
        assert self._process.stdout is not None
        while line := self._process.stdout.readline():
            facts: dict[str, Any] = json.loads(line)
            if facts["is"] == "begun":
                self._directories.append(facts["private"])
                self._words.append(os.path.basename(facts["private"]))
            if facts["is"] == word:
                return
        raise AssertionError(f"the owner ended before it was {word}")

    def kill(self) -> None:
        """Kill it with SIGKILL and reap it."""
        for directory in tuple(self._directories):
            with suppress(OSError):
                self._directories += Path(directory, "also").read_text().splitlines()
            with suppress(OSError):
                self._words += [
                    name for name in os.listdir(directory) if name.startswith("hyperruntime-")
                ]
        self._process.kill()
        self._process.wait()

    def left(self, runtime: Runtime) -> tuple[int, str]:
        """Return how many processes run in its containers, and what is left of it first, or ""."""
        inside, outside = self._processes()
        if inside or outside:
            return len(inside), f"processes: {[*inside, *outside][:4]}"
        temporary = [
            str(path)
            for word in self._words
            for path in Path(tempfile.gettempdir()).glob(f"{word}*")
        ]
        if files := [path for path in (*self._directories, *temporary) if os.path.lexists(path)]:
            return 0, f"files: {files}"
        listed = [one.record for one in runtime.containers() if one.owner.pid == self._process.pid]
        return 0, f"listed: {[(one.id, one.state) for one in listed]}" if listed else ""

    def _processes(self) -> tuple[list[str], list[str]]:
        """Return the command lines of processes that see one of its directories as a mount, and
        that only name it.
        """
        inside, outside, words = list[str](), list[str](), [word.encode() for word in self._words]
        for pid in filter(str.isdigit, os.listdir("/proc")):
            line, mounts = read_proc(pid, "cmdline"), read_proc(pid, "mountinfo")
            text = f"{pid} {line.replace(bytes(1), b' ').decode(errors='replace')[:60]}"
            if any(word in mounts for word in words):
                inside.append(text)
            elif any(word in line for word in words):
                outside.append(text)
        return inside, outside


@contextmanager
def start_owner(
    engine: str, image: str, containers: int, how: str, services: int = 0
) -> Iterator[OpenOwner]:
    """Start an owner; end it at the end.

    Args:
        engine: name of the driver.
        image: of its containers.
        containers: their number.
        how: ``opening``: it goes on to open processes, terminals and shells until it is killed;
            else it waits.
        services: number of services of each container.
    """
    mark = marker()
    env = {**os.environ, PYTHONPATH: safe_python_path(os.pathsep.join(sys.path))}
    words = [engine, image, str(containers), mark, how, str(services)]
    args = python_args("-W", "ignore", "-m", MODULE, *words)
    process = spawn(args, stdout=PIPE, stderr=DEVNULL, env=env)
    try:
        yield OpenOwner(process, mark)
    finally:
        process.kill()
        process.communicate()


def main(
    engine: str, image: str, containers: str, mark: str, how: str, services: str = "0"
) -> None:
    """Own containers with everything open until killed."""
    with open_runtime(engine) as runtime:
        say("begun", private=runtime._owner.private_dir)
        with ThreadPoolExecutor(int(containers)) as threads:
            started = list(
                threads.map(
                    lambda _: open_all(runtime, image, mark, int(services)), range(int(containers))
                )
            )
        say("open")
        for container in started if how == "opening" else ():
            for _ in range(4):
                threading.Thread(target=open_more, args=(container, mark), daemon=True).start()
        time.sleep(600)


def open_all(runtime: Runtime, image: str, mark: str, services: int) -> Container:
    """Start a container with services, and open one of each kind in it."""
    spec = container_spec(runtime, image)
    beside = tuple(
        Service(
            name=f"service-{number}",
            image=image,
            entrypoint=["sh", "-c", STUBBORN, "service", mark],
            limits=spec.limits,
        )
        for number in range(services)
    )
    container = runtime.container(attrs.evolve(spec, services=beside))
    container.spawn(["sh", "-c", STUBBORN, "process", mark])
    container.terminal(["sh", "-c", STUBBORN, "terminal", mark])
    container.forward(8080)
    container.shell().run(f"sleep {mark} & cd /")
    if runtime.info.users:
        # a shell of its own, on some engines an exec of the engine
        container.spawn(["sleep", mark], user="nobody")
    return container


def open_more(container: Container, mark: str) -> None:
    """Open and close processes, terminals and shells, without an end."""
    while True:
        with container.spawn(["sleep", mark]), container.shell() as shell:
            shell.run(":")
            container.terminal(["sleep", mark]).close()


def container_spec(runtime: Runtime, image: str) -> ContainerSpec:
    """Return the default spec, without a limit on processes where the engine has none."""
    enforced = runtime.info.limits.get("pids", "no") != "no"
    return ContainerSpec(image=image, limits=Limits() if enforced else Limits(pids=None))


def say(word: str, **facts: str) -> None:
    print(json.dumps({"is": word, **facts}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
