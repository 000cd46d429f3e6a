"""The interface of drivers, the adapters of engines. All other code is independent of the engine.

The package of a driver registers a class in the entry-point group ``hyperruntime.runtimes``. The
class is called without arguments and does nothing before a method is called. It may have
``interface_version`` (docs/versions.md).

docs/writing-a-driver.md shows a whole driver, and lists the modules of ``hyperruntime.host`` that
its package may use.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import attrs

from hyperruntime.attached_shell import AttachedShell
from hyperruntime.spec import ContainerSpec, Mount

Enforcement = Literal["cgroup", "rlimit", "no"]


@attrs.frozen(kw_only=True)
class EngineInfo:
    """Capabilities of an engine on this machine, as tests on this machine showed.

    Attributes:
        engine: the driver's name.
        version: the engine's version.
        rootless: whether it runs as an ordinary user.
        oci_runtime: the OCI runtime that works here, or "".
        storage: how it stores images, or "".
        networks: the networks that work.
        limits: how each field of :class:`~hyperruntime.spec.Limits` is enforced; a limit with
            ``no`` is refused.
        gpus: whether described GPUs can be given to a container; not whether the machine has GPUs.
        root: whether commands are root inside; False: they have the user's own uid there.
        users: whether an exec can run as another user than the container's.
        ignores_modes: whether root in a container passes over the modes of files (it has
            CAP_DAC_OVERRIDE).
        image_owners: whether files of an image keep their owners; False: all belong to the
            container's root.
        unfiltered: why commands run without a seccomp filter here, or "".
        snapshots: whether containers can start from the files of others.
        slow_rollbacks: whether a rollback takes longer than a new container that is ready, so that
            pools replace containers instead.
        services: whether a container can join the network of another one.
        refuses: other fields that raise :class:`~hyperruntime.errors.UnsupportedOptionError` here,
            under the name in the error's ``field``: a field of the spec (``read_only_rootfs``,
            ``user``, ``mounts``), a limit that is not in ``limits`` (``limits.tmpfs_bytes``), or an
            image operation (``images.build``, ``images.load``, ``images.load_rootfs``,
            ``images.remove``), or ``terminal``.
        reclaim_args: argv prefix for a program of the host that lets it change every file that
            containers write in their mounts, such as a command that enters the containers' user
            namespace; empty if this user may change them anyway. The program sees the paths of the
            host, and owns this user's files.

    Example:
        >>> "none" in runtime.info.networks
        True
        >>> hr.EngineInfo(engine="podman", version="5.4", rootless=True).networks
        ('none',)
    """

    engine: str
    version: str
    rootless: bool
    oci_runtime: str = ""
    storage: str = ""
    networks: tuple[str, ...] = ("none",)
    limits: Mapping[str, Enforcement] = attrs.field(factory=dict, hash=False)
    gpus: bool = False
    root: bool = True
    users: bool = True
    ignores_modes: bool = True
    image_owners: bool = True
    unfiltered: str = ""
    snapshots: bool = False
    slow_rollbacks: bool = False
    services: bool = False
    refuses: frozenset[str] = frozenset()
    reclaim_args: tuple[str, ...] = ()

    @property
    def owns_processes(self) -> bool:
        """Whether this user may see and kill the containers' processes from the host; those of
        another user's daemon it may not.
        """
        return self.rootless or os.geteuid() == 0


@attrs.frozen(kw_only=True)
class Finding:
    """One line of a driver's diagnosis.

    Attributes:
        subject: the thing that was checked.
        ok: whether the check passed; None for information only.
        detail: the result of the check.
        next_step: how to fix a problem, or "".
    """

    subject: str
    ok: bool | None
    detail: str
    next_step: str = ""


@attrs.frozen(kw_only=True)
class PostMortem:
    """The known facts about a container's end.

    Attributes:
        state: ``exited``, ``running``, ``removed`` or ``unknown``.
        exit_code: exit code of its first process; None if unknown.
        oom_killed: whether the kernel killed one of its processes out of memory.
        log_tail: the engine's last lines about it.
        ended_by: why this library ended it, as part of a sentence, or "".
        limit: name of the field of the limits that it exceeded when this library ended it, or "".

    Example:
        >>> hr.PostMortem(state="exited", exit_code=137, oom_killed=True).oom_killed
        True
    """

    state: str
    exit_code: int | None = None
    oom_killed: bool = False
    log_tail: str = ""
    ended_by: str = ""
    limit: str = ""

    def __str__(self) -> str:
        """Return the facts as the end of a sentence."""
        parts = [self.ended_by] if self.ended_by else []
        parts.append(f"state {self.state}")
        if self.exit_code is not None:
            parts.append(f"exit code {self.exit_code}")
        if self.oom_killed:
            parts.append(
                "a process was killed because the memory limit was reached: raise "
                "Limits.memory_bytes"
            )
        if self.log_tail:
            parts.append(f"the engine's last lines: {self.log_tail}")
        return ", ".join(parts)


@attrs.frozen(kw_only=True)
class ContainerRecord:
    """A container of this library as the engine lists it.

    Attributes:
        id: the engine's identifier.
        image: its image reference.
        state: its state, as the engine names it.
        created: seconds since the epoch.
        labels: all labels.
    """

    id: str
    image: str
    state: str
    created: float
    labels: Mapping[str, str] = attrs.field(hash=False)


@attrs.frozen(kw_only=True)
class Image:
    """An image on this machine.

    Attributes:
        id: the engine's identifier (a digest if there is one).
        references: its image references.
        size_bytes: its size on disk.
        created: seconds since the epoch; 0 or less if that is not known, as of this machine's /usr.
    """

    id: str
    references: tuple[str, ...]
    size_bytes: int
    created: float


@attrs.frozen(kw_only=True)
class Launch:
    """A request to a driver to start a container.

    Attributes:
        spec: the user's spec. Core sets its ``env`` in the attached shells; a driver must not put
            it on a command line, which every user of the machine can read.
        name: a unique name for the container.
        labels: the owner's labels and the user's.
        exchange: the exchange directory, mounted read-only in every container.
        private_dir: a directory of this container on the host for the driver's own files. Core
            removes it after the container's end. So mount nothing in it where the host sees the
            mount, because the removal would go through it, and leave no file in it that this user
            cannot remove, such as those of other users of the container.
        layers: what :class:`Freezes` returned, in place of the image's files: directories of this
            machine, the highest first, or one image of the engine; empty: the image's. Only for a
            driver that declares ``snapshots``.
        joins: the container of this driver whose network it has, instead of one of its own; only
            for a driver that declares ``services``.
    """

    spec: ContainerSpec
    name: str
    labels: Mapping[str, str] = attrs.field(hash=False)
    exchange: Mount
    private_dir: str
    layers: tuple[str, ...] = ()
    joins: LiveContainer | None = None


class LiveContainer(Protocol):
    """A running container with an attached shell.

    PID 1 must be an init: it reaps orphans, and ends when the shell ends. A shell that waits for
    its child is one.
    """

    @property
    def id(self) -> str:
        """The engine's identifier or name."""
        ...

    @property
    def shell(self) -> AttachedShell:
        """The shell that is the container's main process, but not PID 1; the container ends with
        it.
        """
        ...

    @property
    def exec_env(self) -> Mapping[str, str]:
        """Variables that every exec needs in addition to the spec's (from CDI)."""
        ...

    def observe(self) -> None:
        """Save facts for a post-mortem while they are available; called at the start and when a
        command is killed.
        """
        ...

    def post_mortem(self) -> PostMortem:
        """Return the known facts about its end; cheap, never raises."""
        ...

    def explain_start_failure(self, error_text: str, user: str | None = None) -> Exception:
        """Return the error that explains why a shell did not answer; for an unknown user a
        UserNotFoundError.

        A missing working directory, which many engines would create, and an unknown user are a
        SpecError that names the field. The error about an image without a shell names ``/bin/sh``.
        :func:`hyperruntime.host.engine_program.start_refusal` knows what several engines say.

        Args:
            error_text: the engine's messages about it.
            user: user of the shell; None means the spec's user.
        """
        ...

    def remove(self) -> None:
        """Kill and remove it at once; no error if it is already gone. Called again after an error,
        in any thread.

        Not called on an orderly close: the shell reads end-of-file and ends, and all that is on the
        host must go then.
        """
        ...


@runtime_checkable
class SwitchesUser(Protocol):
    """A live container whose main shell is root inside, and whose commands run as another user.

    Without it, they run as the user of the main shell.
    """

    @property
    def user(self) -> str:
        """The user: ``name`` or ``uid``, with an optional ``:group``; "" is the main shell's."""
        ...

    @property
    def home(self) -> str:
        """``HOME`` of its commands; "" means that of the user's entry in ``/etc/passwd``."""
        ...


@runtime_checkable
class OpensShells(Protocol):
    """A live container to which the engine attaches shells as other users.

    Without it, commands run as other users if the main shell, root inside, can switch to them.
    """

    def open_shell(self, user: str) -> AttachedShell:
        """Attach another shell as another user: ``name`` or ``uid``, with an optional ``:group``.

        Raises:
            UserNotFoundError: the container does not have this user; or
                :meth:`explain_start_failure` says so.
        """
        ...


@runtime_checkable
class HasLayer(Protocol):
    """A live container that knows the host directory with its changes to the image's files.

    Needed only if the container's overlay mount, seen from the host, does not name that directory.
    """

    @property
    def layer(self) -> str:
        """The host directory with the changes."""
        ...


@runtime_checkable
class CopiesImage(Protocol):
    """A live container whose :attr:`HasLayer.layer` may be a copy of its image's files."""

    @property
    def copied_bytes(self) -> int:
        """The size of the image's files in the layer at its start, which is no change; 0 if there
        are none.
        """
        ...


@runtime_checkable
class Freezes(Protocol):
    """A live container whose files can become the start of others."""

    def freeze(self, *, running: bool, repositories: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Keep the container's files as they are now; return the layers that they consist of, the
        highest first. The last one is the tree of its image, even if another image has its name
        later. The driver removes the others when the owner has ended.

        An engine that keeps files itself copies them to an image, and returns its identifier, which
        begins with ``sha256:``. The container then always goes on.

        Args:
            running: whether the container goes on, so that its files are copied. Else core ends it
                after this, and starts it again over the layers.
            repositories: those of the snapshot, which an engine notes with its image.

        Raises:
            StorageError: the files cannot be kept.
        """
        ...


class Images(Protocol):
    """The images of an engine. An image exists if its reference matches exactly."""

    def exists(self, reference: str) -> bool:
        """Return whether an image with exactly this reference is on this machine."""
        ...

    def list(self) -> tuple[Image, ...]:
        """Return every image."""
        ...

    def remove(self, reference: str) -> None:
        """Remove a reference.

        Raises:
            ImageNotFoundError: the image is not on this machine.
            EngineError: a container or a snapshot uses it.
        """
        ...

    def load_rootfs(self, tar: Path, reference: str) -> str:
        """Make an image with one layer from the tar of a root file system; return its
        identifier.
        """
        ...

    def load(self, archive: Path) -> tuple[str, ...]:
        """Load a saved image archive; return its references.

        Raises:
            ImageError: it contains no image that this engine can use.
        """
        ...

    def save(self, reference: str, archive: Path) -> None:
        """Write an image that exists, with its reference, to a file that :meth:`load` reads."""
        ...

    def pull(self, reference: str, *, on_output: Callable[[str], None]) -> str:
        """Pull an image from its registry; return its identifier. Plain HTTP is allowed for
        loopback only.

        Raises:
            ImagePullError: it was not pulled; subclasses stand for an unknown image, a refused
                login and an unreachable registry
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

        Args:
            context: directory of the build context.
            reference: reference of the new image.
            containerfile: path of the Containerfile.
            build_args: build arguments by name.
            force: whether to ignore cached layers.
            on_output: called with each line of the build's output.

        Raises:
            ImageBuildError: a step failed; core adds the last lines of the step to the message.
        """
        ...


@runtime_checkable
class NamesPrograms(Protocol):
    """Images whose main program is known; needed for services."""

    def program_of(self, reference: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the entry point and the default command of an image that is on this machine."""
        ...


@runtime_checkable
class BuildsInContainers(Protocol):
    """Images of an engine without a builder, which run the steps of a build in its containers."""

    def use(self, start: Callable[..., Any], probe: Callable[[], EngineInfo]) -> None:
        """Set what builds need; called once, before the first build.

        Args:
            start: starts a container, as :meth:`hyperruntime.runtime.Runtime.container`.
            probe: returns the capabilities of the engine.
        """
        ...


@runtime_checkable
class DropsLayers(Protocol):
    """A driver that can remove what :class:`Freezes` kept before it is closed."""

    def drop(self, layers: tuple[str, ...]) -> bool:
        """Remove the highest layer, unless a container or another snapshot needs it, or this driver
        does not keep it; return whether it was removed.
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
        """Set the owner's directory for the driver's own files; starts nothing.

        Its path may be long or odd: put sockets into
        :func:`hyperruntime.host.owner.make_short_directory`.
        """
        ...

    def probe(self) -> EngineInfo:
        """Return what the engine can do here, tested with real containers (cached per boot and
        version).

        Returns the same object until a container fails to start and the driver tests again.

        Raises:
            EngineUnavailableError: the engine is missing or cannot run a container.
        """
        ...

    def diagnose(self) -> Sequence[Finding]:
        """Return the results of all checks, with the next steps; never raises."""
        ...

    def launch(self, launch: Launch) -> LiveContainer:
        """Start a container and return it with its shell attached, without waiting for the shell to
        answer.

        A field is honoured or refused, as :meth:`probe` declares it. What only the engine finds out
        (no such directory, no such user) is reported later by
        :meth:`LiveContainer.explain_start_failure`.

        Raises:
            UnsupportedOptionError: a field of the spec cannot be honoured.
            EngineUnavailableError: the engine cannot run.
        """
        ...

    def containers(self) -> tuple[ContainerRecord, ...]:
        """Return the containers of this library that the engine lists, of all owners."""
        ...

    def remove_container(self, container_id: str) -> None:
        """Kill and remove a container; no error if it is already gone."""
        ...

    def cleanup_args(self, label: str) -> tuple[str, ...]:
        """Return the argv that removes every container with a label; it runs after the owner's
        death.

        It exits with 0 when they are gone. With another exit code it is called again later; with
        126 or 127 it is not.
        """
        ...

    def close(self) -> None:
        """End everything that the driver started (services, sockets); never called in a forked
        child.
        """
        ...
