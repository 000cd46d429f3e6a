"""The installed ``hyperrun image``: its output, its streams and its exit codes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import hyperruntime as hr
from tests.command import program
from tests.registry import run_registry

pytestmark = pytest.mark.engine

REFERENCE = "localhost/hyperruntime-test/image-cli:1"


def hyperrun(runtime_name: str, *args: str) -> subprocess.CompletedProcess[str]:
    words = [program(), "--runtime", runtime_name, *args]
    return subprocess.run(words, capture_output=True, text=True, timeout=180, check=False)


@pytest.fixture
def containerfile(tmp_path: Path, busybox_image: str) -> Path:
    path = tmp_path / "Containerfile"
    path.write_text(f"FROM {busybox_image}\nARG ONE\nARG TWO\nRUN echo $ONE $TWO > /words\n")
    return path


def test_an_image_is_built_saved_removed_and_loaded(
    runtime: hr.Runtime, runtime_name: str, containerfile: Path, tmp_path: Path
) -> None:
    def said(*args: str) -> str:
        done = hyperrun(runtime_name, *args)
        assert done.returncode == 0, done.stderr
        return done.stdout

    build = ("image", "build", REFERENCE, "--file", str(containerfile))
    try:
        arguments = ("--build-arg", "ONE=a b", "--build-arg", "TWO=c=d")
        assert said(*build, "--force-rebuild", *arguments) == f"{REFERENCE}\n"
        assert said("exec", "--image", REFERENCE, "--", "cat", "/words") == "a b c=d\n"
        archive = tmp_path / "saved image.tar"
        assert said("image", "save", REFERENCE, str(archive)) == f"{archive}\n"
        assert hyperrun(runtime_name, "image", "save", REFERENCE, str(archive)).returncode == 2
        assert said("image", "save", "--force", REFERENCE, str(archive)) == f"{archive}\n"
        assert said("image", "remove", REFERENCE) == f"removed {REFERENCE}\n"
        assert said("image", "load", str(archive)) == f"{REFERENCE}\n"
        assert said("exec", "--image", REFERENCE, "--", "cat", "/words") == "a b c=d\n"
        assert said(*build) == f"{REFERENCE}\n"
        assert said("exec", "--image", REFERENCE, "--", "cat", "/words") == "a b c=d\n"
        assert said(*build, "--force-rebuild") == f"{REFERENCE}\n"
        assert said("exec", "--image", REFERENCE, "--", "cat", "/words") == "\n"
    finally:
        runtime.images.remove(REFERENCE)


def test_an_image_is_pulled_and_an_unknown_tag_is_reported_without_a_traceback(
    runtime: hr.Runtime, runtime_name: str, tmp_path: Path
) -> None:
    with run_registry(tmp_path / "registry") as registry:
        reference = registry.push_busybox("cli/image", "1", "pulled\n")
        done = hyperrun(runtime_name, "image", "pull", reference)
        try:
            assert (done.returncode, done.stdout) == (0, f"{reference}\n"), done.stderr
            greeting = hyperrun(
                runtime_name, "exec", "--image", reference, "--", "cat", "/greeting"
            )
            assert greeting.stdout == "pulled\n"
        finally:
            runtime.images.remove(reference)
        done = hyperrun(runtime_name, "image", "pull", f"{registry.address}/cli/image:2")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("hyperrun: error: ")
    assert last.endswith("check the name and the tag")
