"""Run trial containers of this machine's userland for the probe, from an empty image."""

from __future__ import annotations

import io
import os
import select
import tarfile
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any

from hyperruntime.driver import Enforcement
from hyperruntime.errors import EngineError, EngineUnavailableError
from hyperruntime.host.engine_program import SHOW_LIMITS, shown_limits, userland_links
from hyperruntime.host.owner import LABEL, OwnerIdentity, owned_directory
from hyperruntime.logs import get_logger
from hyperruntime.spec import Mount
from hyperruntime_docker.args import NAME, UID_LABEL, probe_config, program_config
from hyperruntime_docker.client import REMOTE_HINT, Engine, translated
from hyperruntime_docker.container import STREAMS, remove
from hyperruntime_docker.shell import read_text, take_over

log = get_logger(__name__)

_EXCHANGE = "/run/hyperruntime"
_REPOSITORY = "localhost/hyperruntime-probe"
_RUN_TIMEOUT_S = 10.0
_PROGRAM_TIMEOUT_S = 24 * 3600.0  # without output; the caller has a shorter one
# The FIFO is opened for reading and writing: otherwise the open waits forever if the reader was killed.
_SCRIPT = rf"""
{SHOW_LIMITS}echo works
echo heard 1<>{_EXCHANGE}/fifo
"""
# A daemon without a bridge starts the container with `lo` only.
_NETWORK_SCRIPT = {"host": "echo works", "bridge": "set -- /sys/class/net/*; [ $# -gt 1 ] && echo works"}


class Trial:
    """An empty image and an exchange directory for a few containers; a context manager."""

    def __init__(self, engine: Engine) -> None:
        """Create a trial; nothing exists on the daemon or on disk before it is entered."""
        self._engine, self._tag = engine, uuid.uuid4().hex[:12]
        self._image, self._labels = f"{_REPOSITORY}:{self._tag}", OwnerIdentity.current().to_labels()
        self._stack = ExitStack()
        self._exchange = ""
        self._userland: list[Mount] = []

    def __enter__(self) -> Trial:
        """Import the image and create the exchange directory.

        Raises:
            EngineError: the daemon refuses.
        """
        self._exchange = os.path.join(self._stack.enter_context(owned_directory()), "x")
        os.mkdir(self._exchange)
        os.chmod(self._exchange, 0o755)
        os.mkfifo(self._fifo)
        os.chmod(self._fifo, 0o666)  # root in the container may be any user here
        rootfs, userland = skeleton()
        self._userland = [Mount(source=path, target=path) for path in userland]
        changes = [f"LABEL {name}={value}" for name, value in self._labels.items()]
        try:
            with translated("an empty image cannot be imported"):
                api = self._engine.api()
                api.import_image_from_data(rootfs, repository=_REPOSITORY, tag=self._tag, changes=changes)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the image, the exchange directory, and the remains of killed probes."""
        self._stack.close()
        try:
            with translated("the probe's image cannot be removed"):
                self._engine.api().remove_image(self._image, force=True)
                remove_left(self._engine)
        except (EngineError, EngineUnavailableError) as failure:
            log.debug("probe image not removed", error=str(failure))

    def limits(self) -> dict[str, Enforcement]:
        """Run a container that answers through the FIFO, and return how each limit is enforced in it.

        Raises:
            EngineUnavailableError: no container runs, or the FIFO is not reachable from it.
        """
        mounts = [*self._userland, Mount(source=self._exchange, target=_EXCHANGE)]
        descriptor = os.open(self._fifo, os.O_RDONLY | os.O_NONBLOCK)
        try:
            printed = self._run_somehow(mounts)
            if "works" not in printed.splitlines():
                raise refused(printed.strip() or "a trial container ended without output")
            if not _has_input(descriptor) or os.read(descriptor, 16) != b"heard\n":
                raise elsewhere()
        finally:
            os.close(descriptor)
        return shown_limits(printed)

    def run_script(self, script: str, mounts: Sequence[Mount], last: str) -> str:
        """Run a shell script as the daemon's root and return its output; the deadline is one day without output.

        Args:
            script: the script for ``sh``.
            mounts: what the script sees of this machine, in addition to the userland.
            last: the last line that the script prints. Then it should wait for end-of-file, because the daemon may lose
                the last output of a container that has ended.

        Raises:
            EngineError: the daemon refuses.
        """
        config = program_config(self._image, [*self._userland, *mounts], script)
        return self._run_config(config, _PROGRAM_TIMEOUT_S, last)

    def works_with(self, network: str) -> bool:
        """Return whether a container runs with a network; tries twice, because the result is cached."""
        return any(self._works_with(network) for _ in range(2))

    @property
    def _fifo(self) -> str:
        return os.path.join(self._exchange, "fifo")

    def _works_with(self, network: str) -> bool:
        try:
            return "works" in self._run(self._userland, _NETWORK_SCRIPT[network], network).splitlines()
        except (EngineError, EngineUnavailableError):
            return False

    def _run_somehow(self, mounts: list[Mount]) -> str:
        """Run the script with limits; without limits if that fails."""
        try:
            return self._run(mounts, _SCRIPT, "none", limited=True)
        except EngineError:
            pass
        try:
            return self._run(mounts, _SCRIPT, "none")
        except EngineError as error:
            if "bind source path does not exist" in str(error):
                raise elsewhere() from error
            raise refused(str(error)) from error

    def _run(self, mounts: list[Mount], script: str, network: str, *, limited: bool = False) -> str:
        """Run a script in a container and return its output, which ends after 10 s without data."""
        return self._run_config(probe_config(self._image, mounts, script, network, limited=limited), _RUN_TIMEOUT_S)

    def _run_config(self, config: dict[str, Any], timeout_s: float, last: str = "") -> str:
        api, name = self._engine.api(), f"hyperruntime-probe-{uuid.uuid4().hex[:12]}"
        config["Labels"] = {**self._labels, UID_LABEL: str(os.getuid())}
        try:
            with translated("a trial container does not start"):
                api.create_container_from_config(config, name=name)
                connection, early = take_over(api.attach_socket(name, params=STREAMS))
                with connection:
                    api.start(name)
                    return read_text(connection, early, timeout_s, last)
        finally:
            remove(self._engine, name)


def remove_left(engine: Engine) -> None:
    """Remove the containers and the empty images of killed probes."""
    api, ours = engine.api(), {"label": LABEL}
    for entry in api.containers(all=True, filters=ours):
        if str(entry.get("Image")).startswith(f"{_REPOSITORY}:") and _is_left(entry):
            remove(engine, str(entry["Id"]))
    for entry in api.images(name=_REPOSITORY, filters=ours):
        if _is_left(entry):
            api.remove_image(entry["Id"], force=True)


def _is_left(entry: Mapping[str, Any]) -> bool:
    owner = OwnerIdentity.from_labels(entry.get("Labels") or {})
    return owner is not None and owner.state() == "dead"


def skeleton() -> tuple[bytes, list[str]]:
    """Return the tar of a root file system of links to the host's userland, and the paths that must be mounted."""
    buffer = io.BytesIO()
    links, directories = userland_links()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        # The daemon mounts its init into /sbin, so /sbin is a directory of the image.
        for name in ("proc", "sys", "dev", "etc", "run", "sbin", "tmp", "usr"):
            tar.addfile(_entry(name, tarfile.DIRTYPE))
        for name in links.keys() - {"sbin"}:
            tar.addfile(_entry(name, tarfile.SYMTYPE, links[name]))
        userland = ["/usr", *(path for path in directories if path != "/sbin")]
        for path in userland[1:]:
            tar.addfile(_entry(path[1:], tarfile.DIRTYPE))
    return buffer.getvalue(), userland


def refused(why: str) -> EngineUnavailableError:
    """Return the error for a daemon that answers but cannot run a container."""
    return EngineUnavailableError(NAME, f"its daemon answers but runs no container: {why}", "see `hyperrun doctor`")


def elsewhere() -> EngineUnavailableError:
    """Return the error for a daemon that does not see this machine's files."""
    why = (
        f"its daemon does not see this machine's {tempfile.gettempdir()}, which commands need (it is on another "
        "machine, in a virtual machine as Docker Desktop's is, or confined as the snap package's is)"
    )
    return EngineUnavailableError(NAME, why, f"{REMOTE_HINT}, or set TMPDIR to a directory that the daemon sees")


def _entry(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.mode = kind, target, 0o755
    return entry


def _has_input(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return any(event & select.POLLIN for _, event in poll.poll(0))
