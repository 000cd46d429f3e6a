"""Drivers that break a promise each, made from the one that keeps them all; the conformance suite must notice."""

from __future__ import annotations

import os
import threading
from typing import Any

import attrs

from hyperruntime.driver import EngineInfo, Launch
from hyperruntime.errors import HyperRuntimeError, UnsupportedOptionError
from hyperruntime.host.process import DEVNULL, PIPE, HostProcess, kill_group, spawn
from hyperruntime.spec import ContainerSpec, Mount
from hyperruntime.testing import FakeDriver
from hyperruntime.testing.driver import FakeDriverImages, FakeLiveContainer, unshare_args, unshare_env

LATE_S = 10.0  # more than any driver may need on a quiet machine


class IgnoresMemoryLimit(FakeDriver):
    """Says that it limits memory, and drops the limit."""

    def probe(self) -> EngineInfo:
        info = super().probe()
        return attrs.evolve(info, limits={**info.limits, "memory_bytes": "cgroup"})


class IgnoresGpus(FakeDriver):
    """Says that it gives GPUs, and gives none."""

    def probe(self) -> EngineInfo:
        return attrs.evolve(super().probe(), gpus=True)

    def launch(self, launch: Launch) -> FakeLiveContainer:
        return super().launch(_changed(launch, gpus=None))


class IgnoresMounts(FakeDriver):
    """Makes every mount writable."""

    def launch(self, launch: Launch) -> FakeLiveContainer:
        mounts = tuple(attrs.evolve(mount, read_only=False) for mount in launch.spec.mounts)
        return super().launch(_changed(launch, mounts=mounts))


class HasNetwork(FakeDriver):
    """Gives the host's network to whoever asks for none."""

    def launch(self, launch: Launch) -> FakeLiveContainer:
        asked = launch.spec.network
        return super().launch(_changed(launch, network="host" if asked == "none" else asked))


class HandsOnEnvironment(FakeDriver):
    """Lets the host's environment in."""

    def launch(self, launch: Launch) -> FakeLiveContainer:
        return super().launch(_changed(launch, env={**os.environ, **launch.spec.env}))


class ShowsTemporaryFiles(FakeDriver):
    """Mounts the host's /tmp unasked."""

    def launch(self, launch: Launch) -> FakeLiveContainer:
        everything = Mount(source="/tmp", target="/tmp", read_only=False)
        return super().launch(_changed(launch, mounts=(everything, *launch.spec.mounts)))


class IgnoresWorkdir(FakeDriver):
    """Starts every container in its root directory."""

    def launch(self, launch: Launch) -> FakeLiveContainer:
        return super().launch(_changed(launch, workdir=None))


class ForgetsLabels(FakeDriver):
    """Keeps the owner's labels and drops the user's."""

    def launch(self, launch: Launch) -> FakeLiveContainer:
        kept = {name: value for name, value in launch.labels.items() if name != "mine"}
        return super().launch(attrs.evolve(launch, labels=kept))


class LeaksContainers(FakeDriver):
    """Starts a second container with each, and forgets it."""

    leaked: list[HostProcess]

    def launch(self, launch: Launch) -> FakeLiveContainer:
        live = super().launch(launch)
        twin = attrs.evolve(launch, name=f"{launch.name}-twin")
        leaked = spawn(unshare_args(twin, 0.0), stdin=PIPE, stdout=PIPE, cwd="/", env=unshare_env(twin))
        assert leaked.stdin is not None
        assert leaked.stdout is not None
        os.write(leaked.stdin.fileno(), b"echo up\n")
        os.read(leaked.stdout.fileno(), 3)  # it is there, with all its files open
        self.leaked = [*getattr(self, "leaked", ()), leaked]
        return live


class LeavesOrphans(FakeDriver):
    """Lets another program inherit what tells a container that its owner lives, and cleans nothing up."""

    leaked: list[HostProcess]

    def launch(self, launch: Launch) -> FakeLiveContainer:
        live = super().launch(launch)
        orphan = spawn(["sleep", "600"], stdin=DEVNULL, stdout=live.shell.input, stderr=DEVNULL)
        self.leaked = [*getattr(self, "leaked", ()), orphan]
        return live

    def cleanup_args(self, label: str) -> tuple[str, ...]:
        return ("true",)


class RemovesLate(LeaksContainers):
    """Starts a second container with each, and ends it seconds later."""

    def launch(self, launch: Launch) -> FakeLiveContainer:
        live = super().launch(launch)
        threading.Timer(LATE_S, kill_group, [self.leaked[-1]]).start()
        return live


class NeverPrunes(FakeDriver):
    """Removes nothing that it did not start itself."""

    def remove_container(self, container_id: str) -> None:
        pass


class ClaimsBridge(FakeDriver):
    """Declares a network that it refuses."""

    def probe(self) -> EngineInfo:
        return attrs.evolve(super().probe(), networks=("none", "host", "bridge"))

    def refuse(self, spec: ContainerSpec) -> None:
        if spec.network == "bridge":
            raise UnsupportedOptionError(self.name, "network", "there is no bridge")
        super().refuse(spec)


class DeniesHost(FakeDriver):
    """Declares that it refuses a network, and gives none instead."""

    def probe(self) -> EngineInfo:
        return attrs.evolve(super().probe(), networks=("none",))

    def launch(self, launch: Launch) -> FakeLiveContainer:
        return super().launch(_changed(launch, network="none"))


class NamesWrongField(FakeDriver):
    """Refuses a network by another field's name."""

    def refuse(self, spec: ContainerSpec) -> None:
        if spec.network == "bridge":
            raise UnsupportedOptionError(self.name, "image", "there is no bridge")
        super().refuse(spec)


class RefusesByAnyError(FakeDriver):
    """Refuses what it declares to refuse, by an error that names no field."""

    def refuse(self, spec: ContainerSpec) -> None:
        if spec.network == "bridge":
            raise HyperRuntimeError("something went wrong")
        super().refuse(spec)


class PrefixImages(FakeDriverImages):
    """Finds images by the beginning of their names."""

    def exists(self, reference: str) -> bool:
        return any(name.startswith(reference) for image in self.list() for name in image.references)


class FindsImagesByPrefix(FakeDriver):
    """Takes a part of a reference for the whole."""

    @property
    def images(self) -> FakeDriverImages:
        return PrefixImages()


def _changed(launch: Launch, **fields: Any) -> Launch:
    return attrs.evolve(launch, spec=attrs.evolve(launch.spec, **fields))
