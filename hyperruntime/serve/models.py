"""Classes of the service's requests and answers, from which the OpenAPI document is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import attrs

from hyperruntime.network.egress import Egress, Network
from hyperruntime.pickling import frozen_mapping, names_only
from hyperruntime.remote.requests import (
    CommandEnd,
    Encoding,
    ErrorFacts,
    ProcessState,
    Stream,
    StreamedCommand,
)
from hyperruntime.spec import Pull


@attrs.frozen(kw_only=True)
class NewContainer:
    """A container to start. Limits that are not given are those of the service, and cannot be above
    them.

    Attributes:
        image: an OCI reference, or the name of a recipe such as `base`; it is not built.
        env: environment of every command.
        workdir: working directory of commands; null means the image's.
        user: user of commands, as `name`, `uid` or `uid:gid`; null means the image's.
        network: network access, or the servers that the container may reach; the service allows
            `none`, and others if its options name them.
        pull: whether a missing image is pulled from its registry, if the options of the service
            allow it.
        read_only_rootfs: whether the image's files are read-only.
        memory_bytes: limit of memory and swap.
        cpus: limit of cores, may be a fraction.
        pids: limit of processes and threads.
        tmpfs_bytes: size of a memory file system at `/tmp`.
        shm_bytes: size of the memory file system at `/dev/shm`.
        wall_s: seconds after which the container is ended.
        disk_bytes: limit of disk space.
    """

    image: str
    env: Mapping[str, str] = attrs.field(default=None, converter=frozen_mapping, repr=names_only)
    workdir: str | None = None
    user: str | None = None
    network: Network | Egress = "none"
    pull: Pull = "never"
    read_only_rootfs: bool = False
    memory_bytes: int | None = None
    cpus: float | None = None
    pids: int | None = None
    tmpfs_bytes: int | None = None
    shm_bytes: int | None = None
    wall_s: float | None = None
    disk_bytes: int | None = None


@attrs.frozen(kw_only=True)
class ContainerState:
    """The state of a container.

    Attributes:
        name: its name, unique on this machine.
        image: the reference of its image.
        is_alive: whether it can run commands.
        ended_because: why the watchdog ended it; "" if it did not.
        requests: how many requests use it now.
        unused_s: seconds since the last request that used it; after the idle time of the service it
            is ended.
    """

    name: str
    image: str
    is_alive: bool
    ended_because: str
    requests: int
    unused_s: float


@attrs.frozen(kw_only=True)
class ContainerList:
    """The containers of the service.

    Attributes:
        containers: each of them.
    """

    containers: tuple[ContainerState, ...]


@attrs.frozen(kw_only=True)
class ServiceInfo:
    """Version and limits of the service.

    Attributes:
        version: of hyperruntime.
        runtime: the engine.
        most_containers: how many containers it may have.
        idle_s: seconds after which an unused container is ended; null means never.
    """

    version: str
    runtime: str
    most_containers: int
    idle_s: float | None


@attrs.frozen(kw_only=True)
class ExecCommand(StreamedCommand):
    """A command, its input, and how its output is returned.

    Attributes:
        input: its standard input, in the form that `encoding` names.
        encoding: form of `input` and of output: `text` is UTF-8, and other bytes become U+FFFD;
            `base64` is exact.
    """

    input: str = ""
    encoding: Encoding = "text"


@attrs.frozen(kw_only=True)
class CommandResult(CommandEnd):
    """How a command ended, with its output.

    Attributes:
        stdout: its standard output.
        stderr: its standard error.
    """

    stdout: str
    stderr: str


@attrs.frozen(kw_only=True)
class ErrorAnswer:
    """The body of every answer with a status of 400 or more.

    Attributes:
        error: the error.
    """

    error: ErrorFacts


@attrs.frozen(kw_only=True)
class ExecEvent:
    """One line of a streamed command; the last one is `end` or `error`.

    Attributes:
        event: what it is.
        stream: of `output`: which stream.
        data: of `output`: the next bytes of it, in the form that the request names.
        result: of `end`: how the command ended.
        error: of `error`: why its result is unknown.
    """

    event: Literal["output", "end", "error"]
    stream: Stream | None = None
    data: str | None = None
    result: CommandEnd | None = None
    error: ErrorFacts | None = None


@attrs.frozen(kw_only=True)
class ProcessOutput(ProcessState):
    """The output of a process since the last such request.

    Attributes:
        stdout: its new standard output.
        stderr: its new standard error.
        truncated: whether one of them was longer than the `output_limit_bytes` of the command: its
            middle is left out.
    """

    stdout: str
    stderr: str
    truncated: bool
