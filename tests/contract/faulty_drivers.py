"""Variants of the fake driver that each break one promise; the conformance suite must detect
each.
"""

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
from hyperruntime.testing.driver import (
    FakeDriverImages,
    FakeLiveContainer,
    unshare_args,
    unshare_env,
)

LATE_S = 10.0  # more than any driver may need on a quiet machine


class IgnoresMemoryLimit(FakeDriver):
    """Declares that it limits memory, but ignores the limit."""

    def probe(self) -> EngineInfo:
        info = super().probe()
        return attrs.evolve(info, limits={**info.limits, "memory_bytes": "cgroup"})


class IgnoresGpus(FakeDriver):
    """Declares that it supports GPUs, but adds none."""

    def probe(self) -> EngineInfo:
        return attrs.evolve(super().probe(), gpus=True)

    def launch(self, launch: Launch) -> FakeLiveContainer:
        return super().launch(_changed(launch, gpus=None))


class ClaimsModesAndFilter(FakeDriver):
    """Declares that modes count for root and that commands are filtered, but does neither."""

    def probe(self) -> EngineInfo:
        return attrs.evolve(super().probe(), ignores_modes=False, unfiltered="")


class IgnoresMounts(FakeDriver):
    """Makes every mount writable."""

    def launch(self, launch: Launch) -> FakeLiveContainer:
        mounts = tuple(attrs.evolve(mount, read_only=False) for mount in launch.spec.mounts)
        return super().launch(_changed(launch, mounts=mounts))


class HidesTerminals(FakeDriver):
    """Covers the containers' terminals by an empty directory."""

    def launch(self, launch: Launch) -> FakeLiveContainer:
        empty = os.path.join(launch.private_dir, "empty")
        os.makedirs(empty)
        cover = Mount(source=empty, target="/dev/pts")
        return super().launch(_changed(launch, mounts=(*launch.spec.mounts, cover)))


class DeniesTerminals(FakeDriver):
    """Declares that its containers have no terminals, but they have."""

    def probe(self) -> EngineInfo:
        info = super().probe()
        return attrs.evolve(info, refuses=info.refuses | {"terminal"})


class HasNetwork(FakeDriver):
    """Gives the host's network to containers that request no network."""

    def launch(self, launch: Launch) -> FakeLiveContainer:
        asked = launch.spec.network
        return super().launch(_changed(launch, network="host" if asked == "none" else asked))


class LeaksHostEnvironment(FakeDriver):
    """Passes the host's environment to containers."""

    def launch(self, launch: Launch) -> FakeLiveContainer:
        return super().launch(_changed(launch, env={**os.environ, **launch.spec.env}))


class ShowsTemporaryFiles(FakeDriver):
    """Mounts the host's /tmp although the spec does not request it."""

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
    """Starts a second container with each container, and never removes it."""

    leaked: list[HostProcess]

    def launch(self, launch: Launch) -> FakeLiveContainer:
        live = super().launch(launch)
        twin = attrs.evolve(launch, name=f"{launch.name}-twin")
        leaked = spawn(
            unshare_args(twin, 0.0), stdin=PIPE, stdout=PIPE, cwd="/", env=unshare_env(twin)
        )
        assert leaked.stdin is not None
        assert leaked.stdout is not None
        os.write(leaked.stdin.fileno(), b"echo up\n")
        os.read(leaked.stdout.fileno(), 3)  # the second container runs and has opened all its files
        self.leaked = [*getattr(self, "leaked", ()), leaked]
        return live


class LeavesRecords(FakeDriver):
    """Lists a container for two minutes after its owner's death, although the guard has ended its
    processes.
    """

    leaked: list[HostProcess]

    def launch(self, launch: Launch) -> FakeLiveContainer:
        live = super().launch(launch)
        args = unshare_args(launch, 0.0)
        record = args[args.index("hyperruntime-fake") :][:5]
        stays = spawn(
            ["unshare", "--fork", "sh", "-c", "sleep 120; exit", *record],
            stdin=DEVNULL,
            stdout=DEVNULL,
        )
        self.leaked = [*getattr(self, "leaked", ()), stays]
        return live

    def cleanup_args(self, label: str) -> tuple[str, ...]:
        return ("true",)


class RemovesLate(LeaksContainers):
    """Starts a second container with each container, and ends it seconds later."""

    def launch(self, launch: Launch) -> FakeLiveContainer:
        live = super().launch(launch)
        threading.Timer(LATE_S, kill_group, [self.leaked[-1]]).start()
        return live


class NeverPrunes(FakeDriver):
    """Does nothing when it must remove a container by its id."""

    def remove_container(self, container_id: str) -> None:
        pass


class ClaimsBridge(FakeDriver):
    """Declares that it supports a network, but refuses it."""

    def probe(self) -> EngineInfo:
        return attrs.evolve(super().probe(), networks=("none", "host", "bridge"))

    def refuse(self, spec: ContainerSpec) -> None:
        if spec.network == "bridge":
            raise UnsupportedOptionError(self.name, "network", "there is no bridge")
        super().refuse(spec)


class DeniesHost(FakeDriver):
    """Declares that it refuses a network, but starts a container without a network instead."""

    def probe(self) -> EngineInfo:
        return attrs.evolve(super().probe(), networks=("none",))

    def launch(self, launch: Launch) -> FakeLiveContainer:
        return super().launch(_changed(launch, network="none"))


class NamesWrongField(FakeDriver):
    """Refuses a network, but names another field."""

    def refuse(self, spec: ContainerSpec) -> None:
        if spec.network == "bridge":
            raise UnsupportedOptionError(self.name, "image", "there is no bridge")
        super().refuse(spec)


class RefusesWithOtherError(FakeDriver):
    """Refuses a network as declared, but with an error that names no field."""

    def refuse(self, spec: ContainerSpec) -> None:
        if spec.network == "bridge":
            raise HyperRuntimeError("something went wrong")
        super().refuse(spec)


class PrefixImages(FakeDriverImages):
    """Finds images by the start of their references."""

    def exists(self, reference: str) -> bool:
        return any(name.startswith(reference) for image in self.list() for name in image.references)


class FindsImagesByPrefix(FakeDriver):
    """Accepts the start of a reference as the reference."""

    @property
    def images(self) -> FakeDriverImages:
        return PrefixImages()


def _changed(launch: Launch, **fields: Any) -> Launch:
    return attrs.evolve(launch, spec=attrs.evolve(launch.spec, **fields))
