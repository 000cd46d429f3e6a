"""The sandbox provider: one container for each sample, with its services."""

from __future__ import annotations

import asyncio
import posixpath
import shlex
from typing import Literal, TypeAlias, overload

import attrs
from inspect_ai import util
from pydantic import BaseModel

import hyperruntime as hr
from hyperruntime import errors
from hyperruntime.transfer.file_errors import FileTooLargeError
from hyperruntime_inspect_ai.config import FILES, NAME, read_config

Config: TypeAlias = BaseModel | str | None

_CANNOT_EXECUTE = 126
# the longest timeouts of a command that is tried again. Source: SandboxEnvironment.exec
_RETRIES_S = (60, 30)
_LOST = (
    errors.ContainerLostError,
    errors.ContainerStateError,
    errors.ExecLostError,
    errors.ExecStartError,
)


@util.sandboxenv(name=NAME)
class HyperRuntimeSandbox(util.SandboxEnvironment):
    """A container, as a sandbox of inspect_ai; the base class documents each method."""

    def __init__(
        self, container: hr.Container, runtime: str, working_dir: str, user: str | None
    ) -> None:
        """Wrap a container of an engine; relative paths begin at ``working_dir``, and ``user`` is
        the usual user.
        """
        super().__init__()
        self.container = container
        self._runtime = runtime
        self._working_dir = working_dir
        self._user = user

    @classmethod
    def config_files(cls) -> list[str]:
        """Return the names of files that configure a sandbox without being named."""
        return FILES

    @classmethod
    async def task_init(cls, task_name: str, config: Config) -> None:
        """Open the engine, and build or find the image."""
        await asyncio.to_thread(read_config(config).prepare)

    @classmethod
    async def sample_init(
        cls, task_name: str, config: Config, metadata: dict[str, str]
    ) -> dict[str, util.SandboxEnvironment]:
        """Start the container of a sample with its services; each of them is an environment, and
        the container's is the first, which is the default.
        """
        plan = await asyncio.to_thread(read_config, config)
        runtime, spec = await asyncio.to_thread(plan.prepared)
        # so that root is there too
        container = await runtime.acontainer(attrs.evolve(spec, user=None))
        users = {one.name: one.user for one in spec.services}
        parts = {plan.name: (container, spec.user)}
        parts |= {name: (one, users[name]) for name, one in container.services.items()}
        try:
            return {
                name: cls(one, runtime.name, await _directory(one), user)
                for name, (one, user) in parts.items()
            }
        except BaseException:
            await asyncio.to_thread(container.close)
            raise

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: Config,
        environments: dict[str, util.SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """End the container of a sample, also after an interrupt."""
        for environment in environments.values():
            await asyncio.shield(asyncio.to_thread(environment.as_type(cls).container.close))

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,  # noqa: A002 - the interface's name
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> util.ExecResult[str]:
        """Run a command; one that reaches its deadline is ended with all its processes, before it
        is tried again.
        """
        limit = util.SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        deadlines = (
            [timeout, *(min(timeout, most) for most in _RETRIES_S if timeout_retry)]
            if timeout
            else [timeout]
        )
        try:
            while True:
                result = await self.container.aexec(
                    cmd,
                    input=input.encode() if isinstance(input, str) else input,
                    workdir=self._path(cwd or ""),
                    env=env,
                    user=user or self._user,
                    timeout_s=deadlines.pop(0),
                    output_limit_bytes=2 * limit,  # the last half of longer output is its tail
                )
                if not (result.timed_out and deadlines):
                    break
        except (errors.UserNotFoundError, errors.WorkdirNotFoundError) as error:
            return util.ExecResult(
                success=False, returncode=_CANNOT_EXECUTE, stdout="", stderr=str(error)
            )
        except errors.UnsupportedOptionError as error:
            raise util.SandboxUserUnsupportedError(str(error)) from error
        except _LOST as error:
            raise util.SandboxUnavailableError(str(error)) from error
        stdout, stderr = (
            data[-limit:].decode(errors="replace") for data in (result.stdout, result.stderr)
        )
        if result.timed_out:
            late = TimeoutError(f"the command did not end within {timeout} s")
            late.truncated_output = stdout + stderr  # type: ignore[attr-defined]  # inspect_ai shows it to the model
            raise late
        if result.not_executed and result.exit_code == _CANNOT_EXECUTE:
            raise PermissionError(
                f"{cmd[0]!r} cannot be executed: {stderr.strip() or 'permission denied'}"
            )
        return util.ExecResult(
            success=result.exit_code == 0, returncode=result.exit_code, stdout=stdout, stderr=stderr
        )

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Write a file, and missing directories."""
        data = contents.encode() if isinstance(contents, str) else contents
        await self.container.awrite_file(self._path(file), data, user=self._user)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Return a file as text or bytes."""
        limit = util.SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        try:
            data = await self.container.aread_file(
                self._path(file), limit_bytes=limit, user=self._user
            )
        except FileTooLargeError:
            raise util.OutputLimitExceededError(
                util.SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None
            ) from None
        return data.decode() if text else data

    async def connection(self, *, user: str | None = None) -> util.SandboxConnection:
        """Return the command that opens a shell in the container.

        Raises:
            NotImplementedError: the engine is neither Podman nor Docker.
            ConnectionError: the container has ended.
        """
        if self._runtime not in ("podman", "docker"):
            raise NotImplementedError(
                f"{self._runtime} has no command that enters a running container"
            )
        if not self.container.is_alive:
            raise ConnectionError(f"container {self.container.name} has ended")
        user = user or self._user
        options = [*(["--user", user] if user else []), "--workdir", self._working_dir]
        command = shlex.join(
            [self._runtime, "exec", "-it", *options, self.container.name, "sh", "-l"]
        )
        return util.SandboxConnection(type=NAME, command=command, container=self.container.name)

    def default_polling_interval(self) -> float:
        """Return the seconds between two polls of a service; each poll is one exec."""
        return 0.2

    def _path(self, path: str) -> str:
        return posixpath.join(self._working_dir, path).rstrip("/") or "/"


async def _directory(container: hr.Container) -> str:
    """Return the working directory of a container."""
    result = await container.aexec(["/bin/sh", "-c", "pwd"])
    return result.check().stdout.decode().rstrip("\n")
