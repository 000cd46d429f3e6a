"""The verbs of a sandbox, for callers elsewhere: one table of typed requests and their handlers.

A handler knows neither the connection nor the kind of sandbox. Its call gives the input piece by
piece and takes the output at the caller's pace. See docs/design/remote.md.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import posixpath
import re
import signal
import uuid
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any

import attrs

from hyperruntime.concurrency.closing import closing_descriptor
from hyperruntime.concurrency.end_event import make_waiter
from hyperruntime.concurrency.loop_streams import LoopStreams
from hyperruntime.errors import SpecError, StaleLeaseError, TransferTimeoutError
from hyperruntime.exec.options import Stream
from hyperruntime.exec.spawn.terminal import Terminal
from hyperruntime.remote import requests
from hyperruntime.remote.held import (
    HeldCommand,
    HeldConnection,
    HeldProcess,
    HeldTerminal,
    Served,
    ServedSandbox,
    Target,
)
from hyperruntime.settings.reader import to_json
from hyperruntime.spec import ExecResult, check_inside_path
from hyperruntime.transfer.copy import tar_read_all
from hyperruntime.transfer.file_calls import READ_LIMIT_BYTES
from hyperruntime.transfer.file_errors import error_of_text
from hyperruntime.units import format_duration
from hyperruntime.wire.peer import Answer, Call

CHUNK_BYTES = 65536
_LATE_S = 5.0  # after its deadline, a command is ended even if its caller does not take the output
_MOST_WAIT_S = 60.0
_TRY_AGAIN_S = 0.05
_MODE = re.compile(r"0?[0-7]{1,4}")
_NOTES_BYTES = 4096
# Archives the content of a directory, or any other file itself.
_READ = """
[ -e "$1" ] || [ -L "$1" ] || { echo "No such file or directory" >&2; exit 3; }
if [ -d "$1" ]; then exec tar -cf - -C "$1" .; fi
exec tar -cf - -C "$2" -- "./$3"
"""
_WRITE = 'mkdir -p -- "$1" && exec tar -xpof - -C "$1"'
Run = Callable[..., Awaitable[ExecResult]]
_TEXT_OPTIONS = ("timeout_s", "output_limit_bytes", "merge_output")
_OPTIONS = ("env", "workdir", *_TEXT_OPTIONS)


def _answer_of(result: ExecResult) -> Answer:
    """Return the result of a command as an answer, whose body is its standard output and then its
    standard error.
    """
    facts = {
        field.name: getattr(result, field.name)
        for field in attrs.fields(ExecResult)
        if field.name not in ("stdout", "stderr")
    }
    return Answer({**facts, "stdout_bytes": len(result.stdout)}, result.stdout + result.stderr)


def _options(asked: requests.Command) -> dict[str, Any]:
    """Return the keyword arguments of an exec; a slot has its own user, and groups of commands."""
    given = {name: getattr(asked, name) for name in _OPTIONS}
    if asked.user is not None:
        given["user"] = asked.user
    if isinstance(asked, requests.SlotCommand):
        given["group"] = asked.group
    return given


def _file_options(asked: requests.FilePath) -> dict[str, Any]:
    """Return the keyword arguments of a verb about one path; a slot has its own user."""
    given: dict[str, Any] = {"timeout_s": asked.deadline_s}
    return given if asked.user is None else {**given, "user": asked.user}


async def _exec(target: Target[Served], asked: requests.StreamedCommand, call: Call) -> Answer:
    """Run a command to its end; with ``stream``, emit its output while it runs."""
    return _answer_of(
        await _run(target.sandbox.exec, asked.args, _options(asked), call, writes=asked.stream)
    )


async def _text(target: Target[ServedSandbox], asked: requests.SlotCommand, call: Call) -> Answer:
    """Run a text in a shell; the body of the call is the text, and its stream the input."""
    shell = target.find(asked.process, HeldCommand).command
    options = {name: getattr(asked, name) for name in _TEXT_OPTIONS}
    given = attrs.evolve(call, body=b"")
    result = await _run(shell.arun, call.body, options, given, writes=asked.stream)
    return _answer_of(attrs.evolve(result, args=()))  # its caller knows the text


async def _run(
    run: Run, words: object, options: dict[str, Any], call: Call, *, writes: bool
) -> ExecResult:
    """Run a command whose input is that of the call.

    Args:
        run: runs it.
        words: the command.
        options: keyword arguments.
        call: whose body, or else stream, is the input, and which takes the output.
        writes: whether the call takes the output while the command runs.
    """
    if not writes and call.read is None:
        return await run(words, **options, input=call.body or None)
    streams = LoopStreams()
    options["input"] = streams.input(call.read) if call.read is not None else call.body or None
    if writes:
        options["on_output"] = streams.output(_writer(call))
    running = asyncio.ensure_future(run(words, **options))
    return await _finished(running, streams, options["timeout_s"])


def _writer(call: Call) -> Callable[[Stream, bytes], Any]:
    async def write(stream: Stream, chunk: bytes) -> None:
        await call.emit(Answer({"stream": stream}, chunk))

    return write


async def _finished(
    running: asyncio.Future[ExecResult], streams: LoopStreams, timeout_s: float | None
) -> ExecResult:
    """Return the result of an exec; end it some seconds after its deadline if the caller does not
    take its output. A slow engine has all its time.

    Args:
        running: the exec.
        streams: its streams, which are closed at its end.
        timeout_s: its deadline in seconds; None means no limit.

    Raises:
        TransferTimeoutError: the deadline passed a few seconds ago, and the output was not read.
        HyperRuntimeError: as the exec.
    """
    was_late = False
    try:
        await asyncio.wait({running}, timeout=timeout_s)
        while not running.done() and not was_late:
            waits = streams.waits
            await asyncio.wait({running}, timeout=_LATE_S)
            was_late = not waits.isdisjoint(streams.waits)
    finally:
        streams.close()
        if not running.done():
            running.cancel()
            await asyncio.wait({running})
        if not running.cancelled():
            running.exception()  # so that it counts as seen
    if was_late:
        raise TransferTimeoutError(
            f"the output was not read in {timeout_s} s, so the command was ended; read faster"
        )
    return running.result()


async def _start_process(target: Target[Served], asked: requests.Command, call: Call) -> Answer:
    """Start a command in the background, whose caller asks for its output."""
    loop = asyncio.get_running_loop()
    news = asyncio.Event()

    def notify(*_: object) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(news.set)

    with target.place():
        process = await target.sandbox.spawn(asked.args, **_options(asked), on_output=notify)
        process.ended.listen(notify)
        name = uuid.uuid4().hex[:12]
        held = HeldProcess(process, name, asked.args, LoopStreams(), news)
        try:
            await held.input.open(process)
        except BaseException:
            await process.aclose()
            raise
        target.held[name] = held
        return Answer(to_json(held.state))


async def _run_process(
    target: Target[ServedSandbox], asked: requests.SlotCommand, call: Call
) -> Answer:
    """Run a command in the background, whose caller takes its output as it comes; an event says
    that its process exists.
    """
    streams = LoopStreams()
    options = {**_options(asked), "on_output": streams.output(_writer(call))}
    if call.read is not None:
        options["input"] = streams.input(call.read)
    elif asked.has_input:
        options["input"] = call.body
    process = await target.sandbox.spawn(asked.args, **options)
    held = HeldProcess(process, asked.process, asked.args, streams)
    try:
        await held.input.open(process)
        with target.holding(asked.process, held):
            await call.emit(Answer({"name": ""}))
            ended = asyncio.ensure_future(process.await_end())
            return _answer_of(await _finished(ended, streams, asked.timeout_s))
    except BaseException as error:
        streams.close()
        await process.aclose()
        if isinstance(error, CancelledError):  # of a thread that waited for the caller
            raise StaleLeaseError("the slot was released while the command ran in it") from None
        raise
    finally:
        streams.close()
        held.input.abort()


async def _list_processes(
    target: Target[Served], asked: requests.ContainerName, call: Call
) -> Answer:
    states = tuple(one.state for one in target.held.values() if isinstance(one, HeldProcess))
    return Answer(to_json(requests.ProcessList(processes=states)))


async def _take(target: Target[Served], asked: requests.OutputToTake, call: Call) -> Answer:
    """Return the output of a process since the last time."""
    if not 0 <= asked.wait_s <= _MOST_WAIT_S:
        raise SpecError("wait_s", asked.wait_s, f"a number of seconds from 0 to {_MOST_WAIT_S:g}")
    held: HeldProcess = target.find(asked.process, HeldProcess)
    whole = asked.encoding == "text"
    state, out, err, truncated = await held.take(asked.wait_s, whole_characters=whole)
    facts = {"truncated": truncated, "stdout_bytes": len(out)}
    return Answer({**to_json(state), **facts}, out + err)


async def _write(target: Target[Served], asked: requests.InputToWrite, call: Call) -> Answer:
    """Give input; it is taken whole or not at all."""
    held = target.find(asked.process)
    await held.write(call.body, end=asked.end, wait_s=target.input_wait_s)
    return Answer()


async def _signal(
    target: Target[Served], asked: requests.SignalNumber | requests.SignalToSend, call: Call
) -> Answer:
    number = asked.signal
    if isinstance(number, str):
        known = signal.Signals.__members__.get(number)
        if known is None:
            raise SpecError("signal", number, "the name of a signal, such as SIGINT or SIGTERM")
        number = known
    received = await target.find(asked.process).signal(number)
    return Answer(to_json(requests.SignalReceived(received=received)))


async def _resize(target: Target[ServedSandbox], asked: requests.WindowSize, call: Call) -> Answer:
    await target.find(asked.process).resize(asked.rows, asked.cols)
    return Answer()


async def _end(target: Target[Served], asked: requests.ProcessName, call: Call) -> Answer:
    """End what is held; if something is left, the caller can repeat it."""
    ended = await target.find(asked.process).end()
    if ended:
        target.held.pop(asked.process, None)
    return Answer(ended)


async def _forget(target: Target[Served], asked: requests.ProcessName, call: Call) -> Answer:
    """Forget an unused object; what still runs in it goes on until the lease ends, as on the
    caller's machine.
    """
    held = target.held.get(asked.process)
    if held is not None:
        held.is_forgotten = True
        if held.has_ended:
            del target.held[asked.process]
    return Answer()


async def _run_terminal(
    target: Target[ServedSandbox], asked: requests.TerminalCommand, call: Call
) -> Answer:
    """Run a command on a terminal; the answer's standard output is the last output of the
    terminal.
    """
    options = _options(asked)
    given = {name: options[name] for name in ("env", "workdir", "group", "timeout_s")}
    terminal = await target.sandbox.terminal(asked.args, rows=asked.rows, cols=asked.cols, **given)
    try:
        with target.holding(asked.process, HeldTerminal(terminal)):
            await call.emit(Answer({"name": terminal.name}))
            rest = await _show(terminal, call)
            result = await terminal.process.await_end()
    except BaseException:
        await terminal.aclose()
        raise
    return _answer_of(attrs.evolve(result, stdout=rest))


async def _show(terminal: Terminal, call: Call) -> bytes:
    """Send the output of a terminal to the caller; return what is left when the command has ended.

    A caller that does not read delays the output, but not the end. No thread waits for output,
    because a node may have many idle terminals.
    """
    write = _writer(call)
    ended = asyncio.ensure_future(terminal.process.ended.wait())
    is_readable = False
    try:
        with closing_descriptor(os.dup(terminal.fileno())) as descriptor:
            while not ended.done():
                try:
                    chunk = terminal.read(0)
                    is_readable = False
                except TimeoutError:
                    # no process holds the terminal, which counts as readable; one may open it again
                    if is_readable:
                        await asyncio.wait({ended}, timeout=_TRY_AGAIN_S)
                    else:
                        await _until_readable(descriptor, ended)
                    is_readable = not is_readable
                    continue
                sending = asyncio.ensure_future(write("stdout", chunk))
                await asyncio.wait({sending, ended}, return_when=asyncio.FIRST_COMPLETED)
                if sending.done():
                    sending.result()
                else:
                    sending.add_done_callback(lambda done: done.cancelled() or done.exception())
        rest = b""
        while chunk := terminal.read():  # does not wait: the command has ended
            rest += chunk
        return rest
    finally:
        ended.cancel()


async def _until_readable(descriptor: int, ended: asyncio.Future[None]) -> None:
    loop = asyncio.get_running_loop()
    readable, wake = make_waiter()
    loop.add_reader(descriptor, wake)
    try:
        await asyncio.wait({readable, ended}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        loop.remove_reader(descriptor)
        readable.cancel()


async def _open_shell(
    target: Target[ServedSandbox], asked: requests.ShellToOpen, call: Call
) -> Answer:
    shell: Any = await target.sandbox.shell(env=asked.env, workdir=asked.workdir, group=asked.group)
    with target.holding(asked.process, HeldCommand(shell)):
        return Answer()


async def _forward(
    target: Target[ServedSandbox], asked: requests.PortToReach, call: Call
) -> Answer:
    """Make a port of the sandbox reachable on this machine."""
    await target.sandbox.forward(asked.port)
    return Answer()


async def _connect(target: Target[ServedSandbox], asked: requests.Connection, call: Call) -> Answer:
    """Serve one client of a port, until both sides have ended."""
    reader, writer = await asyncio.open_connection(*await target.sandbox.forward(asked.port))
    write = _writer(call)
    held = HeldConnection(writer)
    try:
        with target.holding(asked.process, held):
            await call.emit(Answer({"name": ""}))
            while chunk := await reader.read(CHUNK_BYTES):
                await write("stdout", chunk)
            await write("stdout", b"")
            await held.input_ended.wait()
    finally:
        target.held.pop(asked.process, None)
        writer.close()
    return _answer_of(ExecResult(args=(), exit_code=0))


async def _signal_group(
    target: Target[ServedSandbox], asked: requests.GroupName, call: Call
) -> Answer:
    return Answer(await target.sandbox.signal_group(asked.group, asked.signal))


async def _end_group(
    target: Target[ServedSandbox], asked: requests.GroupName, call: Call
) -> Answer:
    return Answer(await target.sandbox.end_group(asked.group))


async def _end_processes(
    target: Target[ServedSandbox], asked: requests.ContainerName, call: Call
) -> Answer:
    await target.sandbox.end_processes()
    return Answer()


async def _tool(target: Target[ServedSandbox], asked: requests.ToolCall, call: Call) -> Answer:
    """Call a tool of an agent; the policy is a pickle, so no route of the HTTP service leads
    here.
    """
    policy = pickle.loads(call.body) if call.body else None  # noqa: S301 - of the head, which a node trusts
    result = await target.sandbox.tool(
        asked.tool, asked.args, timeout_s=asked.timeout_s, policy=policy
    )
    return Answer(attrs.asdict(result))


async def _read_file(target: Target[Served], asked: requests.FileToRead, call: Call) -> Answer:
    given = asked.limit_bytes
    limit_bytes = READ_LIMIT_BYTES if given is None else min(given, READ_LIMIT_BYTES)
    return Answer(
        body=await target.sandbox.read_file(
            asked.path, limit_bytes=limit_bytes, **_file_options(asked)
        )
    )


async def _write_file(target: Target[Served], asked: requests.FileToWrite, call: Call) -> Answer:
    if asked.mode is not None and not _MODE.fullmatch(asked.mode):
        raise SpecError("mode", asked.mode, "octal digits, such as 0644")
    mode = None if asked.mode is None else int(asked.mode, 8)
    await target.sandbox.write_file(
        asked.path, call.body, mode=mode, parents=asked.parents, **_file_options(asked)
    )
    return Answer()


async def _stat(target: Target[Served], asked: requests.PathToLookAt, call: Call) -> Answer:
    found = await target.sandbox.stat(
        asked.path, follow_symlinks=asked.follow_symlinks, **_file_options(asked)
    )
    return Answer(
        to_json(requests.FileFacts(**{**attrs.asdict(found), "mode": f"{found.mode:04o}"}))
    )


async def _list_directory(target: Target[Served], asked: requests.FilePath, call: Call) -> Answer:
    names = await target.sandbox.listdir(asked.path, **_file_options(asked))
    return Answer(to_json(requests.DirectoryNames(names=tuple(names))))


async def _read_archive(target: Target[Served], asked: requests.FilePath, call: Call) -> Answer:
    """Emit a tar archive of a directory's content, or of a single file."""
    check_inside_path("path", asked.path)
    parent, name = posixpath.split(posixpath.normpath(asked.path))

    async def emit(event: Answer) -> None:
        if event.value["stream"] == "stdout":
            await call.emit(event)

    words = (_READ, "archive", asked.path, parent, name or ".")
    result = await _run_script(target, words, asked, attrs.evolve(call, emit=emit), writes=True)
    if not tar_read_all(result):
        raise error_of_text(asked.path, result.stderr.decode(errors="replace"))
    return Answer()


async def _write_archive(target: Target[Served], asked: requests.FilePath, call: Call) -> Answer:
    """Extract a tar archive, which comes as the body, into a directory, which is made if it does
    not exist.
    """
    check_inside_path("path", asked.path)
    result = await _run_script(target, (_WRITE, "archive", asked.path), asked, call, writes=False)
    if result.exit_code != 0:
        raise error_of_text(asked.path, result.stderr.decode(errors="replace"))
    return Answer()


async def _run_script(
    target: Target[Served],
    words: tuple[str, ...],
    asked: requests.FilePath,
    call: Call,
    *,
    writes: bool,
) -> ExecResult:
    """Run one of the scripts above with the options of a copy."""
    limit_s = asked.archive_deadline_s
    options = {**_file_options(asked), "workdir": "/", "env": {"LC_ALL": "C"}}
    options |= {"timeout_s": limit_s, "output_limit_bytes": _NOTES_BYTES}
    args = ("/bin/sh", "-c", *words)
    result = await _run(target.sandbox.exec, args, options, call, writes=writes)
    if result.timed_out:
        raise TransferTimeoutError(
            f"the archive of {asked.path!r} took longer than {format_duration(limit_s)}; "
            "copy parts of it, or raise timeout_s"
        )
    return result


@attrs.frozen
class Verb:
    """A verb of a sandbox.

    Attributes:
        request: the class of its request; a caller's form may have fields more.
        handler: answers it.
    """

    request: type
    handler: Callable[[Target[Any], Any, Call], Awaitable[Answer]]


VERBS: Mapping[str, Verb] = {
    "exec.run": Verb(requests.SlotCommand, _exec),
    "file.read": Verb(requests.FileToRead, _read_file),
    "file.write": Verb(requests.FileToWrite, _write_file),
    "file.stat": Verb(requests.PathToLookAt, _stat),
    "directory.list": Verb(requests.FilePath, _list_directory),
    "archive.read": Verb(requests.FilePath, _read_archive),
    "archive.write": Verb(requests.FilePath, _write_archive),
    "process.start": Verb(requests.SlotCommand, _start_process),
    "process.run": Verb(requests.SlotCommand, _run_process),
    "process.list": Verb(requests.ContainerName, _list_processes),
    "process.take": Verb(requests.OutputToTake, _take),
    "process.write": Verb(requests.InputToWrite, _write),
    "process.signal": Verb(requests.SignalNumber, _signal),
    "process.end": Verb(requests.ProcessName, _end),
    "process.forget": Verb(requests.ProcessName, _forget),
    "terminal.run": Verb(requests.TerminalCommand, _run_terminal),
    "terminal.resize": Verb(requests.WindowSize, _resize),
    "shell.open": Verb(requests.ShellToOpen, _open_shell),
    "shell.run": Verb(requests.SlotCommand, _text),
    "port.forward": Verb(requests.PortToReach, _forward),
    "port.connect": Verb(requests.Connection, _connect),
    "group.signal": Verb(requests.GroupName, _signal_group),
    "group.end": Verb(requests.GroupName, _end_group),
    "slot.end_processes": Verb(requests.ContainerName, _end_processes),
    "slot.tool": Verb(requests.ToolCall, _tool),
}
"""What callers elsewhere may ask of a sandbox. Nodes offer all of it, and the HTTP service offers
those that have a route.
"""
