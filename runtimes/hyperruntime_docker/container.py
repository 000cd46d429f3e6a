"""One running Docker container: its attached shells, its devices, its removal, and the reasons for
failures.
"""

from __future__ import annotations

import json
import re
import select
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import attrs

from hyperruntime.driver import Launch, PostMortem
from hyperruntime.errors import (
    EngineError,
    EngineUnavailableError,
    HyperRuntimeError,
    ImageNotFoundError,
    SpecError,
    UnsupportedOptionError,
)
from hyperruntime.gpu.devices import GENERATE, load_devices, merge_edits
from hyperruntime.host.engine_driver import ShellContainer
from hyperruntime.host.engine_limits import limit_s
from hyperruntime.host.engine_program import shell_args, start_refusal
from hyperruntime.host.process import last_line, wait_until
from hyperruntime.layers.snapshots.kept_images import KeptImages, facts
from hyperruntime.spec import ContainerSpec
from hyperruntime_docker.args import NAME, Settings, cdi_names, container_config, gpu_names
from hyperruntime_docker.client import Engine, said, translated
from hyperruntime_docker.shell import EndTurn, SocketShell, read_text, take_over
from hyperruntime_docker.snapshots import commit

STREAMS = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
_KILLED = 137
_REMOVAL_AGAIN_S = 5.0
_END_TIMEOUT_S = 0.5
_NO_SOURCE = re.compile(r"bind source path does not exist: (.*)")
_NO_DEVICE = re.compile(
    r"could not select device driver|unresolvable CDI devices|CDI device injection failed|nvidia-"
)
_TRY_AGAIN = "retry (this probes the machine again) or see `hyperrun doctor`"


class DockerContainer(ShellContainer):
    """A container whose main process is a shell; only this process is attached to it."""

    shell: SocketShell

    def __init__(
        self,
        launch: Launch,
        settings: Settings,
        engine: Engine,
        on_unknown_failure: Callable[[], None],
        turn: EndTurn | None,
        kept: KeptImages,
    ) -> None:
        """Create, attach and start the container without waiting for its shell to answer.

        Args:
            launch: the container to start.
            settings: the results of the probe.
            engine: the connection to the daemon.
            on_unknown_failure: called if the container does not start and the settings may be the
                reason.
            turn: taken before the container is told to end; None if many may end at once.
            kept: keeps its snapshots.

        Raises:
            HyperRuntimeError: the daemon refused; the class of the error says why.
        """
        self.id = launch.name
        self.exec_env = device_env(launch.spec.gpus, settings)
        self._launch = launch
        self._engine = engine
        self._on_unknown_failure = on_unknown_failure
        self._kept = kept
        self._config = container_config(launch, settings)
        self.shell = self._start(self._config, turn)

    def open_shell(self, user: str) -> SocketShell:
        """Attach another shell as another user.

        Raises:
            UserNotFoundError: the user does not exist.
            HyperRuntimeError: the daemon refused for another reason.
        """
        from docker.errors import APIError

        api = self._engine.api()
        args = shell_args(self._launch.spec.workdir)
        env = dict(self.exec_env)
        with translated(f"no shell could be opened in container {self.id}"):
            try:
                exec_id = api.exec_create(self.id, args, stdin=True, user=user, environment=env)[
                    "Id"
                ]
                connection, early = take_over(api.exec_start(exec_id, socket=True))
                if not has_started(api, exec_id):
                    with connection:
                        raise self._explain(read_text(connection, early, _END_TIMEOUT_S)[0], user)
            except APIError as error:
                raise self._explain(said(error), user) from error
        return SocketShell(connection, early, lambda _: self._exec_code(exec_id))

    def host_pid(self) -> int:
        """Return the pid of the container's first process, as the daemon names it; else 0."""
        return int(self._state().get("Pid") or 0)

    def post_mortem(self) -> PostMortem:
        """Return what is known about the container's end."""
        known = attrs.evolve(super().post_mortem(), log_tail=last_line(self.shell.last_words))
        if known.exit_code is not None:
            return known
        seen = self._state()
        killed = known.oom_killed or bool(seen.get("OOMKilled"))
        return attrs.evolve(known, state=str(seen.get("Status", "unknown")), oom_killed=killed)

    def explain_start_failure(self, error_text: str, user: str | None = None) -> HyperRuntimeError:
        """Return the error that says why the shell never answered.

        Args:
            error_text: what the daemon and the shell wrote about it.
            user: the user of the shell; None means the spec's user.
        """
        code = self.shell.wait(_END_TIMEOUT_S)
        ended = f"the container's shell ended with exit code {code}" if code is not None else ""
        return self._explain(error_text or ended, user)

    def freeze(self, *, running: bool, repositories: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Copy its files to an image; see :class:`~hyperruntime.driver.Freezes`."""
        labels = partial(facts, self._launch.spec.image, repositories)
        make = partial(commit, self._engine, self.id, self._config["Env"], labels)
        return self._kept.keep(make)

    def remove(self) -> None:
        """End and remove the container at once."""
        remove(self._engine, self.id)

    def _start(self, config: Mapping[str, Any], turn: EndTurn | None) -> SocketShell:
        """Create the container, attach to it, then start it, so that it never runs while nobody
        holds its input.
        """
        from docker.errors import APIError

        api = self._engine.api()
        shell = None
        with translated(f"container {self.id} could not be started"):
            try:
                api.create_container_from_config(config, name=self.id)
                connection, early = take_over(api.attach_socket(self.id, params=STREAMS))
                # Request the exit code before the end: the daemon forgets it with an auto-removed
                # container.
                url = f"{api.base_url}/v{api.api_version}/containers/{self.id}/wait"
                ending = api.post(url, params={"condition": "removed"}, stream=True, timeout=None)
                code = partial(self._exit_code, ending)
                shell = SocketShell(connection, early, code, ending.close, turn)
                api.start(self.id)
                return shell
            except BaseException as error:
                if shell is not None:
                    shell.close()
                    shell.close_output()
                # the caller must see the first error
                with suppress(EngineError, EngineUnavailableError):
                    self.remove()
                if isinstance(error, APIError):
                    raise self._explain(said(error)) from error
                raise

    def _explain(self, text: str, user: str | None = None) -> HyperRuntimeError:
        error = explain(text, self._launch.spec, user)
        if isinstance(error, EngineUnavailableError):
            self._on_unknown_failure()
        return error

    def _exit_code(self, ending: Any, timeout_s: float) -> int | None:  # noqa: ANN401 - requests.Response
        """Wait until the container is removed; return its exit code, or None if that is not known
        in time.
        """
        from requests.exceptions import RequestException

        try:
            answer = select.poll()
            answer.register(ending.raw, select.POLLIN)
            if not answer.poll(int(timeout_s * 1000) + 1):
                return None
            code: int | None = int(json.loads(ending.content)["StatusCode"])
        # no `fileno` after it was closed
        except (RequestException, OSError, ValueError, KeyError, AttributeError):
            code = _KILLED if self._state().get("Status") == "removed" else None
        ending.close()
        return code

    def _exec_code(self, exec_id: str) -> int:
        try:
            with translated("an exec cannot be inspected"):
                code = self._engine.api().exec_inspect(exec_id).get("ExitCode")
        except (EngineError, EngineUnavailableError):
            code = None
        return _KILLED if code is None else int(code)

    def _state(self) -> dict[str, Any]:
        """Return the daemon's ``State`` of the container; a ``Status`` may also be ``removed`` or
        ``unknown``.
        """
        from docker.errors import NotFound

        try:
            with translated("a container cannot be inspected"):
                return dict(self._engine.api().inspect_container(self.id)["State"])
        except (EngineError, EngineUnavailableError) as error:
            return {"Status": "removed" if isinstance(error.__cause__, NotFound) else "unknown"}


def explain(text: str, spec: ContainerSpec, user: str | None = None) -> HyperRuntimeError:
    """Return the error for a container, or a shell in it, that did not start.

    Args:
        text: what the daemon or its init said.
        spec: the container's spec.
        user: the user of the shell; None means the spec's user.
    """
    if re.search(r"no such image", text, re.IGNORECASE):
        step = (
            f"get it with `docker pull {spec.image}`, or `hyperrun image build` or `image "
            "bootstrap`"
        )
        return ImageNotFoundError(spec.image, step)
    if missing := _NO_SOURCE.search(text):
        return SpecError("Mount.source", missing[1], "a path that exists on the daemon's machine")
    if "argument list too long" in text:
        return SpecError("env", "...", "shorten it: it is more than a command line holds")
    if _NO_DEVICE.search(text):
        return UnsupportedOptionError(NAME, "gpus", f"{last_line(text)}; see `hyperrun doctor`")
    full = f"Docker's storage is full: {last_line(text)}; `docker system df` shows of what"
    if (refusal := start_refusal(text, spec, user, full)) is not None:
        return refusal
    if "is not running" in text or "no such container" in text.lower():
        return EngineError(f"the container is gone: {last_line(text)}")
    return EngineUnavailableError(
        NAME, last_line(text) or "the container's shell never answered", _TRY_AGAIN
    )


def remove(engine: Engine, name: str) -> None:
    """End and remove a container with its anonymous volumes; do nothing if it does not exist.

    Args:
        engine: the connection to the daemon.
        name: the container's name or id.

    Raises:
        EngineError: the container cannot be removed.
    """
    from docker.errors import APIError, NotFound

    api = engine.api()
    deadline = time.monotonic() + limit_s(NAME, "remove")
    with translated(f"container {name} could not be removed"):
        while True:
            try:
                api.remove_container(name, v=True, force=True)
            except NotFound:
                return
            except APIError as error:
                is_going = error.status_code == 409 and "in progress" in said(error)
                if not is_going or time.monotonic() > deadline:
                    raise
                if not wait_until(lambda: is_gone(api, name), _REMOVAL_AGAIN_S, 0.02):
                    continue  # the other removal may have failed
            return


def has_started(api: Any, exec_id: str) -> bool:  # noqa: ANN401 - the SDK is untyped
    """Wait until an exec has started or failed; return whether it started in time.

    The connection and the ``Running`` state exist before the daemon starts a process; only the pid
    is proof.
    """
    seen: dict[str, Any] = {}

    def decided() -> bool:
        seen.update(api.exec_inspect(exec_id))
        return bool(seen["Pid"]) or seen["ExitCode"] is not None

    return wait_until(decided, limit_s(NAME, "start"), 0.005) and seen["ExitCode"] is None


def is_gone(api: Any, name: str) -> bool:  # noqa: ANN401 - the SDK is untyped
    """Return whether the container does not exist any more."""
    from docker.errors import NotFound

    try:
        api.inspect_container(name)
    except NotFound:
        return True
    return False


def device_env(gpus: str | Sequence[str] | None, settings: Settings) -> Mapping[str, str]:
    """Return the environment that every exec needs to use the GPUs of its spec.

    Args:
        gpus: the ``gpus`` field of the spec.
        settings: the results of the probe.

    Raises:
        UnsupportedOptionError: CDI names are requested, but the daemon does not accept them or has
            no CDI device.
        DeviceNotFoundError: no CDI spec that the daemon reads describes one of the GPUs.
    """
    names = () if gpus is None else cdi_names(gpu_names(gpus), settings)
    if not names:
        return {}
    if not gives_gpus(settings):
        places = " and ".join(settings.cdi_dirs)
        why = f"no CDI spec in {places}, which its daemon reads, describes a device"
        raise UnsupportedOptionError(NAME, "gpus", f"{why}; {GENERATE}, or leave gpus at None")
    return merge_edits(load_devices(settings.cdi_dirs).resolve(names)).env


def gives_gpus(settings: Settings) -> bool:
    """Return whether the daemon has GPUs to give; before Docker 28.3 it lists none, so the CDI
    specs are read.
    """
    listed = settings.nvidia or bool(settings.cdi_devices)
    return listed or (bool(settings.cdi_dirs) and bool(load_devices(settings.cdi_dirs).devices))
