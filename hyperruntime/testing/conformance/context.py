"""The context of checks: an open runtime, an image, containers, and a directory on the host."""

from __future__ import annotations

import os
import secrets
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from hyperruntime.container import Container
from hyperruntime.driver import ContainerRecord, Driver, EngineInfo
from hyperruntime.errors import ContainerStateError
from hyperruntime.runtime import Runtime
from hyperruntime.spec import ContainerSpec, ExecResult, Limits
from hyperruntime.testing.conformance.load import Load

RUN_ID = "conformance"
LABEL = "conformance"
_OTHER_USERS = "exec.user"
_LIST_PROCESSES = 'for p in /proc/[0-9]*; do cat "$p/cmdline" 2>/dev/null && echo; done'


def declares_refusal(info: EngineInfo, need: str) -> bool:
    """Return whether an engine declares that it refuses a feature.

    Args:
        info: the engine's declaration.
        need: a field, as in :class:`~hyperruntime.errors.UnsupportedOptionError`, or one value of a
            field: ``network.host``, ``network.bridge``, ``exec.user``; or ``seccomp``, which no
                spec asks for: the check
            raises the reason that the driver declares.
    """
    if need == _OTHER_USERS:
        return not info.users
    if need == "gpus":
        return not info.gpus
    if need == "snapshot":
        return not info.snapshots
    if need == "services":
        return not info.services
    if need == "seccomp":
        return bool(info.unfiltered)
    family, _, member = need.partition(".")
    if family == "network":
        return member not in info.networks
    return need in info.refuses or (family == "limits" and info.limits.get(member) == "no")


def refused_field(need: str) -> str:
    """Return the field that the refusal of a feature must name."""
    return {_OTHER_USERS: "user", "network.host": "network", "network.bridge": "network"}.get(
        need, need
    )


class Context:
    """The runtime under test.

    Attributes:
        driver: the driver.
        runtime: the open runtime of this driver.
        info: the driver's declaration.
        image: reference of an image with ``/bin/sh``, ``tar`` and the usual small programs.
        directory: directory of the suite on the host; it is removed when the process ends.
        load: the load of the machine, by which time bounds grow.
    """

    def __init__(
        self,
        driver: Driver,
        runtime: Runtime,
        image: str,
        directory: Path,
        load: Load | None = None,
    ) -> None:
        """Store the parts; start no container.

        Args:
            driver: the driver.
            runtime: the open runtime of this driver.
            image: reference of the image.
            directory: directory of the suite on the host.
            load: the load of the machine; None means to measure it now.
        """
        self.driver = driver
        self.runtime = runtime
        self.image = image
        self.directory = directory
        self.load = load or Load()
        self.info: EngineInfo = runtime.info
        self._shared: Container | None = None
        self._sharing = threading.Lock()
        self._started: list[Container] = []
        self._closed = False
        self._besides: list[Context] = []

    @property
    def container(self) -> Container:
        """A container of the default spec, shared by all checks that do not change it; started if
        needed.
        """
        with self._sharing:
            shared = self._shared = self._shared or self.start()
            return shared

    def beside(self) -> Context:
        """Return a context with another shared container, for checks that run at the same time as
        this one's.
        """
        other = Context(self.driver, self.runtime, self.image, self.directory, self.load)
        other._closed = self._closed
        self._besides.append(other)
        return other

    def renew(self) -> None:
        """Close the shared container after a failed check; the next check gets a new one."""
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.close()

    def start(self, **fields: Any) -> Container:  # noqa: ANN401 - checked by the spec
        """Start a container for one check; use it as a context manager.

        Raises:
            ContainerStateError: the suite is closed; the caller is a check that outlived its
                deadline or an interrupt.
        """
        container = None if self._closed else self.runtime.container(self.spec(**fields))
        if container is not None:
            self._started.append(container)
        if self._closed or container is None:
            self.close()
            raise ContainerStateError("the checks are over; open another context")
        return container

    def spec(self, **fields: Any) -> ContainerSpec:  # noqa: ANN401 - checked by the spec
        """Return the default spec with changed fields, and without a pids limit if the driver
        refuses that.
        """
        fields.setdefault("limits", self.limits())
        fields.setdefault("image", self.image)
        return ContainerSpec(**fields)

    def limits(self, **fields: Any) -> Limits:  # noqa: ANN401 - checked by the limits
        """Return the default limits with changed fields, and without a pids limit if the driver
        refuses that.
        """
        if declares_refusal(self.info, "limits.pids"):
            fields.setdefault("pids", None)
        return Limits(**fields)

    def place(self, name: str = "a 'place\"") -> Path:
        """Return a new empty directory on the host, by default with quotes and a space in its
        name.
        """
        path = Path(tempfile.mkdtemp(dir=self.directory), name)
        path.mkdir()
        return path

    def own(self) -> dict[str, ContainerRecord]:
        """Return the engine's records of this process's containers, by their label ``conformance``,
        else by id.
        """
        found = (owned for owned in self.runtime.containers() if owned.owner.pid == os.getpid())
        return {owned.record.labels.get(LABEL, owned.record.id): owned.record for owned in found}

    def close(self) -> None:
        """Close every started container, so that no thread of a check waits for one."""
        self._closed = True
        self._shared = None
        for container in tuple(self._started):
            container.close()
        for other in tuple(self._besides):
            other.close()


def marker() -> str:
    """Return a random number of seconds for ``sleep``, by which its process can be found."""
    return f"7{secrets.randbelow(10**8):08}"


def shell(container: Container, script: str, *arguments: str, **options: Any) -> ExecResult:  # noqa: ANN401
    """Run a script with ``sh`` in a container.

    Args:
        container: the container.
        script: the script.
        arguments: ``$1`` and the following parameters.
        options: keywords of ``Container.exec``.
    """
    return container.exec(["sh", "-c", script, "check", *arguments], **options)


def processes(container: Container) -> list[str]:
    """Return the command lines of the processes in a container, with spaces between arguments."""
    listed = shell(container, _LIST_PROCESSES).stdout
    return [
        line.replace(b"\0", b" ").decode(errors="replace").strip()
        for line in listed.split(b"\n")
        if line
    ]


def left_of(container: Container, mark: str) -> list[str]:
    """Return the command lines of the processes in a container that contain a mark."""
    return [line for line in processes(container) if mark in line]


def host_processes(word: str) -> list[str]:
    """Return the command lines of the processes on the host that contain a word."""
    lines = (
        " ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])
    )
    return [line for line in lines if word in line]


def interfaces(table: str) -> set[str]:
    """Return the network interfaces in the text of ``/proc/net/dev``. Source: proc(5)."""
    return {line.partition(":")[0].strip() for line in table.splitlines() if ":" in line}


def fields_of(text: str) -> Mapping[str, str]:
    """Return ``Name: value`` lines, such as those of ``/proc/self/status``, as a mapping."""
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in pairs}


@contextmanager
def open_context(
    driver: Driver, image: str | None = None, load: Load | None = None
) -> Iterator[Context]:
    """Open a driver and yield the context of checks; at the end, close all containers.

    Args:
        driver: an unused driver.
        image: image reference or recipe; None means the base image, made if it is missing.
        load: the load of the machine; None means to measure it now.

    Raises:
        EngineUnavailableError: the engine cannot run a container.
        ImageNotFoundError: the image does not exist and cannot be made.
    """
    driver.probe()
    with Runtime(driver, run_id=RUN_ID) as runtime:
        # In the runtime's private directory, which is removed even after SIGKILL.
        directory = Path(tempfile.mkdtemp(prefix="conformance-", dir=runtime._owner.private_dir))  # noqa: SLF001
        context = Context(driver, runtime, runtime.images.ensure(image or "base"), directory, load)
        try:
            yield context
        finally:
            context.close()
