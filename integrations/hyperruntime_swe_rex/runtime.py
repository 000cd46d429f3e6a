"""The runtime: sessions, commands and files of one container, without a server in it."""

from __future__ import annotations

import asyncio
import io
import os
import posixpath
from collections.abc import Iterator
from contextlib import contextmanager

from swerex import exceptions
from swerex.runtime import abstract
from swerex.utils.log import get_logger

import hyperruntime as hr
from hyperruntime.concurrency.blocking import EXECS, blocking
from hyperruntime_swe_rex.shell_session import ShellSession


class ContainerError(exceptions.SwerexException, RuntimeError):
    """The container has ended, or cannot do what was asked."""


class Runtime(abstract.AbstractRuntime):
    """A container, as a runtime of SWE-ReX; the base class documents each method."""

    def __init__(self, container: hr.Container) -> None:
        """Wrap a running container, which the caller closes."""
        self.container = container
        self.logger = get_logger("rex-runtime")
        self._sessions: dict[str, ShellSession] = {}

    async def is_alive(self, *, timeout: float | None = None) -> abstract.IsAliveResponse:
        """Return whether the container answers."""
        is_alive = await blocking(EXECS, lambda: self.container.responds(timeout))
        return abstract.IsAliveResponse(
            is_alive=is_alive, message="" if is_alive else repr(self.container)
        )

    async def create_session(
        self, request: abstract.CreateBashSessionRequest
    ) -> abstract.CreateBashSessionResponse:
        """Open a shell."""
        name = request.session
        files = "\n".join(f"source {path}" for path in request.startup_source)
        if name in self._sessions:
            raise exceptions.SessionExistsError(
                f"session {name!r} exists already; close it, or choose another name"
            )
        session = self._sessions[name] = ShellSession(self.container)
        try:
            with _as_theirs(f"the start of session {name!r}"):
                seen = await asyncio.wait_for(
                    session.run(files), request.startup_timeout if files else None
                )
        except BaseException:
            await self.close_session(abstract.CloseBashSessionRequest(session=name))
            raise
        return abstract.CreateBashSessionResponse(output=seen.text)

    async def run_in_session(self, action: abstract.Action) -> abstract.BashObservation:
        """Run a command in a shell, or interrupt the one that runs."""
        session = self._session(action.session)
        if isinstance(action, abstract.BashInterruptAction):
            with _as_theirs("the command"):
                found = await session.interrupt(
                    action.expect, tries=action.n_retry, timeout_s=action.timeout
                )
            return abstract.BashObservation(
                output=found.text.strip(), exit_code=0, expect_string=found.found
            )
        on_terminal = action.is_interactive_command or action.is_interactive_quit
        with _as_theirs(repr(action.command)):
            async with asyncio.timeout(action.timeout):
                if (
                    not on_terminal
                    and not session.asks
                    and (said := await session.syntax_error(action.command))
                ):
                    info = {"bash_stdout": "", "bash_stderr": said}
                    raise exceptions.BashIncorrectSyntaxError(
                        f"{action.command!r}: {said}", extra_info=info
                    )
                found = await session.run(action.command, action.expect, on_terminal=on_terminal)
        output = found.text
        code = found.exit_code if action.check != "ignore" else None
        if action.is_interactive_command:  # a program that edits lines shows what is typed
            output = output.lstrip().removeprefix(action.command).strip()
        if on_terminal:
            code = 0
        elif action.check == "raise":
            _check(action.command, code, output, action.error_msg)
        return abstract.BashObservation(output=output, exit_code=code, expect_string=found.found)

    async def close_session(
        self, request: abstract.CloseBashSessionRequest
    ) -> abstract.CloseBashSessionResponse:
        """End a shell and all its processes."""
        await self._session(request.session, end=True).close()
        return abstract.CloseBashSessionResponse()

    async def execute(self, command: abstract.Command) -> abstract.CommandResponse:
        """Run a command outside the sessions."""
        words = [command.command] if isinstance(command.command, str) else command.command
        args = ["/bin/sh", "-c", *words] if command.shell else words
        with _as_theirs(repr(command.command)):
            workdir = await self._path(command.cwd) if command.cwd else None
            result = await self.container.aexec(
                args,
                timeout_s=command.timeout,
                env=command.env,
                merge_output=command.merge_output_streams,
                workdir=workdir,
            )
            if result.timed_out:
                raise TimeoutError
        stdout, stderr = (
            data.decode(errors="backslashreplace") for data in (result.stdout, result.stderr)
        )
        if result.not_executed:
            kind = PermissionError if result.exit_code == 126 else FileNotFoundError
            raise kind(f"{args[0]!r} cannot be executed in the container: {stderr.strip()}")
        if command.check:
            _check(command.command, result.exit_code, stdout + stderr, command.error_msg)
        return abstract.CommandResponse(stdout=stdout, stderr=stderr, exit_code=result.exit_code)

    async def read_file(self, request: abstract.ReadFileRequest) -> abstract.ReadFileResponse:
        """Return the text of a file, with every line end as a newline, as in SWE-ReX."""
        with _as_theirs(request.path):
            data = await self.container.aread_file(await self._path(request.path))
        with io.TextIOWrapper(
            io.BytesIO(data), request.encoding or "utf-8", request.errors
        ) as text:
            return abstract.ReadFileResponse(content=text.read())

    async def write_file(self, request: abstract.WriteFileRequest) -> abstract.WriteFileResponse:
        """Write a file, and missing directories."""
        with _as_theirs(request.path):
            await self.container.awrite_file(
                await self._path(request.path), request.content.encode()
            )
        return abstract.WriteFileResponse()

    async def upload(self, request: abstract.UploadRequest) -> abstract.UploadResponse:
        """Copy a file or directory of this machine into the container."""
        source = await blocking(EXECS, lambda: os.path.realpath(request.source_path, strict=True))
        with _as_theirs(request.target_path):
            await self.container.aput(source, await self._path(request.target_path))
        return abstract.UploadResponse()

    async def close(self) -> abstract.CloseResponse:
        """End all sessions."""
        sessions, self._sessions = self._sessions, {}
        await asyncio.gather(*(session.close() for session in sessions.values()))
        return abstract.CloseResponse()

    def _session(self, name: str, *, end: bool = False) -> ShellSession:
        if name not in self._sessions:
            raise exceptions.SessionDoesNotExistError(
                f"session {name!r} does not exist; create it first"
            )
        return self._sessions.pop(name) if end else self._sessions[name]

    async def _path(self, path: str) -> str:
        if path.startswith("/"):
            return path
        directory = (
            (await self.container.aexec(["/bin/sh", "-c", "pwd"]))
            .check()
            .stdout.decode()
            .rstrip("\n")
        )
        return posixpath.join(directory, path)


@contextmanager
def _as_theirs(what: str) -> Iterator[None]:
    """Turn the errors of containers and deadlines into those of SWE-ReX."""
    try:
        yield
    except hr.HyperRuntimeError as error:
        if isinstance(error, OSError | ValueError):
            raise  # as those of a file there
        raise ContainerError(str(error)) from error
    except TimeoutError as error:
        raise exceptions.CommandTimeoutError(str(error) or f"{what} did not end in time") from error


def _check(command: object, code: int | None, output: str, message: str) -> None:
    start = f"{message}: {command!r}" if message else repr(command)
    if code is None:
        raise exceptions.NoExitCodeError(
            f"{start} still runs, so it has no exit code; its output: {output!r}"
        )
    if code != 0:
        raise exceptions.NonZeroExitCodeError(
            f"{start} ended with exit code {code}; its output: {output!r}"
        )
