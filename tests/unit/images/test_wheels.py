"""All missing wheels are listed at once, and the host runs no code of a package unless it is asked
to.
"""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

import attrs
import pytest

from hyperruntime.images.packages.requirements_file import read_requirements
from hyperruntime.images.packages.wheels import WheelSearch, pip_args
from tests.doubles.packages import make_sdist, make_wheel, use_only

_PIP = """#!/bin/sh
# It builds a wheel of `odd` and takes only the stand-in.
echo "$1" >> "{folder}/calls"
case "$1" in
wheel) while [ "$1" != --wheel-dir ]; do shift; done; : > "$2/odd-1.0-py3-none-any.whl" ;;
*) [ -e "{folder}/search/stand-ins/odd-0-py3-none-any.whl" ] && exit
    echo "ERROR: No matching distribution found for odd" >&2; exit 1 ;;
esac
"""


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only packages that pip of this machine finds; the build of a source package writes to
    ``mark``.
    """
    use_only(tmp_path / "packages", monkeypatch)
    folder = tmp_path / "packages"
    make_wheel(folder, "ready", "1.0", "needed>=2,<3")
    make_wheel(folder, "small", "1.0")
    make_sdist(folder, "needed", "2.1", tmp_path / "mark", "deep")
    make_sdist(folder, "deep", "1.0", tmp_path / "mark")
    make_sdist(folder, "sourceonly", "1.0", tmp_path / "mark")
    return folder


def search(tmp_path: Path, *lines: str) -> WheelSearch:
    (tmp_path / "r.txt").write_text("\n".join(lines))
    wanted = read_requirements(tmp_path / "r.txt")
    assert wanted.problems == []
    return WheelSearch(
        requirements=wanted, python="3.11", directory=tmp_path / "search", on_output=print
    )


def names(folder: Path) -> set[str]:
    return {path.name.partition("-")[0] for path in folder.iterdir()}


@pytest.mark.slow
def test_the_wheels_that_exist_are_downloaded_without_the_missing_ones(
    tmp_path: Path, packages: Path
) -> None:
    looking = search(tmp_path, "small", "sourceonly==1.0", "ready")
    missing = looking.collect(tmp_path / "wheels")
    assert [(one.wanted, one.place) for one in missing] == [
        ("sourceonly==1.0", "r.txt:2"),
        ("needed<3,>=2", "needed by ready"),
    ]
    assert [one.is_nowhere for one in missing] == [False, False]
    assert looking.stopped == ""
    assert names(tmp_path / "wheels") == {"small", "ready"}
    assert not (tmp_path / "mark").exists()


@pytest.mark.slow
def test_a_version_that_no_index_has_is_told_apart_from_one_without_a_wheel(
    tmp_path: Path, packages: Path
) -> None:
    missing = search(tmp_path, "sourceonly==9.0", "absent").collect(tmp_path / "wheels")
    assert [(one.why, one.is_nowhere) for one in missing] == [
        ("no such version; the index has 1.0", True),
        ("the index does not have it", True),
    ]


@pytest.mark.slow
def test_sdist_builds_missing_wheels_and_those_that_they_need(
    tmp_path: Path, packages: Path
) -> None:
    looking = search(tmp_path, "small", "sourceonly==1.0", "ready")
    assert looking.collect(tmp_path / "wheels", sdist=True) == ()
    assert looking.stopped == ""
    assert names(tmp_path / "wheels") == {"small", "ready", "sourceonly", "needed", "deep"}
    assert (tmp_path / "mark").read_text() == "built\n" * 3


@pytest.mark.slow
def test_a_source_package_that_cannot_be_built_is_listed_with_its_error(
    tmp_path: Path, packages: Path
) -> None:
    broken = make_sdist(packages, "broken", "1.0", tmp_path / "mark")
    broken.write_bytes(broken.read_bytes()[:100])
    (missing,) = search(tmp_path, "broken", "sourceonly").collect(tmp_path / "wheels", sdist=True)
    assert (missing.wanted, missing.place) == ("broken", "r.txt:1")
    assert "it cannot be built here" in missing.why


def test_a_built_wheel_that_pip_does_not_take_is_missing_and_ends_no_search(tmp_path: Path) -> None:
    """Such as one for a glibc that pip is not asked about."""
    program = tmp_path / "pip"
    program.write_text(_PIP.format(folder=tmp_path))
    program.chmod(0o755)
    looking = attrs.evolve(search(tmp_path, "odd"), pip=(str(program),))
    (missing,) = looking.collect(tmp_path / "wheels", sdist=True)
    assert str(missing) == "r.txt:1: odd: pip does not take the wheel built here for Python 3.11"
    assert looking.stopped == ""
    assert (tmp_path / "calls").read_text().split() == [
        "download",
        "wheel",
        "install",
        "install",
        "download",
    ]


@pytest.mark.slow
def test_hashes_are_checked_although_a_wheel_is_missing(tmp_path: Path, packages: Path) -> None:
    small, source = packages / "small-1.0-py3-none-any.whl", packages / "sourceonly-1.0.tar.gz"
    right, wrong = (
        f"sha256:{hashlib.sha256(data).hexdigest()}" for data in (small.read_bytes(), b"other")
    )
    other = f"sha256:{hashlib.sha256(source.read_bytes()).hexdigest()}"
    for place, (digest, stops) in {"a": (right, False), "b": (wrong, True)}.items():
        folder = tmp_path / place
        folder.mkdir()
        looking = search(folder, f"small==1.0 --hash={digest}", f"sourceonly==1.0 --hash={other}")
        missing = looking.collect(folder / "wheels")
        assert [one.wanted for one in missing] == ([] if stops else ["sourceonly==1.0"])
        assert ("HASHES" in looking.stopped) == stops
        assert (names(folder / "wheels") == {"small"}) == (not stops)


@pytest.mark.slow
def test_an_index_that_cannot_be_reached_is_told_apart_from_a_missing_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    looking = search(tmp_path, "small")
    assert looking.collect(tmp_path / "wheels") == ()
    assert "cannot reach the package index" in looking.stopped
    assert not looking.has_index


def test_wheels_are_downloaded_for_the_python_of_the_image() -> None:
    args = pip_args(Path("r.txt"), Path("/w"), "3.11")
    assert args[0] == "download"
    assert args[args.index("--python-version") + 1] == "3.11"
    assert "--only-binary=:all:" in args
    assert f"manylinux2014_{platform.machine()}" in args
    assert args[-4:] == ["--dest", "/w", "--requirement", "r.txt"]


def test_a_machine_without_pip_is_recognised(tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    (tmp_path / "r.txt").write_text("idna\n")
    wanted = read_requirements(tmp_path / "r.txt")
    given = {
        "requirements": wanted,
        "python": "3.11",
        "directory": tmp_path / "search",
        "on_output": print,
    }
    assert not WheelSearch(**given, pip=(str(program),)).has_pip()  # type: ignore[arg-type]


@pytest.mark.slow
def test_wheels_are_downloaded_with_the_pip_of_the_host(tmp_path: Path) -> None:
    assert search(tmp_path, "idna").collect(tmp_path / "wheels") == ()
    assert names(tmp_path / "wheels") == {"idna"}
