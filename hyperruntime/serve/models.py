"""Classes of the service's requests and answers, from which the OpenAPI document is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import attrs

from hyperruntime.pickling import frozen_mapping, names_only
from hyperruntime.spec import DEFAULT_OUTPUT_LIMIT_BYTES, ExecResult, Network, Pull

Stream = Literal["stdout", "stderr"]
Encoding = Literal["text", "base64"]


@attrs.frozen(kw_only=True)
class Nothing:
    """A request without fields."""


@attrs.frozen(kw_only=True)
class NewContainer:
    """A container to start. Limits that are not given are those of the service, and cannot be above
    them.

    Attributes:
        image: an OCI reference, or the name of a recipe such as `base`; it is not built.
        env: environment of every command.
        workdir: working directory of commands; null means the image's.
        user: user of commands, as `name`, `uid` or `uid:gid`; null means the image's.
        network: network access; the service allows `none`, and others if its options name them.
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
    network: Network = "none"
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
class ContainerName:
    """The container of a request.

    Attributes:
        container: its name.
    """

    container: str


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
class Command:
    """A command in a container.

    Attributes:
        container: name of the container.
        args: the program and its arguments; never a shell string.
        env: variables in addition to the container's.
        workdir: absolute path; null means the container's.
        user: as for a container; null means the container's.
        timeout_s: seconds after which all processes of the command are killed; null means never.
        output_limit_bytes: of longer output of a stream, only the head and the tail are in the
            result.
        merge_output: whether standard error goes to standard output.
    """

    container: str
    args: tuple[str, ...]
    env: Mapping[str, str] = attrs.field(default=None, converter=frozen_mapping, repr=names_only)
    workdir: str | None = None
    user: str | None = None
    timeout_s: float | None = None
    output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES
    merge_output: bool = False


@attrs.frozen(kw_only=True)
class ExecCommand(Command):
    """A command, its input, and how its output is returned.

    Attributes:
        stream: whether the answer is a stream of events while the command runs; it then ends if the
            client goes away.
        input: its standard input, in the form that `encoding` names.
        encoding: form of `input` and of output: `text` is UTF-8, and other bytes become U+FFFD;
            `base64` is exact.
    """

    stream: bool = False
    input: str = ""
    encoding: Encoding = "text"


@attrs.frozen(kw_only=True)
class CommandEnd:
    """How a command ended.

    Attributes:
        exit_code: 128+n if signal n killed it, 124 after its deadline, 126 or 127 with
            `not_executed`.
        timed_out: whether its deadline passed.
        truncated: whether output was left out of the result.
        not_executed: whether no program ran.
        duration_s: seconds from the call to the end.
    """

    exit_code: int
    timed_out: bool
    truncated: bool
    not_executed: bool
    duration_s: float


def end_of(result: ExecResult) -> CommandEnd:
    """Return how a command ended, without its output."""
    return CommandEnd(
        **{field.name: getattr(result, field.name) for field in attrs.fields(CommandEnd)}
    )


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
class ErrorFacts:
    """An error.

    Attributes:
        type: its class, such as `SpecError`; the reference of hyperruntime has them all.
        message: what is wrong and what to do next.
    """

    type: str
    message: str


def facts_of(error: Exception) -> ErrorFacts:
    """Return the kind and the text of an error, as clients see them."""
    return ErrorFacts(type=type(error).__name__, message=str(error))


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
class ProcessName(ContainerName):
    """A process of a container.

    Attributes:
        process: its name.
    """

    process: str


@attrs.frozen(kw_only=True)
class ProcessState:
    """The state of a process.

    Attributes:
        process: its name.
        args: its command.
        end: how it ended; null while it runs, or with `error`.
        error: why it is not known how it ended; it does not run any more.
    """

    process: str
    args: tuple[str, ...]
    end: CommandEnd | None
    error: ErrorFacts | None = None


@attrs.frozen(kw_only=True)
class ProcessList:
    """The processes of a container.

    Attributes:
        processes: each of them.
    """

    processes: tuple[ProcessState, ...]


@attrs.frozen(kw_only=True)
class OutputToTake(ProcessName):
    """New output of a process to take.

    Attributes:
        wait_s: seconds to wait for output or the end, at most 60.
        encoding: form of the output, as for a command.
    """

    wait_s: float = 0.0
    encoding: Encoding = "text"


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


@attrs.frozen(kw_only=True)
class InputToWrite(ProcessName):
    """Input for a process. It is taken whole, at once; an answer with an error means that nothing
    was taken.

    Attributes:
        input: at most 1 MiB, in the form that `encoding` names.
        encoding: form of the input, as for a command.
        end: whether the process then reads end-of-file.
    """

    input: str = ""
    encoding: Encoding = "text"
    end: bool = False


@attrs.frozen(kw_only=True)
class SignalToSend(ProcessName):
    """A signal for a process.

    Attributes:
        signal: a name such as `SIGINT`.
    """

    signal: str


@attrs.frozen(kw_only=True)
class SignalReceived:
    """Whether a signal reached something.

    Attributes:
        received: whether the process, or another that it started, was there.
    """

    received: bool
