"""Run trial containers of this machine's userland for the probe, from an empty image."""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.driver import Enforcement
from hyperruntime.errors import EngineError, EngineLateError, EngineUnavailableError
from hyperruntime.host.engine_limits import limit_s
from hyperruntime.host.engine_program import SHOW_LIMITS, Trials, make_userland, shown_limits
from hyperruntime.host.owner import LABEL, OwnerIdentity, owned_directory
from hyperruntime.logs import get_logger
from hyperruntime.spec import Mount
from hyperruntime_docker.args import ALL_FILES, NAME, TRIAL_LIMITS, UID_LABEL, trial_config
from hyperruntime_docker.build import tar_of_root
from hyperruntime_docker.client import REMOTE_HINT, Engine, translated
from hyperruntime_docker.container import STREAMS, remove
from hyperruntime_docker.shell import read_text, take_over

log = get_logger(__name__)

_EXCHANGE = "/run/hyperruntime"
_FIFO = "fifo"
_REPOSITORY = "localhost/hyperruntime-probe"
_PROGRAM_TIMEOUT_S = 24 * 3600.0  # without output; the caller has a shorter one
# The FIFO is opened for reading and writing: otherwise the open waits forever if the reader was
# killed.
_SCRIPT = rf"""
{SHOW_LIMITS}echo works
echo heard 1<>{_EXCHANGE}/{_FIFO}
"""
# A daemon without a bridge starts the container with `lo` only.
_NETWORK_SCRIPT = {
    "host": "echo works",
    "bridge": "set -- /sys/class/net/*; [ $# -gt 1 ] && echo works",
}


@attrs.frozen(kw_only=True)
class Trial:
    """An empty image and an exchange directory for a few containers.

    Attributes:
        engine: the connection to the daemon.
        image: the reference of the image.
        exchange: a directory with a FIFO.
        userland: the mounts of the host's userland.
        trials: counts the containers that did not end in time.
    """

    engine: Engine
    image: str
    exchange: str
    userland: Sequence[Mount]
    trials: Trials = attrs.field(factory=lambda: Trials(NAME))

    def limits(self) -> dict[str, Enforcement]:
        """Run a container that answers through the FIFO, and return how each limit is enforced in
        it.

        Raises:
            EngineUnavailableError: no container runs, or the FIFO is not reachable from it.
        """
        mounts = [*self.userland, Mount(source=self.exchange, target=_EXCHANGE)]
        descriptor = os.open(os.path.join(self.exchange, _FIFO), os.O_RDONLY | os.O_NONBLOCK)
        with open(descriptor, "rb", buffering=0) as fifo:
            printed = self._run_somehow(mounts)
            if "works" not in printed.splitlines():
                raise refused(printed.strip() or "a trial container ended without output")
            if fifo.read(16) != b"heard\n":
                raise elsewhere()
        return shown_limits(printed)

    def run_script(self, script: str, mounts: Sequence[Mount], last: str) -> str:
        """Run a shell script as the daemon's root and return its output; the deadline is one day
        without output.

        Args:
            script: the script for ``sh``.
            mounts: what the script sees of this machine, in addition to the userland.
            last: the last line that the script prints. Then it should wait for end-of-file, because
                the daemon may lose the last output of a container that has ended.

        Raises:
            EngineError: the daemon refuses.
        """
        return self._run([*self.userland, *mounts], script, ALL_FILES, last)[0]

    def works_with(self, network: str) -> bool:
        """Return whether a container runs with a network; tries twice after a refusal, because the
        result is cached.
        """
        for _ in range(2):
            try:
                if (
                    "works"
                    in self._try(
                        self.userland, _NETWORK_SCRIPT[network], {"NetworkMode": network}
                    ).splitlines()
                ):
                    return True
            except EngineLateError:
                return False
            except (EngineError, EngineUnavailableError):
                continue
        return False

    def _try(self, mounts: Sequence[Mount], script: str, host: Mapping[str, Any]) -> str:
        """Return what a trial container prints, whose script prints ``works``.

        Raises:
            EngineLateError: it did not print this in time, or two others were late before.
            EngineError: the daemon refuses.
        """
        if self.trials.is_over:
            raise EngineLateError("two trial containers were late")
        try:
            printed, is_late = self._run(mounts, script, host)
        except EngineLateError:
            self.trials.note_late()
            raise
        if is_late and "works" not in printed:  # otherwise only the end of the stream is lost
            self.trials.note_late()
            raise EngineLateError("a trial container printed nothing in time")
        return printed

    def _run_somehow(self, mounts: list[Mount]) -> str:
        """Run the script with limits; without limits if that fails."""
        try:
            return self._try(mounts, _SCRIPT, TRIAL_LIMITS)
        except EngineError:
            pass
        try:
            return self._try(mounts, _SCRIPT, {})
        except EngineLateError as error:
            raise self.trials.error("its daemon answers") from error
        except EngineError as error:
            if "bind source path does not exist" in str(error):
                raise elsewhere() from error
            raise refused(str(error)) from error

    def _run(
        self, mounts: Sequence[Mount], script: str, host: Mapping[str, Any], last: str = ""
    ) -> tuple[str, bool]:
        """Run a script in a container; return its output, and whether the timeout passed before the
        output ended.

        The output ends after some seconds without data; if ``last`` is given, with that line or a
        day without data.
        """
        config = trial_config(self.image, mounts, script, host)
        api = self.engine.api()
        name = f"hyperruntime-probe-{uuid.uuid4().hex[:12]}"
        config["Labels"] = {**OwnerIdentity.current().to_labels(), UID_LABEL: str(os.getuid())}
        try:
            with translated("a trial container does not start"):
                api.create_container_from_config(config, name=name)
                connection, early = take_over(api.attach_socket(name, params=STREAMS))
                with connection:
                    api.start(name)
                    return read_text(
                        connection,
                        early,
                        _PROGRAM_TIMEOUT_S if last else limit_s(NAME, "output"),
                        last,
                    )
        finally:
            remove(self.engine, name)


@contextmanager
def open_trial(engine: Engine) -> Iterator[Trial]:
    """Yield a trial; at its end remove the image, the exchange directory, and the remains of killed
    probes.

    Args:
        engine: the connection to the daemon.

    Raises:
        EngineError: the daemon refuses.
    """
    tag = uuid.uuid4().hex[:12]
    image = f"{_REPOSITORY}:{tag}"
    changes = [
        f"LABEL {name}={value}" for name, value in OwnerIdentity.current().to_labels().items()
    ]
    with owned_directory() as directory:
        exchange = os.path.join(directory, "x")
        os.mkdir(exchange)
        os.chmod(exchange, 0o755)
        os.mkfifo(os.path.join(exchange, _FIFO))
        os.chmod(os.path.join(exchange, _FIFO), 0o666)  # root in the container may be any user here
        rootfs = Path(directory, "rootfs")
        userland = skeleton(rootfs)
        with translated("an empty image cannot be imported"):
            engine.api().import_image_from_data(
                tar_of_root(rootfs), repository=_REPOSITORY, tag=tag, changes=changes
            )
        try:
            mounts = [Mount(source=path, target=path) for path in userland]
            yield Trial(engine=engine, image=image, exchange=exchange, userland=mounts)
        finally:
            try:
                with translated("the probe's image cannot be removed"):
                    engine.api().remove_image(image, force=True)
                    remove_left(engine)
            except (EngineError, EngineUnavailableError) as failure:
                log.debug("probe image not removed", error=str(failure))


def remove_left(engine: Engine) -> None:
    """Remove the containers and the empty images of killed probes."""
    api = engine.api()
    ours = {"label": LABEL}
    for entry in api.containers(all=True, filters=ours):
        if str(entry.get("Image")).startswith(f"{_REPOSITORY}:") and _is_left(entry):
            remove(engine, str(entry["Id"]))
    for entry in api.images(name=_REPOSITORY, filters=ours):
        if _is_left(entry):
            api.remove_image(entry["Id"], force=True)


def _is_left(entry: Mapping[str, Any]) -> bool:
    owner = OwnerIdentity.from_labels(entry.get("Labels") or {})
    return owner is not None and owner.state() == "dead"


def skeleton(rootfs: Path) -> list[str]:
    """Make a root file system of links to the host's userland; return the paths that must be
    mounted.
    """
    userland = make_userland(rootfs)
    # the daemon mounts its init into /sbin, so /sbin is a directory of the image
    if (rootfs / "sbin").is_symlink():
        (rootfs / "sbin").unlink()
    (rootfs / "sbin").mkdir(exist_ok=True)
    return [path for path in userland if path != "/sbin"]


def refused(why: str) -> EngineUnavailableError:
    """Return the error for a daemon that answers but cannot run a container."""
    return EngineUnavailableError(
        NAME, f"its daemon answers but runs no container: {why}", "see `hyperrun doctor`"
    )


def elsewhere() -> EngineUnavailableError:
    """Return the error for a daemon that does not see this machine's files."""
    why = (
        f"its daemon does not see this machine's {tempfile.gettempdir()}, which commands need "
        "(it is on another machine, in a virtual machine as Docker Desktop's is, or confined as "
        "the snap package's is)"
    )
    return EngineUnavailableError(
        NAME, why, f"{REMOTE_HINT}, or set TMPDIR to a directory that the daemon sees"
    )
