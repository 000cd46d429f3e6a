"""GPUs in real containers, described by CDI specs of devices that every machine has."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import attrs
import pytest

import hyperruntime as hr
from hyperruntime.driver import Driver, Launch
from hyperruntime.errors import (
    DeviceBusyError,
    DeviceError,
    DeviceNotVisibleError,
    UnsupportedOptionError,
)
from hyperruntime.gpu import grant as gpus_module
from hyperruntime.registry import load_driver
from hyperruntime.runtime import Runtime
from tests.contract.fake_gpus import LIBRARY, Describe, devices_in
from tests.doubles.nvidia_smi import install_smi, listing

pytestmark = pytest.mark.engine


@pytest.fixture(autouse=True)
def gives_gpus(runtime: hr.Runtime, base_image: str) -> None:
    """Skip the tests on an engine without GPUs, after a check that it refuses each request by
    name.
    """
    if runtime.info.gpus:
        return
    for gpus in ("all", "0", "nvidia.com/gpu=0"):
        with pytest.raises(UnsupportedOptionError, match="gpus"):
            runtime.container(hr.ContainerSpec(image=base_image, gpus=gpus))
    pytest.skip("this engine does not support GPUs here; it declares this and refuses them by name")


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install an ``nvidia-smi`` that reports two GPUs; the first is busier."""
    install_smi(monkeypatch, tmp_path, listing(500, 100))
    monkeypatch.setattr(gpus_module, "LOCK_ROOT", tmp_path)


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        ("0", ["fakegpu0"]),
        (("nvidia.com/gpu=1",), ["fakegpu1"]),
        (("0", "1"), ["fakegpu0", "fakegpu1"]),
        ("all", ["fakegpu0", "fakegpu1"]),
        (None, []),
    ],
)
def test_a_container_has_exactly_the_requested_gpus(
    runtime: hr.Runtime, base_image: str, describe: Describe, gpus: Any, expected: list[str]
) -> None:
    describe()
    with runtime.container(hr.ContainerSpec(image=base_image, gpus=gpus)) as container:
        assert devices_in(container) == expected


def test_files_and_variables_of_a_cdi_spec_reach_every_command(
    runtime: hr.Runtime, base_image: str, describe: Describe
) -> None:
    library = describe("example.com/gpu")
    spec = hr.ContainerSpec(image=base_image, gpus=("example.com/gpu=0",), env={"MINE": "1"})
    script = (
        f'echo "$FAKE_DRIVER $FAKE_GPUS $MINE"; cat {LIBRARY}; echo x >/dev/fakegpu0 && echo '
        "written"
    )
    with runtime.container(spec) as container:
        for user in (None, "1234") if runtime.info.users else (None,):
            result = container.exec(["sh", "-c", script], user=user).check()
            assert result.stdout.decode() == f"a b=c yes 1\n{library.read_text()}written\n"
        assert container.exec(["sh", "-c", f"echo x >{LIBRARY}"]).exit_code != 0, (
            "the driver library must be read-only"
        )
        changed = container.exec(["sh", "-c", 'echo "$FAKE_GPUS"'], env={"FAKE_GPUS": "no"})
        assert changed.stdout == b"no\n"


@pytest.mark.usefixtures("smi")
def test_auto_takes_the_least_used_gpu_and_releases_it(
    runtime: hr.Runtime, base_image: str, describe: Describe
) -> None:
    describe()
    spec = hr.ContainerSpec(image=base_image, gpus="auto:1")
    with runtime.container(spec) as first, runtime.container(spec) as second:
        assert devices_in(first) == ["fakegpu1"]
        assert devices_in(second) == ["fakegpu0"]
        with pytest.raises(DeviceBusyError, match="wait until one closes"):
            runtime.container(spec)
        first.close()
        with runtime.container(spec) as third:
            assert devices_in(third) == ["fakegpu1"]


@pytest.mark.usefixtures("smi")
def test_a_container_that_does_not_start_releases_its_gpus(
    runtime: hr.Runtime, base_image: str, describe: Describe
) -> None:
    describe(host_path="/dev/there-is-no-such-device")
    for _ in range(3):
        with pytest.raises(DeviceError, match="there-is-no-such-device"):
            runtime.container(hr.ContainerSpec(image=base_image, gpus="auto:2"))
    describe()
    with runtime.container(hr.ContainerSpec(image=base_image, gpus="auto:2")) as container:
        assert len(devices_in(container)) == 2


class Forgetful:
    """A driver that accepts a request for GPUs and ignores it, like ``podman run --gpus`` of
    4.3.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def __getattr__(self, name: str) -> Any:
        return getattr(self._driver, name)

    def launch(self, launch: Launch) -> Any:
        return self._driver.launch(attrs.evolve(launch, spec=attrs.evolve(launch.spec, gpus=None)))


@pytest.mark.parametrize(("gpus", "described"), [("0", True), ("all", False)])
def test_a_requested_gpu_that_is_missing_is_an_error_on_every_engine(
    runtime_name: str, base_image: str, describe: Describe, gpus: str, described: bool
) -> None:
    if described:
        describe()
    with Runtime(cast(Driver, Forgetful(load_driver(runtime_name)))) as forgetful:
        with pytest.raises(
            DeviceNotVisibleError, match=r"/dev/.*is missing.*doctor --gpu"
        ) as caught:
            forgetful.container(hr.ContainerSpec(image=base_image, gpus=gpus))
        assert caught.value.missing == (("/dev/fakegpu0",) if described else ("/dev/nvidia*",))
        mine = forgetful._owner.identity.token
        assert [found for found in forgetful.containers() if found.owner.token == mine] == []


def test_hooks_that_the_engine_does_not_run_are_refused(
    runtime: hr.Runtime, base_image: str, describe: Describe
) -> None:
    describe(
        hooks=[
            {"hookName": "createContainer", "path": "/bin/true", "args": ["site-setup", "--all"]}
        ]
    )
    with pytest.raises(UnsupportedOptionError, match="site-setup --all"):
        runtime.container(hr.ContainerSpec(image=base_image, gpus="0"))
