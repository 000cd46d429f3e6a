"""The engine's own ways to do the same job: its exec, its SDK's exec, and one command in a new
container.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import attrs
import psutil

import hyperruntime as hr
from hyperruntime.host.process import wait_until
from hyperruntime.runtime import Runtime

NULL = subprocess.DEVNULL
Action = Callable[[], object]


@attrs.frozen
class Rival:
    """Another way to run ``true``.

    Attributes:
        name: its name in the table.
        run: runs the command once.
        wanted: how many times faster ours must be; None without a promise.
    """

    name: str
    run: Action
    wanted: int | None = None


def run_quiet(*args: str) -> None:
    subprocess.run(args, stdin=NULL, stdout=NULL, stderr=NULL, check=True)


@contextmanager
def rivals(runtime: Runtime, container: hr.Container, image: str) -> Iterator[list[Rival]]:
    """Yield the engine's own ways to run a command in a running container."""
    with _OF[runtime.name](runtime, container, image) as found:
        yield found


def fresh_args(runtime: Runtime, image: str) -> tuple[str, list[str]]:
    """Return the name and the arguments of the engine's command that runs ``true`` in a new
    container.
    """
    if runtime.name == "podman":
        return "podman run --rm", [
            *_podman(runtime),
            "run",
            "--rm",
            "--network",
            "none",
            *_ulimits(runtime),
            image,
            "true",
        ]
    if runtime.name == "docker":
        return "docker run --rm", ["docker", "run", "--rm", "--network", "none", image, "true"]
    if runtime.name == "apptainer":
        return "apptainer exec", [
            "apptainer",
            "exec",
            *_APPTAINER,
            _unpacked(runtime, image),
            "true",
        ]
    root = ["--bind", _unpacked(runtime, image), "/", "--proc", "/proc", "--dev", "/dev"]
    return "bwrap", ["bwrap", *root, "--unshare-all", "--die-with-parent", "true"]


def kill_container(runtime: Runtime, name: str) -> None:
    """Kill a container with SIGKILL, without the library."""
    if runtime.name == "podman":
        run_quiet(*_podman(runtime), "kill", "--signal", "KILL", name)
    elif runtime.name == "docker":
        run_quiet("docker", "kill", "--signal", "KILL", name)
    else:
        ours = os.getpid()
        named = [
            p
            for p in psutil.process_iter(["cmdline"])
            if any(name in word for word in p.info["cmdline"] or ())
        ]
        doomed = [p for p in named if p.pid != ours]
        # parents first
        for process in [one for p in doomed for one in (p, *p.children(recursive=True))]:
            with suppress(psutil.NoSuchProcess):
                process.kill()


_APPTAINER = ("--userns", "--pid", "--containall")
_BWRAP = ("bwrap", "--ro-bind", "/usr", "/usr", "--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib",
          "--symlink", "usr/lib64", "/lib64", "--unshare-all", "--die-with-parent", "true")  # fmt: skip


@contextmanager
def _podman_service() -> Iterator[str]:
    """Yield the URL of Podman's API service, which ends with the block."""
    with tempfile.TemporaryDirectory(prefix="h-", dir="/tmp") as directory:
        url = f"unix://{directory}/s"
        service = subprocess.Popen(["podman", "system", "service", "--time", "0", url])
        try:
            assert wait_until(lambda: os.path.exists(f"{directory}/s"), 60)
            yield url
        finally:
            service.terminate()
            service.wait()


@contextmanager
def _podman_rivals(runtime: Runtime, container: hr.Container, image: str) -> Iterator[list[Rival]]:
    from podman import PodmanClient

    command = [*_podman(runtime), "exec", container.name, "true"]
    with _podman_service() as url, PodmanClient(base_url=url) as client:
        theirs: Any = client.containers.get(container.name)
        yield [
            Rival("podman exec", lambda: run_quiet(*command), 60),
            Rival("podman-py exec_run", lambda: theirs.exec_run(["true"]), 30),
        ]


@contextmanager
def _docker_rivals(runtime: Runtime, container: hr.Container, image: str) -> Iterator[list[Rival]]:
    import docker

    client: Any = docker.from_env()
    theirs = client.containers.get(container.name)
    yield [
        Rival("docker exec", lambda: run_quiet("docker", "exec", container.name, "true")),
        Rival("docker SDK exec_run", lambda: theirs.exec_run(["true"]), 20),
    ]
    client.close()


@contextmanager
def _apptainer_rivals(
    runtime: Runtime, container: hr.Container, image: str
) -> Iterator[list[Rival]]:
    name = f"bench{uuid.uuid4().hex[:8]}"
    with tempfile.TemporaryDirectory() as directory:
        sif = f"{directory}/image.sif"  # an instance needs the files that a build adds
        run_quiet("apptainer", "build", sif, _unpacked(runtime, image))
        run_quiet("apptainer", "instance", "start", "--userns", "--containall", sif, name)
        args = ["apptainer", "exec", f"instance://{name}", "true"]
        try:
            yield [Rival("apptainer exec instance://", lambda: run_quiet(*args), 20)]
        finally:
            run_quiet("apptainer", "instance", "stop", name)


@contextmanager
def _bubblewrap_rivals(
    runtime: Runtime, container: hr.Container, image: str
) -> Iterator[list[Rival]]:
    yield [Rival("bwrap, a sandbox for each command", lambda: run_quiet(*_BWRAP))]


_OF: Mapping[str, Callable[[Runtime, hr.Container, str], Any]] = {
    "podman": _podman_rivals,
    "docker": _docker_rivals,
    "apptainer": _apptainer_rivals,
    "bubblewrap": _bubblewrap_rivals,
}


def _podman(runtime: Runtime) -> list[str]:
    """Return the Podman command with the options that this machine needs."""
    from hyperruntime_podman.args import own_args
    from hyperruntime_podman.program import program

    settings = _settings(runtime)
    oci_runtime = ["--runtime", settings.oci_runtime] if settings.oci_runtime else []
    return [program(), *own_args(settings), *oci_runtime]


def _ulimits(runtime: Runtime) -> list[str]:
    """Return the ulimits that Podman needs on some machines to run containers."""
    found = _settings(runtime)
    if not found.nofile:
        return []
    return [
        "--ulimit",
        f"nofile={found.nofile}:{found.nofile}",
        "--ulimit",
        f"nproc={found.nproc}:{found.nproc}",
    ]


def _unpacked(runtime: Runtime, image: str) -> str:
    """Return the directory from which our containers of an image are made."""
    return str(runtime._driver.images.source(image).files)  # type: ignore[attr-defined]


def _settings(runtime: Runtime) -> Any:
    return runtime._driver._probe.get().settings  # type: ignore[attr-defined]
