"""The names of existing images, and builds from a requirements file."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any, cast

import pytest

from hyperruntime.driver import Images
from hyperruntime.errors import ImageBuildError, ImageError, ImageNotFoundError, SpecError
from hyperruntime.images.store import ImageStore
from tests.doubles.packages import make_sdist, make_wheel, use_only


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


@pytest.mark.parametrize(
    "name", ["example.org/mine:latest", "localhost/mine:latest", "team/mine:latest"]
)
def test_any_other_name_must_match_exactly(name: str) -> None:
    with pytest.raises(ImageNotFoundError):
        store(f"localhost/{name}").ensure(name)


def test_an_image_of_another_name_does_not_stand_for_one_to_be_built(tmp_path: Path) -> None:
    engine = Building("localhost/team/mine:latest")
    (tmp_path / "Containerfile").write_text("FROM a\n")
    made = ImageStore(cast("Images", engine)).build(
        "team/mine:latest", containerfile=tmp_path / "Containerfile"
    )
    assert made == engine.built[0] == "team/mine:latest"


class Building(Here):
    """A fake engine that keeps what it was asked to build."""

    def build(self, context: Path, reference: str, *, containerfile: Path, **_: Any) -> str:
        self.built = (
            reference,
            containerfile.read_text(),
            sorted(path.name for path in context.iterdir()),
        )
        return "id"


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let pip of this machine find only the packages of a directory, and return the directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    use_only(tmp_path / "packages", monkeypatch)
    return tmp_path / "packages"


def test_a_requirements_file_becomes_an_image_on_top_of_dev(tmp_path: Path, offline: Path) -> None:
    """The wheels are in the build context, so that the build asks no package index."""
    make_wheel(offline, "ready", "1.0")
    (tmp_path / "r.txt").write_text("ready\n")
    engine = Building("localhost/hyperruntime/dev:latest")
    images = ImageStore(cast("Images", engine))
    assert images.build_requirements("mine", tmp_path / "r.txt") == "mine"
    reference, containerfile, context = engine.built
    assert (reference, context) == ("mine", ["Containerfile", "requirements.txt", "wheels"])
    assert containerfile.startswith("FROM localhost/hyperruntime/dev:latest\n")
    assert "--no-index" in containerfile


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("sourceonly\nother\n", r"r.txt:1: sourceonly: only.*r.txt:2: other: only.*--sdist"),
        (
            "sourceonly==9.0\n./local\nabsent\nother\n-r no.txt\n",
            r"r.txt:2: ./local: a path of this machine.*no.txt: the file does not exist"
            r".*r.txt:1: sourceonly==9.0: no such version; the index has 1.0"
            r".*r.txt:3: absent: the index does not have it.*r.txt:4: other: only.*--sdist",
        ),
    ],
)
def test_all_that_is_missing_is_in_one_error_before_dev_is_made(
    tmp_path: Path, offline: Path, monkeypatch: pytest.MonkeyPatch, lines: str, said: str
) -> None:
    make_sdist(offline, "sourceonly", "1.0", tmp_path / "mark")
    make_sdist(offline, "other", "1.0", tmp_path / "mark")
    (tmp_path / "r.txt").write_text(lines)
    images = store("localhost/hyperruntime/dev:latest")
    monkeypatch.setattr(images, "ensure", lambda *_, **__: pytest.fail("dev was made"))
    with pytest.raises(ImageBuildError, match=f"(?s){said}"):
        images.build_requirements("mine", tmp_path / "r.txt")
    assert not (tmp_path / "mark").exists()


def test_the_arguments_of_a_requirements_build_are_checked(tmp_path: Path, offline: Path) -> None:
    (tmp_path / "r.txt").write_text("ready\n")
    with pytest.raises(SpecError, match="PIP_INDEX"):
        store().build_requirements(
            "mine", tmp_path / "r.txt", build_args={"PIP_INDEX": "https://example.org"}
        )


@pytest.mark.parametrize(
    ("name", "file"), [("mine", "nothing"), ("agent", "r.txt"), ("mine", "r.txt")]
)
def test_requirements_that_cannot_become_an_image_are_refused(
    name: str, file: str, tmp_path: Path
) -> None:
    (tmp_path / "r.txt").write_text("# nothing\n\n")
    with pytest.raises(
        SpecError, match=r"name a file that exists|choose another name|must name a package"
    ):
        store().build_requirements(name, tmp_path / file)


NAMED = "localhost/hyperruntime-named/1000:prepared"


@pytest.mark.parametrize(
    "name",
    [NAMED, NAMED.removeprefix("localhost/"), "localhost/hyperruntime-snapshot", f"{NAMED}-2"],
)
def test_no_image_gets_the_name_of_a_snapshot(tmp_path: Path, name: str) -> None:
    (tmp_path / "Containerfile").write_text("FROM a\n")
    with pytest.raises(SpecError, match="snapshots have such names"):
        store().build(name, containerfile=tmp_path / "Containerfile")
    with pytest.raises(SpecError, match="snapshots have such names"):
        store().pull(name)


class Loading(Here):
    """A fake engine that loads all."""

    def load(self, archive: Path) -> tuple[str, ...]:
        return (archive.name,)


def saved(path: Path, mode: str, **files: object) -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name, content in {"layer": "", "manifest": [], **files}.items():
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            member = tarfile.TarInfo(name if name == "repositories" else f"./{name}.json")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
@pytest.mark.parametrize(
    "files",
    [
        {"manifest": [{"RepoTags": ["a:1", NAMED]}]},
        {"index": {"manifests": [{"annotations": {"org.opencontainers.image.ref.name": NAMED}}]}},
        {"manifest": b'[{"RepoTags": ["localhost\\/hyperruntime-named/7:x"], "RepoTags": []}]'},
        {"repositories": {"localhost/hyperruntime-named/1000": {"x": "1"}}},
    ],
)
def test_an_archive_cannot_move_the_name_of_a_snapshot(
    tmp_path: Path, mode: str, files: dict[str, object]
) -> None:
    images = ImageStore(cast("Images", Loading()))
    with pytest.raises(ImageError, match=r"it has the name .*; snapshots have such names"):
        images.load(saved(tmp_path / "a.tar", mode, **files))


def test_archives_with_other_names_are_loaded_and_damaged_ones_are_not(tmp_path: Path) -> None:
    images = ImageStore(cast("Images", Loading()))
    other = {"manifest": [{"RepoTags": ["localhost/hyperruntime-namedx:1", "a:1"]}]}
    assert images.load(saved(tmp_path / "a.tar", "w", **other)) == ("a.tar",)
    assert images.load(saved(tmp_path / "b.tar", "w:gz", **other)) == ("b.tar",)
    cut = saved(tmp_path / "c.tar", "w:gz", layer=os.urandom(50_000), **other)
    cut.write_bytes(cut.read_bytes()[:40_000])
    (tmp_path / "d.tar").write_bytes(b"\x28\xb5\x2f\xfd")
    for broken in (cut, saved(tmp_path / "e.tar", "w", index=b"[1"), tmp_path / "d.tar"):
        with pytest.raises(ImageError, match="cannot be loaded as an image: "):
            images.load(broken)
