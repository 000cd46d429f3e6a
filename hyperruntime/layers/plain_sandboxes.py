"""Base classes for drivers of programs that make sandboxes and nothing else, such as ``bwrap``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar

from hyperruntime.driver import Finding, Launch
from hyperruntime.errors import UnsupportedOptionError
from hyperruntime.host.engine_program import NO_IDS
from hyperruntime.host.seccomp import write_filter
from hyperruntime.layers.images import ImageSource
from hyperruntime.layers.namespace import Layers
from hyperruntime.layers.plain_probe import PlainProbe
from hyperruntime.layers.sandboxes import Images, Means, SandboxContainer, SandboxDriver
from hyperruntime.run_as import is_root
from hyperruntime.spec import ContainerSpec


class PlainContainer(SandboxContainer):
    """A container whose main process is the shell attached to the program.

    A driver's class adds ``_job``.
    """

    def __init__(
        self,
        launch: Launch,
        source: ImageSource | None,
        means: Means,
        found: PlainProbe,
        filter_path: str,
    ) -> None:
        """Start the container; see :class:`~hyperruntime.layers.sandboxes.SandboxContainer`.

        Args:
            launch: the container to start.
            source: the image's files; None means this machine's programs.
            means: what it is started with.
            found: the result of the probe.
            filter_path: file of the seccomp filter, or "" for none.
        """
        self._source = source
        self._found = found
        self._filter_path = filter_path
        super().__init__(launch, source, means)
        if not found.users:  # subordinate ids may own files of the image all the same
            self.user = ""
            self.home = ""

    def _make_files(self) -> Layers | None:
        return None if self._source is None else self._make_tree(self._found.storage)


class PlainDriver(SandboxDriver[PlainProbe, Images]):
    """A driver whose containers are :class:`PlainContainer`.

    Attributes:
        container: the class of its containers.
        one_user: why a container has no other users than root.
    """

    container: ClassVar[type[PlainContainer]]
    one_user: ClassVar[str] = NO_IDS

    def __init__(
        self,
        probe: Callable[[], tuple[PlainProbe, bool]],
        findings: Callable[[], Iterable[Finding]],
        images: Images,
    ) -> None:
        """Start nothing; see :class:`~hyperruntime.layers.sandboxes.SandboxDriver`."""
        super().__init__(probe, findings, images)
        self._private_dir = ""
        self._filter: str | None = None

    def open(self, private_dir: str) -> None:
        """Set the directory that takes the seccomp filter."""
        self._private_dir = private_dir

    def _users(self) -> bool:
        return self._probe.get().users

    def _source(self, launch: Launch) -> ImageSource | None:
        """Return the image's files; None means this machine's programs."""
        tree = launch.layers[-1] if launch.layers else ""
        return self.images.source(launch.spec.image, tree, mounts=True)

    def launch(self, launch: Launch) -> PlainContainer:
        """Start a container with its shell attached.

        Raises:
            UnsupportedOptionError: a field of the spec cannot be honoured.
            ImageNotFoundError: the image is not on this machine.
            StorageError: the container's files cannot be written.
            EngineUnavailableError: the program cannot run.
        """
        found = self._probe.get()
        refuse(launch.spec, found, self.one_user)
        source = self._source(launch)
        if self._filter is None:
            self._filter = write_filter(self._private_dir)
        means = self._means(users=self._users())
        return self.container(launch, source, means, found, self._filter)


def refuse(spec: ContainerSpec, found: PlainProbe, one_user: str = NO_IDS) -> None:
    """Raise if the program cannot honour a spec.

    Args:
        spec: the spec.
        found: the result of the probe.
        one_user: why a container has no other users than root.

    Raises:
        UnsupportedOptionError: a field cannot be honoured.
    """
    limits = spec.limits
    no_cgroups = "it makes no cgroups; leave it at None"
    no_bridge = "it cannot make a bridge network; use 'none' or 'host'"
    for field, wanted, why in (
        ("user", not found.users and not is_root(spec.user or "root"), one_user),
        ("network", spec.network == "bridge", no_bridge),
        ("gpus", spec.gpus is not None, "it cannot give GPUs to containers; use another engine"),
        ("limits.memory_bytes", limits.memory_bytes is not None, no_cgroups),
        ("limits.cpus", limits.cpus is not None, no_cgroups),
        (
            "limits.pids",
            limits.pids is not None and found.pids == "no",
            "the limit has no effect here; set it to None",
        ),
    ):
        if wanted:
            raise UnsupportedOptionError(found.engine, field, why)
