"""What a check works with: an open runtime, a usable image, containers, and a place on the host."""

from __future__ import annotations

import os
import secrets
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hyperruntime.container import Container
from hyperruntime.driver import ContainerRecord, Driver, EngineInfo
from hyperruntime.errors import ContainerStateError
from hyperruntime.runtime import Runtime
from hyperruntime.spec import ContainerSpec, ExecResult, Limits
from hyperruntime.testing.conformance.capability import declares_refusal

RUN_ID = "conformance"
LABEL = "conformance"
_LIST_PROCESSES = 'for p in /proc/[0-9]*; do cat "$p/cmdline" 2>/dev/null && echo; done'


class Context:
    """A runtime under test.

    Attributes:
        driver: the engine's adapter.
        runtime: it, opened.
        info: what the driver declares.
        image: reference of an image with ``/bin/sh``, ``tar`` and the usual small programs.
        directory: of this suite on the host, removed with its process.
    """

    def __init__(self, driver: Driver, runtime: Runtime, image: str, directory: Path) -> None:
        """Start nothing."""
        self.driver, self.runtime, self.image, self.directory = driver, runtime, image, directory
        self.info: EngineInfo = runtime.info
        self._shared: Container | None = None
        self._sharing = threading.Lock()
        self._started: list[Container] = []
        self._closed = False

    @property
    def container(self) -> Container:
        """A container of the default spec, shared by all checks that leave it as it was."""
        with self._sharing:
            shared = self._shared = self._shared or self.start()
            return shared

    def renew(self) -> None:
        """Give up the shared container, in which a check went wrong; the next one gets a new one."""
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.close()

    def start(self, **fields: Any) -> Container:  # noqa: ANN401 - checked by the spec
        """Start a container of its own for a check; used as a context manager.

        Raises:
            ContainerStateError: the checks are over; one that ran past its deadline, or was interrupted, asks still.
        """
        container = None if self._closed else self.runtime.container(self.spec(**fields))
        if container is not None:
            self._started.append(container)
        if self._closed or container is None:
            self.close()
            raise ContainerStateError("the checks are over; start another suite")
        return container

    def spec(self, **fields: Any) -> ContainerSpec:  # noqa: ANN401 - checked by the spec
        """Return the default spec with fields changed; without the limits that a driver declares to refuse."""
        unlimited = declares_refusal(self.info, "limits.pids")
        fields.setdefault("limits", Limits(pids=None) if unlimited else Limits())
        fields.setdefault("image", self.image)
        return ContainerSpec(**fields)

    def limits(self, **fields: Any) -> Limits:  # noqa: ANN401 - checked by the limits
        """Return limits with nothing but these set, and the default of the rest where it is not refused."""
        if declares_refusal(self.info, "limits.pids"):
            fields.setdefault("pids", None)
        return Limits(**fields)

    def place(self, name: str = "a 'place\"") -> Path:
        """Return a new empty directory on the host, by default of an awkward name."""
        path = Path(tempfile.mkdtemp(dir=self.directory), name)
        path.mkdir()
        return path

    def own(self) -> dict[str, ContainerRecord]:
        """Return what the engine lists of this process's containers, by the label ``conformance`` (or their id)."""
        found = (owned for owned in self.runtime.containers() if owned.owner.pid == os.getpid())
        return {owned.record.labels.get(LABEL, owned.record.id): owned.record for owned in found}

    def close(self) -> None:
        """Close every container that was started, so that no thread of a check waits for one any more."""
        self._closed, self._shared = True, None
        for container in tuple(self._started):
            container.close()


def marker() -> str:
    """Return a number of seconds that no other ``sleep`` of this machine sleeps."""
    return f"7{secrets.randbelow(10**8):08}"


def shell(container: Container, script: str, *arguments: str, **options: Any) -> ExecResult:  # noqa: ANN401
    """Run a script of ``sh`` in a container."""
    return container.exec(["sh", "-c", script, "check", *arguments], **options)


def processes(container: Container) -> list[str]:
    """Return the command lines of what runs in a container, words parted by spaces."""
    listed = shell(container, _LIST_PROCESSES).stdout
    return [line.replace(b"\0", b" ").decode(errors="replace").strip() for line in listed.split(b"\n") if line]


def left_of(container: Container, mark: str) -> list[str]:
    """Return the command lines in a container that hold a mark."""
    return [line for line in processes(container) if mark in line]


def host_processes(word: str) -> list[str]:
    """Return the command lines on the host that hold a word."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if word in line:
            found.append(line.strip())
    return found


def interfaces(table: str) -> set[str]:
    """Return the network interfaces of ``/proc/net/dev``. Source: proc(5)."""
    return {line.partition(":")[0].strip() for line in table.splitlines() if ":" in line}


def fields_of(text: str) -> Mapping[str, str]:
    """Return ``Name: value`` lines, such as those of ``/proc/self/status``, as a mapping."""
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: value.strip() for name, _, value in pairs}


@contextmanager
def open_context(driver: Driver, image: str | None = None) -> Iterator[Context]:
    """Open a driver and yield what checks need; whatever they left is ended.

    Args:
        driver: a fresh one.
        image: to test with; the base image by default, made if it is missing.

    Raises:
        EngineUnavailableError: the engine cannot run a container.
        ImageNotFoundError: the image is not here.
    """
    driver.probe()
    with Runtime(driver, run_id=RUN_ID) as runtime:
        # Below the runtime's own, which goes with this process, however it ends.
        directory = Path(tempfile.mkdtemp(prefix="conformance-", dir=runtime._owner.private_dir))  # noqa: SLF001
        context = Context(driver, runtime, runtime.images.ensure(image or "base"), directory)
        try:
            yield context
        finally:
            context.close()
