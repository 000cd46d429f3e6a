"""The driver seam: what an engine's adapter provides. Everything else is generic and written once in core.

A driver knows its engine and nothing else does. Its package registers a class in the entry-point group
``hyperruntime.runtimes``; the class is called with no argument, and nothing happens before a method is
called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import attrs

from hyperruntime.attached_shell import AttachedShell
from hyperruntime.spec import ContainerSpec, Mount

Enforcement = Literal["cgroup", "rlimit", "no"]


@attrs.frozen(kw_only=True)
class EngineInfo:
    """What an engine can do on this machine: tried, not assumed.

    Attributes:
        engine: the driver's name.
        version: the engine's version.
        rootless: whether it runs as an ordinary user.
        oci_runtime: the OCI runtime that works here, or "".
        storage: how it stores images, or "".
        networks: the networks that work.
        limits: per field of :class:`~hyperruntime.spec.Limits`, how it is enforced; ``no`` is refused.
        gpus: whether GPUs that are described here can be given to a container; not whether there are any.
        users: whether an exec can run as another user than the container's.
        refuses: what else is refused here by :class:`~hyperruntime.errors.UnsupportedOptionError`, each by the very
            ``field`` that the error names: a field of the spec (``read_only_rootfs``, ``user``, ``mounts``), a limit
            that ``limits`` does not tell of (``limits.tmpfs_bytes``), or what images cannot do (``images.build``,
            ``images.load``, ``images.load_rootfs``, ``images.remove``).
        reclaim_args: argv that comes before a program of the host so that it may change every file that containers
            write in their mounts, such as what enters the containers' user namespace; empty where this user may
            anyway. The program sees the paths of the host, and the owner of this user's files as their owner.
    """

    engine: str
    version: str
    rootless: bool
    oci_runtime: str = ""
    storage: str = ""
    networks: tuple[str, ...] = ("none",)
    limits: Mapping[str, Enforcement] = attrs.field(factory=dict)
    gpus: bool = False
    users: bool = True
    refuses: frozenset[str] = frozenset()
    reclaim_args: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class Finding:
    """One line of a driver's diagnosis.

    Attributes:
        subject: what was looked at.
        ok: whether it is as it must be; None for a fact that is neither.
        detail: what was found.
        next_step: what to do about it, or "".
    """

    subject: str
    ok: bool | None
    detail: str
    next_step: str = ""


@attrs.frozen(kw_only=True)
class PostMortem:
    """What is known of a container's end.

    Attributes:
        state: ``exited``, ``running``, ``removed`` or ``unknown``.
        exit_code: of its first process, where known.
        oom_killed: whether the kernel ended a process of it for want of memory.
        log_tail: the last lines of the engine about it.
        ended_by: a sentence's part that says that this library ended it and why, or "".
        limit: field of the limits that it was past when this library ended it, or "".
    """

    state: str
    exit_code: int | None = None
    oom_killed: bool = False
    log_tail: str = ""
    ended_by: str = ""
    limit: str = ""

    def __str__(self) -> str:
        """Return it as the end of a sentence."""
        parts = [self.ended_by] if self.ended_by else []
        parts.append(f"state {self.state}")
        if self.exit_code is not None:
            parts.append(f"exit code {self.exit_code}")
        if self.oom_killed:
            parts.append("a process was ended because the memory limit was reached: raise Limits.memory_bytes")
        if self.log_tail:
            parts.append(f"the engine's last words: {self.log_tail}")
        return ", ".join(parts)


@attrs.frozen(kw_only=True)
class ContainerRecord:
    """A container of this library as the engine lists it.

    Attributes:
        id: the engine's identifier.
        image: its image reference.
        state: the engine's word for it.
        created: seconds since the epoch.
        labels: all labels.
    """

    id: str
    image: str
    state: str
    created: float
    labels: Mapping[str, str]


@attrs.frozen(kw_only=True)
class Image:
    """An image on this machine.

    Attributes:
        id: the engine's identifier (a digest where there is one).
        references: its names.
        size_bytes: on disk.
        created: seconds since the epoch.
    """

    id: str
    references: tuple[str, ...]
    size_bytes: int
    created: float


@attrs.frozen(kw_only=True)
class Launch:
    """All a driver needs to start a container.

    Attributes:
        spec: what the user asked for. Core sets its ``env`` in the attached shells; where an engine is called by a
            command line, which every user of the machine can read, it must not be among the arguments.
        name: a unique name for it.
        labels: owner labels and the user's.
        exchange: mounted read-only at its target in every container.
        private_dir: a directory of this owner on the host for the driver's own files.
    """

    spec: ContainerSpec
    name: str
    labels: Mapping[str, str]
    exchange: Mount
    private_dir: str


class LiveContainer(Protocol):
    """A running container with a shell attached to its first process."""

    @property
    def id(self) -> str:
        """The engine's identifier or name."""
        ...

    @property
    def shell(self) -> AttachedShell:
        """The shell that is the container's main process: the container ends with it."""
        ...

    @property
    def exec_env(self) -> Mapping[str, str]:
        """Environment every exec needs beyond the spec's (what CDI adds)."""
        ...

    def observe(self) -> None:
        """Note what a post-mortem will need while it can be seen; called at the start and when a command is killed."""
        ...

    def open_shell(self, user: str) -> AttachedShell:
        """Attach another shell as another user.

        Raises:
            UnsupportedOptionError: the engine cannot.
        """
        ...

    def post_mortem(self) -> PostMortem:
        """Return what is known of its end; cheap, never raises."""
        ...

    def explain_start_failure(self, error_text: str, user: str | None = None) -> Exception:
        """Return the error that says why a shell never answered.

        Args:
            error_text: what the engine wrote about it.
            user: for whom it was opened, where that is not the spec's user.
        """
        ...

    def remove(self) -> None:
        """End and remove it at once; no error when it is gone already."""
        ...


@runtime_checkable
class HasLayer(Protocol):
    """A live container that can say where on this machine it keeps what is written to its image's files.

    Only one whose overlay mount does not say so itself, as seen from the host, needs to.
    """

    @property
    def layer(self) -> str:
        """That directory."""
        ...


class Images(Protocol):
    """The images an engine holds. Existence is an exact reference match."""

    def exists(self, reference: str) -> bool:
        """Tell whether an image of exactly this reference is here."""
        ...

    def list(self) -> tuple[Image, ...]:
        """Return every image."""
        ...

    def remove(self, reference: str) -> None:
        """Remove a reference.

        Raises:
            ImageNotFoundError: it is not here.
            EngineError: a container uses it.
        """
        ...

    def load_rootfs(self, tar: Path, reference: str) -> str:
        """Make an image of one layer from a root file system's tar; return its identifier."""
        ...

    def load(self, archive: Path) -> tuple[str, ...]:
        """Load a saved image archive; return its references.

        Raises:
            ImageError: it holds no image that this engine can take.
        """
        ...

    def save(self, reference: str, archive: Path) -> None:
        """Write an image that is here, with its reference, to a file that :meth:`load` reads.

        Raises:
            ImageNotFoundError: it is not here.
        """
        ...

    def pull(self, reference: str, *, on_output: Callable[[str], None]) -> str:
        """Get an image from its registry; return its identifier. Plain HTTP is for loopback only.

        Raises:
            ImagePullError: its subclasses tell a wrong name or tag, a refused login and a silent registry apart
                (:func:`hyperruntime.images.pull_errors.explain_pull`).
        """
        ...

    def build(
        self,
        context: Path,
        reference: str,
        *,
        containerfile: Path,
        build_args: Mapping[str, str],
        force: bool,
        on_output: Callable[[str], None],
    ) -> str:
        """Build a Containerfile; return the image's identifier.

        Raises:
            ImageBuildError: a step failed; the message holds its last lines.
        """
        ...


@runtime_checkable
class BuildsDefinitions(Protocol):
    """Images of an engine that builds definition files itself; for others core makes Containerfiles of them."""

    def build_definition(
        self,
        context: Path,
        reference: str,
        *,
        definition: Path,
        build_args: Mapping[str, str],
        on_output: Callable[[str], None],
    ) -> str:
        """Build a definition file; return the image's identifier.

        Raises:
            ImageBuildError: a step failed; the message holds its last lines.
        """
        ...


class Driver(Protocol):
    """An engine's adapter."""

    name: str

    @property
    def images(self) -> Images:
        """The engine's images."""
        ...

    def open(self, private_dir: str) -> None:
        """Take the directory of this owner where the driver's own files go; starts nothing.

        Its path may be long and odd: sockets go to :func:`hyperruntime.host.owner.make_short_directory`.
        """
        ...

    def probe(self) -> EngineInfo:
        """Return what the engine can do here, after really running something (cached per boot and version).

        It is the same object until the driver, doubting it after a container did not start, has tried again.

        Raises:
            EngineUnavailableError: it is missing or cannot run a container.
        """
        ...

    def diagnose(self) -> Sequence[Finding]:
        """Return what was found, what failed and what to do; never raises."""
        ...

    def launch(self, launch: Launch) -> LiveContainer:
        """Start a container and return it with its shell attached, without waiting for the shell to answer.

        Raises:
            UnsupportedOptionError: a field of the spec cannot be honoured.
            EngineUnavailableError: the engine cannot run.
        """
        ...

    def containers(self) -> tuple[ContainerRecord, ...]:
        """Return the containers of this library that the engine lists, of any owner."""
        ...

    def remove_container(self, container_id: str) -> None:
        """End and remove a container; no error when it is gone already."""
        ...

    def cleanup_args(self, label: str) -> tuple[str, ...]:
        """Return the argv that removes every container with a label; run after the owner's death."""
        ...

    def close(self) -> None:
        """End what the driver started (services, sockets); never called in a forked child."""
        ...
