"""Images: exact references, builds that say where they failed, and nothing done twice."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import hyperruntime as hr
from hyperruntime.errors import ImageBuildError, ImageNotFoundError, SpecError

pytestmark = pytest.mark.engine

REFERENCE = "localhost/hyperruntime-test/built:one"


@pytest.fixture
def recipe(odd_path: Path, base_image: str) -> Path:
    (odd_path / "hello").write_text("from the context\n")
    path = odd_path / "Containerfile"
    path.write_text(f"FROM {base_image}\nARG WORD=none\nCOPY hello /hello\nRUN echo $WORD > /word\n")
    return path


def test_a_containerfile_is_built_once_and_again_only_by_force(runtime: hr.Runtime, recipe: Path) -> None:
    lines: list[str] = []
    try:
        assert runtime.images.build(
            REFERENCE, containerfile=recipe, build_args={"WORD": "a b"}, on_output=lines.append, force=True
        )
        assert any("COPY hello" in line for line in lines)
        with runtime.container(hr.ContainerSpec(image=REFERENCE)) as started:
            assert started.exec(["cat", "/hello", "/word"]).stdout == b"from the context\na b\n"
        count = len(lines)
        begin = time.monotonic()
        runtime.images.build(REFERENCE, containerfile=recipe, on_output=lines.append)
        assert len(lines) == count
        assert time.monotonic() - begin < 5
    finally:
        runtime.images.remove(REFERENCE)


def test_existence_is_an_exact_match(runtime: hr.Runtime, base_image: str) -> None:
    assert runtime.images.exists(base_image)
    assert runtime.images.exists(base_image.removesuffix(":latest"))
    for almost in ("base", base_image.replace(":latest", ":lates"), base_image.replace("base", "bas")):
        assert not runtime.images.exists(almost)
    assert any(base_image in image.references for image in runtime.images.list())


def test_a_failing_step_is_shown(runtime: hr.Runtime, odd_path: Path, base_image: str) -> None:
    (odd_path / "Containerfile").write_text(f"FROM {base_image}\nRUN echo before; echo the reason >&2; exit 9\n")
    with pytest.raises(ImageBuildError, match=r"(?s)the reason.*(exit status|non-zero code:) 9"):
        runtime.images.build(REFERENCE, containerfile=odd_path / "Containerfile")
    assert not runtime.images.exists(REFERENCE)


def test_what_is_not_there_is_named_with_the_next_step(runtime: hr.Runtime, tmp_path: Path) -> None:
    with pytest.raises(ImageNotFoundError, match="hyperrun image list"):
        runtime.images.remove("localhost/hyperruntime-test/nothing:1")
    with pytest.raises(ImageNotFoundError, match="pull localhost"):
        runtime.images.ensure("localhost/hyperruntime-test/nothing:1")
    with pytest.raises(SpecError, match="did you mean 'base'"):
        runtime.images.build("bas")
    with pytest.raises(SpecError, match="exists"):
        runtime.images.build("x", containerfile=tmp_path / "nothing")


def test_an_archive_that_the_engine_saved_is_loaded(
    runtime: hr.Runtime, engine_command: Any, busybox_image: str, tmp_path: Path
) -> None:
    tag = "localhost/hyperruntime-test/saved:1"
    engine_command.run("tag", busybox_image, tag)
    engine_command.run("save", "--output", str(tmp_path / "a.tar"), tag)
    runtime.images.remove(tag)
    assert not runtime.images.exists(tag)
    assert runtime.images.load(tmp_path / "a.tar") == (tag,)
    assert runtime.images.exists(tag)
    runtime.images.remove(tag)


def test_bootstrap_of_an_image_that_is_here_is_instant(runtime: hr.Runtime, base_image: str) -> None:
    begin = time.monotonic()
    assert runtime.images.bootstrap() == base_image
    assert time.monotonic() - begin < 5


def test_the_base_image_holds_what_agents_need(container: hr.Container) -> None:
    for program in ("python3", "git", "patch", "tar", "ps"):
        assert container.exec([program, "--version"]).exit_code == 0
    assert container.exec(["python3", "-c", "import ctypes, json, sqlite3, ssl, venv"]).exit_code == 0
