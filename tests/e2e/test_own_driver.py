"""The driver of docs/writing-a-driver.md passes selfcheck."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import hyperruntime as hr
from hyperruntime.host.process import ProcessResult, run_process

Install = Callable[[str], dict[str, str]]
pytestmark = pytest.mark.engine
LOAD = """
import sys; from pathlib import Path; from hyperruntime_runc import RuncImages
if sys.argv[2:] and not RuncImages().exists(sys.argv[1]): RuncImages().load_rootfs(Path(sys.argv[2]), sys.argv[1])
sys.exit(not RuncImages().exists(sys.argv[1]))
"""


def python(env: dict[str, str], *args: str) -> ProcessResult:
    return run_process([sys.executable, *args], env=env, cwd="/", timeout_s=1200)


def has_base_image(runtime: hr.Runtime, image: str, env: dict[str, str], place: Path) -> None:
    """Give runc the base image of the engine under test, which saves the time to make it from
    Debian packages.
    """
    if python(env, "-c", LOAD, image).exit_code == 0:
        return
    with (
        open(place / "root.tar", "wb") as file,
        runtime.container(hr.ContainerSpec(image=image)) as container,
    ):
        tar = [
            "tar",
            "-C",
            "/",
            "--one-file-system",
            "--exclude=./run/*",
            "--exclude=./tmp/*",
            "-cf",
            "-",
            ".",
        ]
        container.exec(
            tar, on_output=lambda stream, chunk: file.writelines([chunk] * (stream == "stdout"))
        )
    assert python(env, "-c", LOAD, image, str(place / "root.tar")).exit_code == 0


@pytest.mark.slow
def test_the_driver_over_runc_passes_selfcheck(
    runtime: hr.Runtime, base_image: str, install_plugin: Install, tmp_path: Path
) -> None:
    env = install_plugin("runc")
    has_base_image(runtime, base_image, env, tmp_path)
    done = python(env, "-m", "hyperruntime.cli", "selfcheck", "runc", "--json")
    report = json.loads(done.stdout)
    assert [
        (row["name"], row["detail"]) for row in report["checks"] if row["outcome"] == "fail"
    ] == []
    assert report["counts"]["pass"] > 70
    listed = python(env, "-m", "hyperruntime.cli", "--runtime", "runc", "ps", "--json")
    assert json.loads(listed.stdout) == []
