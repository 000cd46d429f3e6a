"""The source distribution has every file of the repository, and whoever has only it can build,
install and test.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Sequence
from email import message_from_string
from pathlib import Path
from shutil import copy2

import pytest

ROOT = Path(__file__).parents[2]
MADE_BY_SETUPTOOLS = {"PKG-INFO"}
# What a checkout has beside the files of the repository.
IGNORED = {
    ".venv",
    ".git",
    "build",
    "dist",
    "outputs",
    "shared",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
}
HOME = "https://forge.example/owner/hyperruntime"
WHAT_A_READER_WANTS = (
    *(
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "CITATION.cff",
        "LICENSE",
        "Makefile",
    ),
    *(
        "docs/tour.md",
        "docs/design/project.md",
        "tests/conftest.py",
        "scripts/setup",
    ),
    *(
        "containers/base/Containerfile",
        "hyperruntime/report/page/assets/vendor/uplot/LICENSE",
        ".ci/run",
    ),
)


def run(*args: str | Path, cwd: Path) -> str:
    env = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV_"))
    }
    done = subprocess.run(
        [str(arg) for arg in args], cwd=cwd, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def files_of_repository() -> list[str]:
    """Return the paths of the repository's files: those of git, or all files where there is no git,
    as in an sdist.
    """
    if (ROOT / ".git").exists():
        listed = run(
            "git", "-c", "safe.directory=*", "ls-files", "-z", "-co", "--exclude-standard", cwd=ROOT
        ).split("\0")
        return sorted(name for name in listed if name and os.path.lexists(ROOT / name))
    found = (path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file())
    return sorted(
        str(path)
        for path in found
        if not IGNORED & set(path.parts)
        and not any(part == "__pycache__" or part.endswith(".egg-info") for part in path.parts)
        and str(path) not in MADE_BY_SETUPTOOLS
    )


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist from a copy, so that stale results in the checkout cannot hide a missing
    file.
    """
    work = tmp_path_factory.mktemp("sdist")
    source = work / "source"
    for name in files_of_repository():
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        copy2(ROOT / name, target)
    build = (sys.executable, "-m", "build", "--no-isolation")
    run(*build, "--sdist", "--outdir", work, source, cwd=work)
    (made,) = work.glob("hyperruntime-*.tar.gz")
    return made


def names_in(archive: Path) -> set[str]:
    with tarfile.open(archive) as tar:
        return {member.name.partition("/")[2] for member in tar.getmembers() if member.isfile()}


def test_the_sdist_has_every_file_of_the_repository_and_nothing_else(sdist: Path) -> None:
    here, there = set(files_of_repository()), names_in(sdist)
    assert set(WHAT_A_READER_WANTS) <= there
    assert here - there == set()
    made = {
        name for name in there - here if name.startswith("hyperruntime.egg-info/")
    } | MADE_BY_SETUPTOOLS
    assert there - here <= made


@pytest.mark.slow
def test_the_sdist_alone_can_be_built_installed_and_tested(sdist: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as tar:
        tar.extractall(tmp_path, filter="data")
    (source,) = tmp_path.glob("hyperruntime-*")
    run(
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--wheel",
        "--outdir",
        tmp_path,
        source,
        cwd=tmp_path,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = archive.namelist()
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in packed)
    assert any("uplot/LICENSE" in name and ".dist-info/" in name for name in packed)
    python = installed(tmp_path, wheel)
    assert run(python.with_name("hyperrun"), "--version", cwd=tmp_path).startswith("hyperrun ")
    # -I leaves out the current directory, so that the tests import the installed package.
    pytest_ = (
        python,
        "-I",
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-n",
        "0",
        "-o",
        "pythonpath=",
    )
    chosen: Sequence[str] = (
        "tests/unit/test_spec.py",
        "tests/unit/test_values.py",
        "tests/unit/test_pages.py",
    )
    where = run(python, "-I", "-c", "import hyperruntime; print(hyperruntime.__file__)", cwd=source)
    assert where.startswith(str(tmp_path / "environment"))
    assert " passed" in run(*pytest_, *chosen, cwd=source)


def installed(place: Path, wheel: Path) -> Path:
    """Install the wheel in a new environment, with the dependencies of this one; return its
    Python.
    """
    prefix = place / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", prefix, cwd=place)
    python = prefix / "bin" / "python"
    pip = (
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
    )
    run(*pip, wheel, cwd=place)
    (packages,) = prefix.glob("lib/python3*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def test_the_addresses_of_a_published_project_are_in_its_metadata(tmp_path: Path) -> None:
    for name in ("setup.cfg", "CITATION.cff", "README.md", "LICENSE"):
        copy2(ROOT / name, tmp_path / name)
    assert "project_urls" not in (tmp_path / "setup.cfg").read_text().replace("(project_urls)", "")
    script = (
        "import pathlib, tests.release.set_home as s; "
        f"s.set_home(pathlib.Path({str(tmp_path)!r}), {HOME!r})"
    )
    run(sys.executable, "-c", script, cwd=ROOT)
    metadata = message_from_string(read_metadata(tmp_path))
    urls = dict(str(line).split(", ", 1) for line in metadata.get_all("Project-URL") or ())
    assert set(urls) == {"Source", "Documentation", "Changelog", "Issues", "Security"}
    assert urls["Source"] == HOME
    assert [url for url in urls.values() if not url.startswith(HOME)] == []
    assert f"repository-code: {HOME}\n" in (tmp_path / "CITATION.cff").read_text()
    readme = (tmp_path / "README.md").read_text()
    pictures = re.findall(r"[(\"](\S+\.png)", readme)
    assert pictures, "the page of a file is not a picture"
    assert {url.partition("/docs/")[0].rpartition("v")[0] for url in pictures} == {f"{HOME}/raw/"}
    links = relative_links(readme)
    assert (links, bool(relative_links((ROOT / "README.md").read_text()))) == ([], True)


def read_metadata(folder: Path) -> str:
    """Return the metadata that setuptools makes of a folder's setup.cfg."""
    script = (
        "import sys; from setuptools import Distribution\nmade = Distribution(); "
        "made.parse_config_files(['setup.cfg']); made.metadata.write_pkg_file(sys.stdout)"
    )
    return run(sys.executable, "-c", script, cwd=folder)


def relative_links(text: str) -> list[str]:
    return re.findall(r"\]\((?!\w+:|#)([^)]+)\)", text)
