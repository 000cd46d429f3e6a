"""The services of a container: start them in their order, and end them with it.

Design: docs/design/containers.md#services.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from hyperruntime.concurrency.parallel_map import parallel_map
from hyperruntime.container import Container, Group
from hyperruntime.driver import Driver, NamesPrograms
from hyperruntime.errors import SpecError, UnsupportedOptionError, write_error
from hyperruntime.exec.spawn.process import Process
from hyperruntime.host.engine_program import HOSTS
from hyperruntime.services.readiness import wait_ready
from hyperruntime.spec import ContainerSpec, Mount, Service, steps_of

_AT_ONCE = 8
_FIRST = 2  # 127.0.0.1 is the container's own


class ServiceContainer(Container):
    """The container of a service, with its program.

    Attributes:
        process: its program: ``process.ended`` is set when it ends, whatever ends it.
        ready_s: seconds from the start of its program until it was ready.

    Example:
        >>> service = hr.Service(name="web", image="localhost/web:latest", args=["serve"])
        >>> group = hr.ContainerSpec(image=spec.image, services=(service,))
        >>> def reports(container):
        ...     web = container.services["web"]
        ...     return web.process.poll(), web.log
    """

    process: Process
    ready_s: float = 0.0

    @property
    def log(self) -> bytes:
        """What its program wrote to both streams so far; of very much, the head and the tail."""
        return self.process.stdout


class Starts(Protocol):
    """Starts the container of a service."""

    def __call__(self, spec: ContainerSpec, group: Group) -> ServiceContainer:
        """Start it, and pull its image if the spec says so."""
        ...


def hosts_of(spec: ContainerSpec, driver: Driver, directory: str) -> Mount:
    """Return the mount of ``/etc/hosts`` for the containers of a group.

    Args:
        spec: the spec of the main one.
        driver: the engine's driver.
        directory: takes the file.

    Raises:
        UnsupportedOptionError: the engine has no services here, or the network is the host's.
        StorageError: the file cannot be written.
    """
    if not driver.probe().services:
        why = "a container cannot join the network of another one here; use another engine"
        raise UnsupportedOptionError(driver.name, "services", why)
    if spec.network == "host":
        why = "services share the container's own network, not the machine's; use network='none'"
        raise UnsupportedOptionError(driver.name, "services", why)
    lines = [f"127.0.0.1 localhost {' '.join(spec.host_names)}".rstrip(), "::1 localhost"]
    lines += [
        " ".join((address, one.name, *one.aliases))
        for address, one in zip(_addresses(), spec.services, strict=False)
    ]
    text = "\n".join([*lines, ""])
    path = Path(directory, f"hosts-{hashlib.sha256(text.encode()).hexdigest()[:16]}")
    try:
        if path.exists():
            return Mount(source=str(path), target=HOSTS)
        temporary = Path(f"{path}.{threading.get_ident()}")
        temporary.write_text(text)
        temporary.chmod(0o644)
        os.replace(temporary, path)
    except OSError as error:
        raise write_error(f"{path} cannot be written: {error}; free space there", error) from error
    return Mount(source=str(path), target=HOSTS)


def start_services(main: Container, driver: Driver, hosts: Mount, start: Starts) -> None:
    """Start the services of a container, each when those that it needs are ready; they end with it.

    Args:
        main: the container, which has started.
        driver: the engine's driver.
        hosts: the mount of their ``/etc/hosts``.
        start: starts a container.

    Raises:
        ServiceError: one ended, or was not ready in time.
        SpecError: an image names no program.
        HyperRuntimeError: a container cannot be started.
    """
    addresses = dict(zip((one.name for one in main.spec.services), _addresses(), strict=False))
    started: dict[str, Container] = {}
    main.services = started
    main.on_end(lambda: threading.Thread(target=_end, args=(started,)).start())
    group = Group(hosts=hosts, joins=main.live)

    def begin(service: Service) -> None:
        container = start(_spec_of(service, main.spec), group)
        started[service.name] = container
        if not main.is_alive:  # it ended meanwhile, and what ended it may have come too early
            container.close()
        if service.directories:
            container.exec(["mkdir", "-p", "--", *service.directories], user="0:0").check()
        args = _program(service, driver)
        begun = time.monotonic()
        container.process = container.spawn(args, input=b"", merge_output=True)
        if service.ready is not None:
            address = addresses[service.name]
            wait_ready(service.name, service.ready, address, container, container.process, main)
        container.ready_s = time.monotonic() - begun

    for services in steps_of(main.spec.services):
        parallel_map(_AT_ONCE, begin, services)


def _end(services: dict[str, Container]) -> None:
    for one in tuple(services.values()):
        one.close()


def _addresses() -> Iterator[str]:
    return (f"127.0.0.{number}" for number in range(_FIRST, 255))


def _spec_of(service: Service, main: ContainerSpec) -> ContainerSpec:
    return ContainerSpec(
        image=service.image,
        env=service.env,
        workdir=service.workdir,
        user=service.user,
        limits=service.limits,
        network=main.engine_network,
        limits_mode=main.limits_mode,
        labels=main.labels,
        pull=main.pull,
    )


def _program(service: Service, driver: Driver) -> tuple[str, ...]:
    """Return the argv of a service's program.

    Raises:
        SpecError: neither the service nor its image names one.
        UnsupportedOptionError: the driver does not know it.
    """
    if service.entrypoint is not None:
        args = (*service.entrypoint, *(service.args or ()))
    else:
        images = driver.images
        if not isinstance(images, NamesPrograms):
            why = f"it does not know the program of an image; give {service.name!r} an entrypoint"
            raise UnsupportedOptionError(driver.name, "services", why)
        entrypoint, command = images.program_of(service.image)
        args = (*entrypoint, *(command if service.args is None else service.args))
    if not args:
        what = f"a program: the image {service.image!r} names none"
        raise SpecError(f"services.{service.name}.args", service.args, what)
    return args
