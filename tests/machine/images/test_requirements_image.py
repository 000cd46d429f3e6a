"""The container that builds missing wheels gets what it needs, and only wheels come out of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from hyperruntime.errors import ImageBuildError
from hyperruntime.images.packages.requirements_image import PackageBuild
from hyperruntime.spec import ContainerSpec, ExecResult
from tests.doubles.packages import make_sdist, make_wheel, use_only


class FakeInside:
    """A container whose pip makes some files, or fails."""

    def __init__(self, spec: ContainerSpec, exit_code: int) -> None:
        self.spec, self.exit_code = spec, exit_code
        self.files = {path.name: path for path in Path(spec.mounts[0].source).iterdir()}
        self.settings = self.files["pip.conf"].read_text()
        self.requirements = self.files["requirements.txt"].read_text().splitlines()
        self.wheels = {path.name for path in self.files["wheels"].iterdir()}

    def exec(
        self,
        args: Sequence[str | bytes],
        *,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        on_output: Callable[[str, bytes], None] | None = None,
    ) -> ExecResult:
        self.env = dict(env or {})
        assert on_output is not None
        on_output("stdout", b"Looking in https://me:sec")
        on_output("stdout", b"ret@example.org/simple\n")
        return ExecResult(
            args=(), exit_code=self.exit_code, stderr=b"no such https://me:secret@example.org/x\n"
        )

    def get(self, source: str, target: Path) -> object:
        target.mkdir()
        make_wheel(target, "small", "1.0")
        make_wheel(target, "sourceonly", "1.0")
        os.symlink("/etc/hostname", target / "linked-1.0-py3-none-any.whl")
        (target / "-option.whl x").write_text("no wheel")
        (target / "folder-1.0.whl").mkdir()
        return None


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    use_only(tmp_path / "packages", monkeypatch)
    make_wheel(tmp_path / "packages", "small", "1.0")
    make_sdist(tmp_path / "packages", "sourceonly", "1.0", tmp_path / "mark")
    return tmp_path / "packages"


def built(
    tmp_path: Path, said: list[str], exit_code: int = 0, text: str = "small\nsourceonly\n"
) -> list[FakeInside]:
    started: list[FakeInside] = []

    @contextmanager
    def start(spec: ContainerSpec) -> Iterator[FakeInside]:
        assert said[-1] == "dev is made"
        started.append(FakeInside(spec, exit_code))
        yield started[-1]

    def make_base() -> None:
        assert any("sourceonly: only source code" in line for line in said)
        said.append("dev is made")

    (tmp_path / "r.txt").write_text(text)
    build = PackageBuild(
        requirements=tmp_path / "r.txt", start=start, make_base=make_base, on_output=said.append
    )
    build.wheels(tmp_path / "wheels")
    return started


def test_what_is_missing_is_said_before_dev_is_made_and_only_wheels_come_out_of_the_container(
    tmp_path: Path, packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://me:secret@example.org/simple")
    monkeypatch.setenv("HTTPS_PROXY", "http://you:hidden@127.0.0.1:9")
    said: list[str] = []
    (inside,) = built(
        tmp_path, said, text=f"small\nsourceonly\n-f {packages}\n--no-binary :none:\n"
    )
    assert {path.name for path in (tmp_path / "wheels").iterdir()} == {
        "small-1.0-py3-none-any.whl",
        "sourceonly-1.0-py3-none-any.whl",
    }
    assert inside.requirements == [
        "small",
        "sourceonly",
        "--no-binary :none:",
        "-c constraints-requirements.txt",
    ]
    assert inside.wheels == {"small-1.0-py3-none-any.whl"}
    assert "index-url = https://me:secret@example.org/simple" in inside.settings
    assert (inside.spec.network, inside.spec.mounts[0].read_only) == ("host", True)
    assert inside.env["https_proxy"] == "http://you:hidden@127.0.0.1:9"
    assert not [
        name for name, value in {**inside.env, **inside.spec.env}.items() if "secret" in value
    ]
    assert "Looking in https://***@example.org/simple" in said
    assert not (tmp_path / "mark").exists()


@pytest.mark.slow
def test_a_failed_build_in_the_container_names_all_that_is_missing_and_what_to_do(
    tmp_path: Path, packages: Path
) -> None:
    make_sdist(packages, "other", "2.0", tmp_path / "mark")
    said: list[str] = []
    with pytest.raises(ImageBuildError) as caught:
        built(tmp_path, said, exit_code=1, text="small\nsourceonly\nother==2.0\n")
    for text in (
        "r.txt:2: sourceonly: ",
        "r.txt:3: other==2.0: ",
        "https://***@example.org/x",
        "PIP_FIND_LINKS",
        "--sdist",
    ):
        assert text in str(caught.value)
    assert "secret" not in str(caught.value)
