"""The requests and the answers of the verbs of a sandbox, for every caller.

The OpenAPI document of the service is made from those that it uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from signal import SIGKILL
from typing import Any, Literal

import attrs

from hyperruntime.pickling import names_only
from hyperruntime.spec import DEFAULT_OUTPUT_LIMIT_BYTES, ExecResult
from hyperruntime.transfer.copy import DEFAULT_TIMEOUT_S
from hyperruntime.transfer.file_calls import FILE_TIMEOUT_S

Stream = Literal["stdout", "stderr"]
Encoding = Literal["text", "base64"]


@attrs.frozen(kw_only=True)
class Nothing:
    """A request without fields."""


@attrs.frozen(kw_only=True)
class ContainerName:
    """The container of a request.

    Attributes:
        container: its name.
    """

    container: str


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
    env: Mapping[str, str] = attrs.field(factory=dict, repr=names_only, hash=False)
    workdir: str | None = None
    user: str | None = None
    timeout_s: float | None = None
    output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES
    merge_output: bool = False


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


@attrs.frozen(kw_only=True)
class FilePath(ContainerName):
    """A path in a container.

    Attributes:
        path: absolute path; percent-encoded bytes that are not UTF-8 are allowed.
        user: as for a command.
        timeout_s: seconds after which the request is ended, as for a pipe into which nothing is
            written; null means 60, and 600 for an archive.
    """

    path: str
    user: str | None = None
    timeout_s: float | None = None

    @property
    def deadline_s(self) -> float:
        """Seconds for a request about one path."""
        return FILE_TIMEOUT_S if self.timeout_s is None else self.timeout_s

    @property
    def archive_deadline_s(self) -> float:
        """Seconds for an archive."""
        return DEFAULT_TIMEOUT_S if self.timeout_s is None else self.timeout_s


@attrs.frozen(kw_only=True)
class FileToRead(FilePath):
    """A file to read.

    Attributes:
        limit_bytes: most bytes that it may have.
    """

    limit_bytes: int | None = None


@attrs.frozen(kw_only=True)
class FileToWrite(FilePath):
    """A file to write.

    Attributes:
        mode: permission bits as octal digits, such as `0644`; null keeps those of an existing file.
        parents: whether missing directories are made.
    """

    mode: str | None = None
    parents: bool = True


@attrs.frozen(kw_only=True)
class PathToLookAt(FilePath):
    """A path whose facts are wanted.

    Attributes:
        follow_symlinks: whether the facts are those of the file that a link leads to.
    """

    follow_symlinks: bool = True


@attrs.frozen(kw_only=True)
class FileFacts:
    """The facts of a path.

    Attributes:
        kind: what it is.
        size_bytes: its size.
        mode: its permission bits as octal digits.
        uid: its owner.
        gid: its group.
        links: number of its hard links.
        modified_s: time of its last change of content, in whole seconds since 1970.
    """

    kind: Literal[
        "file",
        "directory",
        "symlink",
        "fifo",
        "socket",
        "character device",
        "block device",
        "unknown",
    ]
    size_bytes: int
    mode: str
    uid: int
    gid: int
    links: int
    modified_s: int


@attrs.frozen(kw_only=True)
class DirectoryNames:
    """The names in a directory.

    Attributes:
        names: sorted; bytes that are not UTF-8 are lone surrogates, as Python's `os.fsdecode` makes
            them.
    """

    names: tuple[str, ...]


@attrs.frozen(kw_only=True)
class StreamedCommand(Command):
    """A command whose caller may take the output while it runs.

    Attributes:
        stream: whether the answer is a stream of events while the command runs; it then ends if the
            client goes away.
    """

    stream: bool = False


@attrs.frozen(kw_only=True)
class SlotCommand(StreamedCommand):
    """A command in a slot.

    Attributes:
        process: name under which it is held; a text names its shell.
        group: name of the group of commands that it belongs to.
        has_input: whether its whole input comes with the request; else it stays open.
    """

    process: str = ""
    group: str | None = None
    has_input: bool = False


@attrs.frozen(kw_only=True)
class WindowSize(ProcessName):
    """The size of the window of a terminal.

    Attributes:
        rows: of it.
        cols: of it.
    """

    rows: int
    cols: int


@attrs.frozen(kw_only=True)
class TerminalCommand(SlotCommand):
    """A command on a terminal.

    Attributes:
        rows: of its window.
        cols: of its window.
    """

    rows: int
    cols: int


@attrs.frozen(kw_only=True)
class ShellToOpen(ProcessName):
    """A persistent shell.

    Attributes:
        env: variables in addition to the slot's.
        workdir: directory in which it begins.
        group: as of a command.
    """

    env: Mapping[str, str] | None = attrs.field(default=None, repr=names_only, hash=False)
    workdir: str | None = None
    group: str | None = None


@attrs.frozen(kw_only=True)
class SignalNumber(ProcessName):
    """A signal for a process, terminal or shell.

    Attributes:
        signal: its number.
    """

    signal: int


@attrs.frozen(kw_only=True)
class PortToReach(ContainerName):
    """A port to make reachable.

    Attributes:
        port: TCP port on the loopback.
    """

    port: int


@attrs.frozen(kw_only=True)
class Connection(SlotCommand):
    """A connection to a port; it has the streams and the name of a command.

    Attributes:
        port: TCP port on the loopback.
    """

    port: int


@attrs.frozen(kw_only=True)
class GroupName(ContainerName):
    """A group of commands.

    Attributes:
        group: its name.
        signal: number of the signal that it gets.
    """

    group: str
    signal: int = SIGKILL


@attrs.frozen(kw_only=True)
class ToolCall(ContainerName):
    """A call of an agent's tool.

    Attributes:
        tool: its name.
        args: its arguments.
        timeout_s: time limit in seconds.
    """

    tool: str
    args: Mapping[str, Any] = attrs.field(hash=False)
    timeout_s: float | None = None
