"""Each user whose Podman must use vfs is told what it costs; root too, whose containers stay in
root's one store.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from hyperruntime.host.process import run_process

pytestmark = pytest.mark.engine

IMAGE = "localhost/tiny:latest"


@pytest.fixture
def place() -> Iterator[Path]:
    """The directory of everything that this test makes; the paths are short, as slirp4netns needs
    it.
    """
    directory = Path(tempfile.mkdtemp(prefix="hr-"))
    (directory / "run").mkdir(mode=0o700)
    yield directory
    # Not with the store's own configuration: Podman would make the store again.
    as_owner = [] if os.geteuid() == 0 else ["podman", "unshare"]
    subprocess.run(
        [*as_owner, "rm", "-rf", str(directory / "data"), str(directory / "run")], check=True
    )
    shutil.rmtree(directory)


@pytest.fixture
def config(place: Path) -> Path:
    """The file that chooses vfs."""
    path = place / "config" / "containers" / "storage.conf"
    path.parent.mkdir(parents=True)
    path.write_text(
        '[storage]\ndriver = "vfs"\n'
        f'graphroot = "{place}/data/containers/storage"\nrunroot = "{place}/run/containers"\n'
    )
    return path


@pytest.fixture
def env(place: Path, config: Path) -> Iterator[dict[str, str]]:
    """The environment of a user whose store has the driver vfs, with one image of busybox."""
    places = {
        "DATA_HOME": "data",
        "CACHE_HOME": "cache",
        "CONFIG_HOME": "config",
        "RUNTIME_DIR": "run",
    }
    env = {**os.environ, **{f"XDG_{name}": str(place / path) for name, path in places.items()}}
    # an ordinary user's Podman does not take the place of the store from the named file
    if os.geteuid() == 0:
        env["CONTAINERS_STORAGE_CONF"] = str(config)
    root = (
        run_process(["podman", "info", "--format", "{{.Store.GraphRoot}}"], env=env)
        .stdout.decode()
        .strip()
    )
    assert root == f"{place}/data/containers/storage"
    (place / "rootfs" / "bin").mkdir(parents=True)
    shutil.copy(shutil.which("busybox") or "/bin/busybox", place / "rootfs" / "bin" / "busybox")
    for name in ("sh", "cat", "mkdir", "mount"):
        (place / "rootfs" / "bin" / name).symlink_to("busybox")
    subprocess.run(
        ["tar", "-C", str(place / "rootfs"), "-cf", f"{place}/image.tar", "."], check=True
    )
    subprocess.run(
        ["podman", "import", "--quiet", f"{place}/image.tar", IMAGE], env=env, check=True
    )
    yield env
    if os.geteuid() != 0:
        end_pause_process(env)


def end_pause_process(env: dict[str, str]) -> None:
    """End the process that holds the namespaces of this Podman."""
    (file,) = Path(env["XDG_RUNTIME_DIR"]).rglob("pause.pid")
    process = psutil.Process(int(file.read_text()))
    process.kill()
    psutil.wait_procs([process], timeout=10)


def test_a_run_on_vfs_says_in_one_line_what_it_costs_and_doctor_says_the_same(
    env: dict[str, str], config: Path
) -> None:
    hyperrun = [sys.executable, "-m", "hyperruntime.cli"]
    args = [
        *hyperrun,
        "--runtime",
        "podman",
        "--log-json",
        "exec",
        "--image",
        IMAGE,
        "--",
        "echo",
        "works",
    ]
    done = run_process(args, env=env, timeout_s=300, cwd="/")
    assert (done.exit_code, done.stdout) == (0, b"works\n"), done.stderr.decode()
    (line,) = [json.loads(text) for text in done.stderr.decode().splitlines() if "vfs" in text]
    why, step = f"{config} chooses vfs", f"sed -i '/^ *driver *=/s/vfs/overlay/' {config}"
    if os.geteuid() == 0:
        why, step = "root has one store", "podman system reset --force"
    assert "copies its whole image" in line["cost"]
    assert line["why"] == why
    assert step in line["next_step"]
    shown = run_process(
        [*hyperrun, "doctor", "podman"], env=env, timeout_s=300, cwd="/"
    ).stdout.decode()
    assert line["cost"] in shown
    assert line["next_step"] in shown
