"""Apptainer as sites install it: under another name, of another version, without user namespaces.

The programs of ``tests/sites`` stand in for what no package of Debian has; each names the
documentation that it follows, and runs the real Apptainer.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hyperruntime as hr
from hyperruntime_apptainer import ApptainerDriver
from hyperruntime_apptainer.program import PROGRAMS

pytestmark = pytest.mark.engine
SITES = Path(__file__).parents[1] / "sites"
Install = Callable[[str, str], Path]


@pytest.fixture(scope="module")
def image() -> str:
    with hr.open_runtime("apptainer") as runtime:
        return runtime.images.ensure("base")


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return a function that puts a stand-in on PATH under a name, in place of the real program."""
    real = Path(shutil.which("apptainer") or "apptainer").resolve()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def put(script: str, name: str) -> Path:
        folder = tmp_path / "bin"
        folder.mkdir()
        for directory in filter(os.path.isdir, os.environ["PATH"].split(":")):
            for program in Path(directory).iterdir():
                if program.name not in PROGRAMS and not os.path.lexists(folder / program.name):
                    (folder / program.name).symlink_to(program)
        (folder / "engine").symlink_to(real)
        shutil.copy(SITES / script, folder / name)
        monkeypatch.setenv("PATH", str(folder))
        return folder

    return put


def test_singularity_is_used_where_there_is_no_apptainer(install: Install, image: str) -> None:
    folder = install("singularity", "singularity")
    found = {one.subject: one for one in ApptainerDriver().diagnose()}
    assert found["singularity"].detail == str(folder / "singularity")
    assert "singularity 4.3.3" in found["running a container"].detail
    with (
        hr.open_runtime("apptainer") as runtime,
        runtime.container(hr.ContainerSpec(image=image)) as container,
    ):
        assert runtime.info.version == "4.3.3"
        assert container.exec(["sh", "-c", "echo >/new && cat /etc/debian_version"]).exit_code == 0


def test_apptainer_is_preferred_to_singularity(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = install("singularity", "singularity")
    (folder / "apptainer").symlink_to("engine")
    assert next(iter(ApptainerDriver().diagnose())).detail == str(folder / "apptainer")


@pytest.mark.parametrize("hooks", [False, True])
def test_devices_go_to_an_apptainer_that_knows_cdi_unless_their_spec_has_hooks(
    install: Install,
    image: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    hooks: bool,
) -> None:
    """Its ``--device`` runs no hooks, and NVIDIA's specs need theirs."""
    folder = install("apptainer-1.5", "apptainer")
    spec: dict[str, Any] = {
        "cdiVersion": "0.5.0",
        "kind": "amd.com/gpu",
        "containerEdits": {
            "env": ["FAKE_DRIVER=yes"],
            "mounts": [
                {"hostPath": str(tmp_path), "containerPath": "/opt/rocm", "options": ["ro"]}
            ],
        },
        "devices": [
            {"name": str(number), "containerEdits": {"deviceNodes": [{"path": path}]}}
            for number, path in enumerate(("/dev/zero", "/dev/full"))
        ],
    }
    if hooks:
        args = ["nvidia-cdi-hook", "update-ldcache", "--folder", "/opt/rocm"]
        hook = {"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook", "args": args}
        spec["containerEdits"]["hooks"] = [hook]
    (directory := tmp_path / "cdi").mkdir()
    (directory / "amd.json").write_text(json.dumps(spec))
    monkeypatch.setenv("HYPERRUNTIME_CDI_DIRS", str(directory))
    with (
        hr.open_runtime("apptainer") as runtime,
        runtime.container(hr.ContainerSpec(image=image, gpus="all")) as container,
    ):
        seen = container.exec(["sh", "-c", 'echo "$FAKE_DRIVER"; ls /opt/rocm'])
    assert seen.stdout.decode().split()[:1] == ["yes"]
    assert b"cdi" in seen.stdout
    asked = (folder / "devices").read_text().splitlines()
    assert asked == [
        "hyperruntime.test/trial=one",
        *([] if hooks else ["amd.com/gpu=0 amd.com/gpu=1"]),
    ]
