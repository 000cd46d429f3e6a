"""The client, which makes sessions; files and commands of a session are those of one container."""

from __future__ import annotations

import asyncio
import io
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast
from weakref import WeakValueDictionary

from agents.sandbox import Manifest
from agents.sandbox import errors as sdk
from agents.sandbox import session as sessions
from agents.sandbox.session.manager import Instrumentation
from agents.sandbox.session.pty_output import collect_pty_output
from agents.sandbox.session.pty_types import PtyExecUpdate as Update
from agents.sandbox.session.pty_types import resolve_pty_write_yield_time_ms
from agents.sandbox.session.workspace_payloads import coerce_write_payload
from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot
from agents.sandbox.types import ExecResult, ExposedPortEndpoint, User
from agents.sandbox.util.tar_utils import UnsafeTarMemberError, strip_tar_member_prefix

import hyperruntime as hr
from hyperruntime.adapters.shared_runtime import astart_container
from hyperruntime.exec.options import ShellKeywords
from hyperruntime_openai_agents.archives import archive_tree, extract_archive
from hyperruntime_openai_agents.background_commands import BackgroundCommand, BackgroundCommands

Who: TypeAlias = str | User | None
Snapshot: TypeAlias = SnapshotSpec | SnapshotBase | None
_ANY = (hr.errors.HyperRuntimeError, UnsafeTarMemberError)
_GONE = (FileNotFoundError, hr.errors.WorkdirNotFoundError)


class SandboxOptions(sessions.BaseSandboxClientOptions):
    """Options of a session: the image (a reference, or a recipe's name), and ports to forward."""

    type: Literal["hyperruntime"] = "hyperruntime"
    image: str = "base"
    exposed_ports: tuple[int, ...] = ()


class SessionState(sessions.SandboxSessionState):
    """State that resumes a session: its image, and its container if the client still has that."""

    type: Literal["hyperruntime"] = "hyperruntime"
    image: str
    container_name: str = ""


class SandboxClient(sessions.BaseSandboxClient[SandboxOptions | None]):
    """Makes sessions that are containers; the base class documents the methods."""

    backend_id = "hyperruntime"
    supports_default_options = True

    def __init__(
        self,
        runtime: str | None = None,
        container: Mapping[str, Any] | None = None,
        instrumentation: Instrumentation | None = None,
        dependencies: sessions.Dependencies | None = None,
    ) -> None:
        """Prepare. The state of a session may be untrusted: it cannot change the engine or the
        container's fields.

        Args:
            runtime: the engine; None means ``HYPERRUNTIME_RUNTIME``, else the first one that works.
            container: fields of the container, such as ``mounts``, and the table ``limits``; the
                rest are the SDK's.
        """
        self._fields = container or {}
        self._runtime = runtime
        self._dependencies = dependencies
        self._instrumentation = instrumentation
        self._started = WeakValueDictionary[tuple[object, ...], hr.Container]()

    def _session(self, state: SessionState) -> Session:
        if paths := [
            grant.host_path
            for grant in state.manifest.extra_path_grants
            if grant.host_path is not None
        ]:
            why = (
                f"{paths[0]!r} cannot be added to a container; name it in the client's "
                "container['mounts']"
            )
            raise hr.errors.UnsupportedOptionError("hyperruntime", "extra_path_grants", why)
        known = self._started.get((state.session_id, state.container_name, state.image))
        return Session(state, self._start, known if known is not None and known.is_alive else None)

    async def _start(self, state: SessionState) -> hr.Container:
        made = await astart_container(state.image, self._fields, self._runtime)
        state.container_name = made.name
        state.workspace_root_ready = False
        return self._started.setdefault((state.session_id, made.name, state.image), made)

    async def create(
        self,
        *,
        snapshot: Snapshot = None,
        manifest: Manifest | None = None,
        options: SandboxOptions | None = None,
    ) -> sessions.SandboxSession:
        """Return a session whose container runs; the workspace is made when the session starts."""
        number = uuid.uuid4()
        fields = (options or SandboxOptions()).model_dump(exclude={"type"})
        manifest = self._validate_manifest_for_create(manifest or Manifest())
        kept = resolve_snapshot(snapshot, str(number))
        state = SessionState(session_id=number, manifest=manifest, snapshot=kept, **fields)
        made = self._session(state)
        await made.ensure_container()
        return self._wrap_session(made, instrumentation=self._instrumentation)

    async def delete(self, session: sessions.SandboxSession) -> sessions.SandboxSession:
        """End the container of a session."""
        await session.shutdown()
        return session

    async def resume(self, state: sessions.SandboxSessionState) -> sessions.SandboxSession:
        """Return a session with its container if this client started that and it runs, else with a
        new one.
        """
        if not isinstance(state, SessionState):
            raise TypeError(f"a state of a session of {self.backend_id} is needed, not {state!r}")
        state.assert_path_grants_rebound()
        return self._wrap_session(self._session(state), instrumentation=self._instrumentation)

    def deserialize_session_state(self, payload: dict[str, object]) -> sessions.SandboxSessionState:
        """Return the state of a session from JSON."""
        return self._deserialize_session_state_payload(payload, SessionState)


@contextmanager
def _as(
    kind: Callable[..., sdk.SandboxError], causes: tuple[type[Exception], ...], **fields: object
) -> Iterator[None]:
    try:
        yield
    except causes as error:
        was_not_run = hr.errors.ExecStartError | hr.errors.UnsupportedOptionError
        context = {"retry_safe": isinstance(error, was_not_run)}
        failure = kind(**fields, context=context, cause=error)
        failure.args = (f"{failure.message}: {error}",)
        raise failure from error


class Session(sessions.BaseSandboxSession):
    """A container as a sandbox; the base class documents each method."""

    def __init__(
        self, state: SessionState, start: Callable[..., Any], container: hr.Container | None
    ) -> None:
        """Take over a container; without one, ``start`` makes one."""
        self.state = state
        self._start = start
        self._commands = BackgroundCommands()
        self._container: Any = container
        self._set_start_state_preserved(container is not None)

    async def running(self) -> bool:
        """Return whether the container runs."""
        return self._container is not None and self._container.is_alive

    async def ensure_container(self) -> None:
        """Start a container unless one runs."""
        if not await self.running():
            self._container = await self._start(self.state)
            self._set_start_state_preserved(False)

    _ensure_backend_started = ensure_container

    async def _validate_path_access(self, path: Path | str, *, for_write: bool = False) -> Path:
        return await self._validate_remote_path_access(path, for_write=for_write)  # type: ignore[no-any-return]

    async def _shutdown_backend(self) -> None:
        if self._container is not None:
            await self._container.aclose()

    async def _options(self, user: Who) -> ShellKeywords:
        root = self.state.manifest.root if self.state.workspace_root_ready else None
        env = await self.state.manifest.environment.resolve()
        name = user.name if isinstance(user, User) else user
        return {"env": env, "workdir": root, "user": name}

    @contextmanager
    def _exec_errors(self, args: list[str]) -> Iterator[None]:
        root = self.state.manifest.root
        with (
            _as(sdk.ExecTransportError, _ANY, command=args),
            _as(sdk.WorkspaceRootNotFoundError, _GONE, path=root),
        ):
            yield

    async def exec(
        self,
        *command: str | Path,
        shell: bool | list[str] = True,
        **options: Any,  # noqa: ANN401
    ) -> ExecResult:
        """Run a command; one that reaches its timeout is ended with all its processes."""
        return await self._exec_internal(
            *self._prepare_exec_command(*command, shell=shell, user=None), **options
        )

    async def _exec_internal(
        self, *command: str | Path, timeout: float | None = None, user: Who = None
    ) -> ExecResult:
        args = [str(part) for part in command]
        with self._exec_errors(args):
            result = await self._container.aexec(
                args, timeout_s=timeout, **await self._options(user)
            )
        if result.timed_out:
            raise sdk.ExecTimeoutError(command=args, timeout_s=timeout)
        return ExecResult(stdout=result.stdout, stderr=result.stderr, exit_code=result.exit_code)

    async def read(self, path: Path, *, user: Who = None) -> io.IOBase:
        """Return a file as a stream."""
        inside = str(await self._validate_path_access(path))
        name = (await self._options(user))["user"]
        with (
            _as(sdk.WorkspaceArchiveReadError, _ANY, path=path),
            _as(sdk.WorkspaceReadNotFoundError, _GONE, path=path),
        ):
            return io.BytesIO(await self._container.aread_file(inside, user=name))

    async def write(self, path: Path, data: io.IOBase, *, user: Who = None) -> None:
        """Write a file, and missing directories."""
        content = await asyncio.to_thread(coerce_write_payload(path=path, data=data).stream.read)
        inside = await self._validate_path_access(path, for_write=True)
        options = await self._options(user)
        with _as(sdk.WorkspaceArchiveWriteError, _ANY, path=path):
            await self._container.awrite_file(str(inside), content, user=options["user"])

    async def persist_workspace(self) -> io.IOBase:
        """Return the archive of the workspace."""
        top = self._workspace_root_path()
        skip = [str(path) for path in self._persist_workspace_skip_relpaths()]
        with _as(sdk.WorkspaceArchiveReadError, _ANY, path=top):
            tar = await archive_tree(self._container, str(top), exclude=skip)
            return await asyncio.to_thread(
                strip_tar_member_prefix,
                cast(io.IOBase, tar),
                prefix=top.name,
                relativize_symlinks_under=top,
            )

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        """Extract an archive into the workspace."""
        with _as(sdk.WorkspaceArchiveWriteError, _ANY, path=self._workspace_root_path()):
            await extract_archive(self._container, data, self.state.manifest.root)

    async def _resolve_exposed_port(self, port: int) -> ExposedPortEndpoint:
        fields = {
            "port": port,
            "exposed_ports": self.state.exposed_ports,
            "reason": "backend_unavailable",
        }
        with _as(sdk.ExposedPortUnavailableError, _ANY, **fields):
            host, forwarded = await self._container.aforward(port)
        return ExposedPortEndpoint(host=host, port=forwarded)

    def supports_pty(self) -> bool:
        """Return True."""
        return True

    async def pty_exec_start(
        self,
        *command: str | Path,
        tty: bool = False,
        user: Who = None,
        **options: Any,  # noqa: ANN401
    ) -> Update:
        """Start a command, on a terminal if ``tty``; return its output of the first
        ``yield_time_s``.
        """
        args = self._prepare_exec_command(*command, shell=options.get("shell", True), user=None)
        with self._exec_errors(args):
            number = await self._commands.start(
                self._container, args, tty=tty, **await self._options(user)
            )
        return await self._collect(number, 10.0, **options)

    async def pty_write_stdin(self, *, session_id: int, chars: str, **options: Any) -> Update:  # noqa: ANN401
        """Write to a terminal, and return its output of the next ``yield_time_s``."""
        commands = cast("Mapping[int, BackgroundCommand]", self._commands)
        command = self._resolve_pty_session_entry(pty_processes=commands, session_id=session_id)
        if chars and command.terminal is None:
            raise RuntimeError("stdin is not available for this process")
        await command.write(chars.encode())
        return await self._collect(session_id, 0.25, input_empty=not chars, **options)

    async def pty_terminate_all(self) -> None:
        """Kill all commands that :meth:`pty_exec_start` started."""
        await self._commands.close()

    async def _collect(
        self,
        number: int,
        usual_s: float,
        *,
        input_empty: bool = False,
        **options: Any,  # noqa: ANN401
    ) -> Update:
        command = self._commands[number]
        given_s = options.get("yield_time_s")
        wait_ms = int(1000 * (usual_s if given_s is None else given_s))
        output, tokens, ended = await collect_pty_output(
            output_chunks=command.chunks,
            output_lock=asyncio.Lock(),
            output_notify=command.ended,
            is_done=command.end.done,
            settle_output=command.poll,
            yield_time_ms=resolve_pty_write_yield_time_ms(
                yield_time_ms=wait_ms, input_empty=input_empty
            ),
            max_output_tokens=options.get("max_output_tokens"),
        )
        if ended:
            await self._commands.remove(number)
        with self._exec_errors([]):
            return Update(
                None if ended else number, output, command.end.result() if ended else None, tokens
            )
