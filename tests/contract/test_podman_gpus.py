"""Podman resolves device names itself if it can."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import hyperruntime as hr
from hyperruntime.errors import DeviceNotFoundError
from hyperruntime.host.process import run_process
from tests.contract.fake_gpus import Describe, devices_in, fake_spec

pytestmark = pytest.mark.engine

STANDARD = Path("/var/run/cdi")


@pytest.fixture
def kind(describe: Describe, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The kind of the described GPUs; for root, their spec is in a standard directory, which Podman
    reads too.
    """
    name = f"hyperruntime-test-{uuid.uuid4().hex[:8]}"
    kind = f"{name}.example/gpu"
    library = describe(kind)
    if os.geteuid() != 0:
        yield kind
        return
    monkeypatch.delenv("HYPERRUNTIME_CDI_DIRS")
    made = not STANDARD.exists()
    STANDARD.mkdir(exist_ok=True)
    path = STANDARD / f"{name}.json"
    hook = {"hookName": "createRuntime", "path": "/bin/true", "args": ["true"]}
    path.write_text(json.dumps(fake_spec(kind, library, hooks=[hook])))
    try:
        yield kind
    finally:
        path.unlink()
        if made:
            STANDARD.rmdir()


def test_podman_resolves_device_names_itself_if_it_can(
    runtime: hr.Runtime, base_image: str, kind: str
) -> None:
    with runtime.container(hr.ContainerSpec(image=base_image, gpus=f"{kind}=1")) as container:
        asked = run_process(
            ["podman", "inspect", "--format", "{{json .Config.CreateCommand}}", container.name]
        )
        assert (f"{kind}=1" in json.loads(asked.stdout)) is (os.geteuid() == 0)
        assert devices_in(container) == ["fakegpu1"]
        assert container.exec(["sh", "-c", "echo $FAKE_GPUS"]).stdout == b"yes\n"
    with pytest.raises(DeviceNotFoundError, match=f"did you mean '{kind}=[01]'"):
        runtime.container(hr.ContainerSpec(image=base_image, gpus=f"{kind}=2"))
