"""The names of existing images, and builds from a requirements file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from hyperruntime.driver import Images
from hyperruntime.errors import ImageBuildError, ImageNotFoundError, SpecError
from hyperruntime.images.store import ImageStore


class Here:
    """A fake engine with images of these names."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def exists(self, reference: str) -> bool:
        return reference in self._names


def store(*names: str) -> ImageStore:
    return ImageStore(cast("Images", Here(*names)))


def test_a_name_without_a_registry_is_also_found_under_localhost() -> None:
    assert store("localhost/mine:latest").ensure("mine:latest") == "localhost/mine:latest"
    assert store("localhost/mine:latest", "mine:latest").ensure("mine:latest") == "mine:latest"


@pytest.mark.parametrize("name", ["example.org/mine:latest", "localhost/mine:latest", "team/mine:latest"])
def test_any_other_name_must_match_exactly(name: str) -> None:
    with pytest.raises(ImageNotFoundError):
        store(f"localhost/{name}").ensure(name)


class Building(Here):
    """A fake engine that keeps what it was asked to build."""

    def build(self, context: Path, reference: str, *, containerfile: Path, **_: Any) -> str:
        self.built = reference, containerfile.read_text(), sorted(path.name for path in context.iterdir())
        return "id"


def test_a_requirements_file_becomes_an_image_on_top_of_dev(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheels are in the build context, so that the build asks no package index."""

    def download(args: list[str], target: Path, on_output: object) -> str:
        assert Path(args[args.index("--requirement") + 1]).read_text().splitlines()[0] == "pandas"
        target.mkdir()
        return ""

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("hyperruntime.images.recipes.download_wheels", download)
    (tmp_path / "r.txt").write_text("pandas\n")
    engine = Building("localhost/hyperruntime/dev:latest")
    images = ImageStore(cast("Images", engine))
    assert images.build_requirements("mine", tmp_path / "r.txt") == "mine"
    reference, containerfile, context = engine.built
    assert (reference, context) == ("mine", ["Containerfile", "requirements.txt", "wheels"])
    assert containerfile.startswith("FROM localhost/hyperruntime/dev:latest\n")
    assert "--no-index" in containerfile


def test_a_failed_build_without_wheels_says_which_package_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(Here):
        def build(self, *_: Any, **__: Any) -> str:
            raise ImageBuildError("no network")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("hyperruntime.images.recipes.download_wheels", lambda *_: "there is no wheel of gym")
    (tmp_path / "r.txt").write_text("gym\n")
    images = ImageStore(cast("Images", Failing("localhost/hyperruntime/dev:latest")))
    with pytest.raises(ImageBuildError, match=r"(?s)no network.*because there is no wheel of gym; .*PIP_FIND_LINKS"):
        images.build_requirements("mine", tmp_path / "r.txt")


@pytest.mark.parametrize(("name", "file"), [("mine", "nothing"), ("agent", "r.txt"), ("mine", "r.txt")])
def test_requirements_that_cannot_become_an_image_are_refused(name: str, file: str, tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text("# nothing\n\n")
    with pytest.raises(SpecError, match=r"name a file that exists|choose another name|must name a package"):
        store().build_requirements(name, tmp_path / file)
