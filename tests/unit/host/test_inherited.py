"""Settings that this process inherited do not reach the programs that it starts."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import sys
from pathlib import Path

import pytest

from hyperruntime.host import inherited
from hyperruntime.host.process import run_process, spawn_attached

MODULES = {
    "BASH_ENV": "/x",
    "ENV": "/x",
    "BASH_FUNC_module%%": "() { :; }",
    "LD_LIBRARY_PATH": "/lib",
    "LD_PRELOAD": "/x.so",
    "HOME": "/home/a",
    "PYTHONPATH": "/p",
}


def test_a_shell_gets_no_exported_functions_and_no_startup_files() -> None:
    kept = {"LD_LIBRARY_PATH", "LD_PRELOAD", "HOME", "PYTHONPATH"}
    assert set(inherited.shell_environment(MODULES)) == kept


def test_a_system_program_gets_no_library_path() -> None:
    assert set(inherited.program_environment(MODULES)) == {"HOME", "PYTHONPATH"}


def test_a_program_without_an_explicit_environment_gets_the_cleaned_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in MODULES.items():
        if not name.startswith("LD_"):
            monkeypatch.setenv(name, value)
    script = "import json, os; print(json.dumps(dict(os.environ)))"
    got = json.loads(run_process([sys.executable, "-c", script]).stdout)
    assert got["HOME"] == "/home/a"
    assert not {"BASH_ENV", "ENV", "BASH_FUNC_module%%"} & set(got)


def test_a_program_loads_no_library_of_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty element names the directory; ``export LD_LIBRARY_PATH=$LD_LIBRARY_PATH:/x`` makes
    one.
    """
    words = {
        word
        for line in Path("/proc/self/maps").read_text().splitlines()
        for word in line.split()[5:]
    }
    libc = next(word for word in words if re.search(r"/(libc\.so\.6|libc-[\d.]+\.so)$", word))
    shutil.copy(libc, tmp_path / "libc.so.6")
    for value in (":/nowhere", "/nowhere:", ".", "/nowhere;;", f"../{tmp_path.name}:/nowhere"):
        monkeypatch.setenv("LD_LIBRARY_PATH", value)
        done = run_process(["cat", "/proc/self/maps"], cwd=tmp_path)
        assert done.exit_code == 0, done.error_text
        assert b"libc" in done.stdout
        assert str(tmp_path).encode() not in done.stdout, value
        assert inherited.shell_environment({"LD_LIBRARY_PATH": value})["LD_LIBRARY_PATH"] in (
            "",
            "/nowhere",
        )


@pytest.mark.parametrize(
    ("wanted", "ceiling", "counts"), [(512, 0, 512), (512, 400, 400), (60, 400, 60)]
)
def test_the_stricter_limit_applies(wanted: int, ceiling: int, counts: int) -> None:
    assert inherited.stricter(wanted, ceiling) == counts


def test_the_ceiling_of_processes_is_the_hard_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    for hard, ceiling in ((resource.RLIM_INFINITY, 0), (77, 77)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, hard=hard: (5, hard))
        assert inherited.process_ceiling() == ceiling


SHOW = (
    "import signal; print([n.name for n in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT) if "
    + ("signal.getsignal(n) is signal.SIG_IGN])")
)
# A process that ignores signals and starts a child as drivers do; the child prints the signals that
# it ignores.
ATTACH = """
import json, sys
from hyperruntime.host.inherited import ignored_signals
from hyperruntime.host.process import spawn_attached
process = spawn_attached([sys.executable, "-c", sys.argv[1]], {"ONLY": "this =\\n one"})
out, _ = process.communicate()
print(json.dumps({"ignored": sorted(n.name for n in ignored_signals()), "child": out.decode()}))
"""


@pytest.mark.parametrize("ignored", [(), ("HUP",), ("HUP", "INT", "QUIT")], ids=str)
def test_attached_programs_have_default_signal_handlers(ignored: tuple[str, ...]) -> None:
    show = (
        f"{SHOW}; import os; print({{n: v for n, v in os.environ.items() if n != 'LC_CTYPE'}}, "
        "os.getcwd())"
    )
    traps = "".join(f'trap "" {name}; ' for name in ignored)
    args = ["/bin/sh", "-c", f'{traps}exec "$@"', "sh", sys.executable, "-c", ATTACH, show]
    done = run_process(inherited.default_signals_args(args, os.environ))
    said = json.loads(done.stdout)
    assert said["ignored"] == [f"SIG{name}" for name in ignored]
    assert said["child"] == "[]\n{'ONLY': 'this =\\n one'} /\n"


@pytest.mark.parametrize("ignored", [frozenset(), frozenset({signal.SIGINT})], ids=str)
def test_a_missing_attached_program_raises_an_error(
    monkeypatch: pytest.MonkeyPatch, ignored: frozenset[signal.Signals]
) -> None:
    monkeypatch.setattr("hyperruntime.host.process.ignored_signals", lambda: ignored)
    with pytest.raises(FileNotFoundError, match="/no/such/program"):
        spawn_attached(["/no/such/program"], {})


def test_a_run_directory_must_belong_to_this_user_alone(tmp_path: Path) -> None:
    own, open_to_all, link = tmp_path / "own", tmp_path / "open", tmp_path / "link"
    own.mkdir(0o700)
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    link.symlink_to(own)
    assert inherited.is_own_directory(str(own))
    for path in (open_to_all, link, tmp_path / "missing"):
        assert not inherited.is_own_directory(str(path))
    assert inherited.own_runtime_directory({"XDG_RUNTIME_DIR": str(own)}) == str(own)
    assert inherited.own_runtime_directory({"XDG_RUNTIME_DIR": str(link)}) == os.path.realpath(own)
    assert inherited.own_runtime_directory({"XDG_RUNTIME_DIR": str(open_to_all)}) in (
        "",
        f"/run/user/{os.geteuid()}",
    )
