"""An image that asks for variables of the caller gets none of them, on every engine.

The configuration of an image may have entries without a value. Podman before 5.8.4 takes their
values from its own environment, as podman-run(1) describes it for ``--env``: also those of a name
that ends with ``*`` (CVE-2026-57231).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

import hyperruntime as hr
from hyperruntime.errors import ImageError
from tests.contract.test_image_users import program
from tests.doubles.layers import Entry, docker_archive, entry, layer

pytestmark = pytest.mark.engine

NAME = "localhost/hyperruntime-test/variables:latest"
BUILT = "localhost/hyperruntime-test/variables-built:latest"
ASKED = ["PATH=/bin", "KNOWN=1", "HR_TEST_KEY", "HR_TEST_*", "HTTPS_PROXY", "AWS_*", "*"]
APPLETS = "cat env id ls mkdir mv rm sh sleep".split()
SHOW = "env; cat /proc/[0-9]*/environ 2>/dev/null; cat /built 2>/dev/null; :"


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> str:
    """A value that some variables of this process hold."""
    value = secrets.token_hex(8)
    for name in ("HR_TEST_KEY", "HR_TEST_OTHER", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HTTPS_PROXY", f"http://user:{value}@127.0.0.1:9")
    return value


@pytest.fixture
def opened(
    runtime_name: str, secret: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[hr.Runtime]:
    """A runtime with the image."""
    monkeypatch.setenv("HYPERRUNTIME_IMAGES", str(tmp_path / "store"))
    files: list[Entry | str] = [
        "etc/",
        "tmp/",
        program("/bin/busybox", "bin/busybox"),
        *(entry(f"bin/{name}", "symlink", "busybox") for name in APPLETS),
        entry("etc/passwd", text="root:x:0:0::/root:/bin/sh\n"),
    ]
    path = docker_archive(tmp_path / "image.tar", layer(files), name=NAME, Env=ASKED)
    with hr.open_runtime(runtime_name) as runtime:
        runtime.images.load(path)
        yield runtime
    with hr.open_runtime(runtime_name) as runtime:  # the other one has ended its containers
        for name in (BUILT, NAME):
            if runtime.images.exists(name):
                runtime.images.remove(name)


def shown(runtime: hr.Runtime, image: str) -> str:
    """Return the variables of a container, and of a fork; the message if the image is refused."""
    try:
        with runtime.container(hr.ContainerSpec(image=image, limits=hr.Limits(pids=None))) as one:
            found = one.exec(["sh", "-c", SHOW]).stdout
            if image == NAME and runtime.info.snapshots:
                with one.fork() as fork:
                    found += fork.exec(["sh", "-c", SHOW]).stdout
    except ImageError as error:  # Podman 5.8.4 and newer
        return str(error)
    assert b"KNOWN=1" in found
    return found.decode(errors="replace")


def test_a_container_and_what_is_made_of_it_have_no_variable_of_the_caller(
    opened: hr.Runtime, secret: str
) -> None:
    assert secret not in shown(opened, NAME)


def test_a_build_from_such_an_image_has_no_variable_of_the_caller(
    opened: hr.Runtime, secret: str, tmp_path: Path
) -> None:
    (tmp_path / "context").mkdir()
    recipe = tmp_path / "Containerfile"
    recipe.write_text(f"FROM {NAME}\nRUN env >/built; cat /proc/self/environ >>/built\n")
    opened.images.build(BUILT, containerfile=recipe, context=tmp_path / "context")
    # a build has the proxies, by design
    assert f"={secret}" not in shown(opened, BUILT)
