"""Evaluations of inspect_ai whose samples have containers of their own configurations."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from inspect_ai import Task
from inspect_ai import eval as run_eval
from inspect_ai.dataset import Sample
from inspect_ai.util._sandbox.registry import registry_find_sandboxenv

import hyperruntime as hr
from hyperruntime.errors import ImageBuildError, UnsupportedOptionError
from tests.integrations.inspect_ai.example import run_input

pytestmark = pytest.mark.engine

PREFIX = "localhost/hyperruntime-inspect/"


def run(log_dir: Path, *samples: Sample, sandbox: Any = "hyperruntime") -> list[str]:
    """Return what the commands of samples print, in a real evaluation."""
    task = Task(dataset=list(samples), solver=run_input(), sandbox=sandbox)
    log = run_eval(task, model="mockllm/model", display="none", log_dir=str(log_dir))[0]
    assert log.status == "success", log.error
    return [sample.output.completion for sample in log.samples or ()]


@pytest.fixture
def dockerfile(
    runtime: hr.Runtime,
    runtime_name: str,
    base_image: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Path]:
    """Yield a Dockerfile that copies a file of its context; the images that a test builds from it
    are removed.
    """
    monkeypatch.setenv("HYPERRUNTIME_RUNTIME", runtime_name)
    context = tmp_path / "a context"
    context.mkdir()
    (context / "word").write_text("first")
    # a run that was killed may have left images of the same files
    own = f"LABEL made-for={uuid.uuid4().hex}"
    (context / "Dockerfile").write_text(f"FROM {base_image}\n{own}\nWORKDIR /srv\nCOPY word ./\n")
    before = images(runtime)
    yield context / "Dockerfile"
    for name in images(runtime) - before:
        runtime.images.remove(name)


def images(runtime: hr.Runtime) -> set[str]:
    """Return the names of the images that were built for evaluations."""
    return {
        name
        for image in runtime.images.list()
        for name in image.references
        if name.startswith(PREFIX)
    }


def test_a_sample_has_the_container_of_its_own_file(
    runtime_name: str, base_image: str, tmp_path: Path
) -> None:
    def written(name: str, **fields: object) -> tuple[str, str]:
        lines = [f"{key} = {json.dumps(value)}" for key, value in fields.items()]
        (tmp_path / name).write_text(
            "\n".join((f'runtime = "{runtime_name}"', f'image = "{base_image}"', *lines))
        )
        return "hyperruntime", str(tmp_path / name)

    of_task = written("task.toml", user="nobody", workdir="/usr")
    of_sample = written("sample.toml", workdir="/etc", read_only_rootfs=True)
    show = "id -un; pwd; touch /tmp/x /x 2>&1 | tail -n 1"
    said = run(tmp_path, Sample(input=show), Sample(input=show, sandbox=of_sample), sandbox=of_task)
    assert said[0].startswith("nobody\n/usr\n")
    assert "Permission denied" in said[0]
    assert said[1].startswith("root\n/etc\n")
    assert "Read-only file system" in said[1]


def test_a_changed_file_of_a_dockerfiles_context_builds_its_image_again(
    runtime: hr.Runtime, runtime_name: str, dockerfile: Path, tmp_path: Path
) -> None:
    sandbox = ("hyperruntime", str(dockerfile))
    if runtime_name == "bubblewrap":
        with pytest.raises(UnsupportedOptionError, match="bubblewrap cannot honour images"):
            asyncio.run(registry_find_sandboxenv("hyperruntime").task_init("x", str(dockerfile)))
        return
    show = Sample(input="cat *; pwd", sandbox=sandbox)
    assert run(tmp_path, show) == ["first/srv\n"]
    built = images(runtime)
    (dockerfile.parent / "log").write_text("no instruction reads this")
    assert run(tmp_path, show) == ["first/srv\n"]
    assert images(runtime) == built
    (dockerfile.parent / "word").write_text("second")
    assert run(tmp_path, show) == ["second/srv\n"]
    assert len(images(runtime)) == len(built) + 1


def test_a_base_image_without_a_registry_is_one_of_docker_hub(
    dockerfile: Path, runtime_name: str
) -> None:
    if runtime_name == "bubblewrap":
        pytest.skip("it builds no images")
    dockerfile.write_text("FROM hyperruntime-no-such-image:1\n")
    with pytest.raises(
        ImageBuildError,
        match=r"docker\.io/library/hyperruntime-no-such-image|registry-1\.docker\.io",
    ):
        asyncio.run(registry_find_sandboxenv("hyperruntime").task_init("x", str(dockerfile)))
