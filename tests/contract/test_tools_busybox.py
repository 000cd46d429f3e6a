"""The tools in an image with busybox only, whose programs have fewer options than GNU's."""

from __future__ import annotations

import base64
import io
import shutil
import tarfile
from collections.abc import Iterator

import pytest

import hyperruntime as hr
from hyperruntime.errors import UnsupportedOptionError
from hyperruntime.host.process import run_process
from hyperruntime.pool.tools import artifact
from tests.conftest import PREFIX
from tests.contract.toolplace import Desk, make_desk

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def image(runtime: hr.Runtime, base_image: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image of a static busybox with all its applets."""
    reference = f"{PREFIX}busybox-all:latest"
    if runtime.images.exists(reference):
        return reference
    root = tmp_path_factory.mktemp("busybox")
    (root / "bin").mkdir()
    (root / "tmp").mkdir()
    shutil.copy(shutil.which("busybox") or "/bin/busybox", root / "bin/busybox")
    for applet in run_process(["busybox", "--list"]).stdout.decode().split():
        if applet != "busybox":
            (root / "bin" / applet).symlink_to("busybox")
    tar = root.parent / "busybox-all.tar"
    run_process(["tar", "-C", str(root), "-cf", str(tar), "."])
    try:
        runtime.images._images.load_rootfs(tar, reference)
    except UnsupportedOptionError:
        return base_image  # an engine with one image
    return reference


@pytest.fixture(scope="module")
def desk(runtime: hr.Runtime, image: str) -> Iterator[Desk]:
    with runtime.container(hr.ContainerSpec(image=image)) as container:
        yield make_desk(container)


def test_files(desk: Desk) -> None:
    name = "d 'x\n$(id)/-f;"

    assert desk("write_file", path=name, content="a\nb\n").error == ""
    assert desk("edit_file", path=name, old="b", new="c").error == ""
    assert desk("read_file", path=name).output == "a\nc\n"
    assert desk.sh('stat -c %s "$(printf "d \'x\\n\\$(id)/-f;")"') == "4\n"


def test_containment(desk: Desk) -> None:
    desk.sh("ln -s / root; ln -s ../../.. up; echo in > f; ln -s f ok; mkfifo p")

    assert desk("read_file", path="ok").output == "in\n"
    for path in ("root/etc", "up/bin/busybox", "../x", "/bin/busybox"):
        assert "outside the workspace" in desk("read_file", path=path).error
        assert "outside the workspace" in desk("write_file", path=path, content="x").error
    assert "give a regular file" in desk("read_file", path="p").error


def test_listing(runtime: hr.Runtime, image: str) -> None:
    with runtime.container(hr.ContainerSpec(image=image)) as container:
        desk = make_desk(container)
        desk.sh(
            "mkdir -p d .h; echo 12 > d/f; printf x > \"$(printf 'n\\nl')\"; touch .h/x; ln -s "
            "d l; mkfifo p"
        )

        assert desk("list_files", recursive=True).output == "d/\nd/f\t3\nl\tlink\nn\\nl\t1\np\tpipe"
        everything = desk("list_files", recursive=True, hidden=True).metadata["entries"]
        assert [entry["path"] for entry in everything] == [
            ".h",
            ".h/x",
            "d",
            "d/f",
            "l",
            "n\nl",
            "p",
        ]


def test_search(runtime: hr.Runtime, image: str) -> None:
    with runtime.container(hr.ContainerSpec(image=image)) as container:
        desk = make_desk(container)
        desk.sh(
            "mkdir -p d .h; printf 'zero\\none 1\\ntwo\\n' > d/f.py; cp d/f.py \"$(printf "
            "'n\\nl')\"; cp d/f.py .h/x"
        )

        assert desk("search", pattern=r"one \d").output == "d/f.py:2:one 1\nn\\nl:2:one 1"
        assert desk("search", pattern="ONE", ignore_case=True, glob="*.py", context=1).output == (
            "d/f.py-1-zero\nd/f.py:2:one 1\nd/f.py-3-two"
        )
        assert desk("search", pattern="one", glob="{*.txt,*.py}").output == "d/f.py:2:one 1"
        assert desk("search", pattern="e 1", literal=True, path="d/f.py").output == "d/f.py:2:one 1"
        assert desk("search", pattern="one", hidden=True, path=".h").output == ".h/x:2:one 1"
        assert "invalid pattern" in desk("search", pattern="(").error


def test_archive(desk: Desk) -> None:
    desk.sh("mkdir -p out; echo one > out/a")

    found = artifact(desk("archive_artifacts", path="out"))

    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(found["content"]))) as tar:
        assert tar.getnames() == ["a"]
