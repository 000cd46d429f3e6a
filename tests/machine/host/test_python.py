"""Python processes of this library in a directory that an agent may have written."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from hyperruntime.cluster.config import ClusterConfig
from hyperruntime.cluster.node_jobs import job_script
from hyperruntime.host.process import find_program, python_args, run_process
from hyperruntime.host.python import (
    import_elsewhere,
    python_directory,
    safe_program_path,
    safe_python_path,
)
from hyperruntime.images.packages.requirements_file import read_requirements
from hyperruntime.images.packages.wheels import WheelSearch
from tests.doubles.hostile_directory import HostileDirectory, make_hostile_directory


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostileDirectory:
    """Return a hostile directory, which is the current one, as an empty element of ``PYTHONPATH``
    is too.
    """
    made = make_hostile_directory(tmp_path)
    monkeypatch.chdir(made.path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:")
    return made


@pytest.mark.parametrize(
    ("value", "safe"),
    [
        ("", ""),
        (":", ""),
        ("/a:/b", "/a:/b"),
        (":/a", "/a"),
        ("/a:", "/a"),
        ("/a::/b", "/a:/b"),
        ("lib:/a", "HERE/lib:/a"),
        ("../lib", "PARENT/lib"),
    ],
)
def test_a_python_path_names_the_current_directory_only_in_words(
    value: str, safe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert safe_python_path(value) == safe.replace("HERE", str(tmp_path)).replace(
        "PARENT", str(tmp_path.parent)
    )


@pytest.mark.parametrize(
    ("value", "safe"),
    [
        ("/a:/b", "/a:/b"),
        (":/a", "/a"),
        ("/a::/b:", "/a:/b"),
        ("bin:/a:./b:../c:.", "/a"),
        ("", os.defpath),
        ("bin", os.defpath),
    ],
)
def test_a_program_path_does_not_name_the_current_directory(value: str, safe: str) -> None:
    assert safe_program_path(value) == safe


@pytest.mark.parametrize("path", [".:PATH", ":PATH", "PATH:", "../hostile:PATH"])
def test_no_program_of_the_current_directory_is_found(
    path: str, hostile: HostileDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", path.replace("PATH", os.environ["PATH"]))
    found = find_program("sh")
    assert found is not None
    assert os.path.isabs(found)
    assert find_program("planted.py") is None
    assert Path(found).parent != hostile.path


def test_a_module_that_is_imported_elsewhere_reads_no_file_of_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reader.py").write_text(
        "import os\nhere, seen = os.getcwd(), os.path.exists('settings')\n"
    )
    (tmp_path / "settings").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    import_elsewhere("reader")
    reader = sys.modules.pop("reader")
    assert (reader.here, reader.seen, os.getcwd()) == ("/", False, str(tmp_path))
    with pytest.raises(ImportError):
        import_elsewhere("no_such_module_at_all")


def test_a_process_runs_no_program_of_its_directory(
    hostile: HostileDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f":{os.environ['PATH']}")
    assert run_process(["git", "--version"], timeout_s=60).exit_code == 0
    assert hostile.ran() == {}
    run_process(["git", "--version"], env={**os.environ}, timeout_s=60)
    assert hostile.ran() != {}, "the directory has no effect; so this test has none"


def test_the_program_is_this_python_by_its_absolute_path() -> None:
    assert python_args("-V") == (sys.executable, "-P", "-V")
    assert python_directory() == os.path.dirname(sys.executable)


@pytest.mark.parametrize(
    "words", [("-m", "json.tool", "--help"), ("-c", "import select, click, hyperruntime.cli")]
)
def test_a_python_process_imports_nothing_from_its_current_directory(
    words: tuple[str, ...], hostile: HostileDirectory
) -> None:
    assert run_process(python_args(*words), timeout_s=60).exit_code == 0
    assert hostile.ran() == {}
    run_process([sys.executable, *words], env={**os.environ}, timeout_s=60)
    assert hostile.ran() != {}, "the directory has no effect; so this test has none"


def test_pip_of_the_host_runs_nothing_from_the_current_directory(
    hostile: HostileDirectory, tmp_path: Path
) -> None:
    (tmp_path / "requirements.txt").write_text("")
    wanted = read_requirements(tmp_path / "requirements.txt")
    search = WheelSearch(
        requirements=wanted, python="3.11", directory=tmp_path / "search", on_output=print
    )
    assert search.has_pip()
    assert search.collect(tmp_path / "wheels") == ()
    assert hostile.ran() == {}


@pytest.mark.parametrize("value", [":/a", "/a:", "not set"])
def test_the_script_of_a_job_corrects_the_python_path_that_its_set_up_made(
    value: str, hostile: HostileDirectory, tmp_path: Path
) -> None:
    setup = "unset PYTHONPATH" if value == "not set" else f"export PYTHONPATH={value}"
    script = job_script(ClusterConfig(provider="local", setup=(setup,)), tmp_path, "node-1")
    before, _, _ = script.rpartition("exec ")
    script = f'{before}echo "<${{PYTHONPATH-not set}}>"; trap - EXIT'
    done = run_process(["bash", "-uc", script], timeout_s=60)
    assert done.stdout.decode().splitlines()[-1:] == [
        "<not set>" if value == "not set" else "</a>"
    ], done.stderr
    assert hostile.ran() == {}
