"""The doctor reports unusual settings that a job inherited, and reports nothing in a usual
environment.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest

import hyperruntime
from hyperruntime.cli.machine.job_findings import Surroundings, job_findings, look_around
from hyperruntime.host.process import run_process

USUAL = Surroundings(
    environ={"LANG": "C.UTF-8", "HOME": "/home/a"}, limits={"nproc": 90000, "nofile": 20000}
)
LONG = "/scratch/" + "x" * 90


def test_a_usual_environment_has_no_findings() -> None:
    assert list(job_findings(USUAL)) == []


@pytest.mark.parametrize(
    ("change", "subject", "words", "ok"),
    [
        (
            {"environ": {"SLURM_JOB_ID": "7", "SLURM_MEM_PER_NODE": "3000"}},
            "Slurm",
            ("job 7", "3000 MB"),
            None,
        ),
        (
            {"limits": {"rss": 2**31, "locks": 1000}},
            "limits rss and locks",
            ("1000", "2147483648"),
            False,
        ),
        ({"limits": {"rss": 2**31}}, "limits rss and locks", ("RLIMIT_RSS is 2147483648",), None),
        (
            {"limits": {"rss": 100 * 2**40}},
            "limits rss and locks",
            ("RLIMIT_RSS is 109951162777600",),
            None,
        ),
        ({"limits": {"locks": 1000}}, "limits rss and locks", ("RLIMIT_LOCKS is 1000",), None),
        ({"limits": {"stack": None}}, "limit stack", ("unlimited",), None),
        ({"umask": 0o077}, "umask", ("0077",), None),
        ({"limits": {"nproc": 400}}, "limit nproc", ("400 processes", "limits.pids"), None),
        ({"limits": {"nofile": 256}}, "limit nofile", ("256 open files",), None),
        ({"limits": {"fsize": 2**30}}, "limit fsize", ("1.0 GiB",), None),
        ({"temporary": "/t", "noexec": True}, "TMPDIR", ("/t is mounted noexec",), None),
        ({"temporary": LONG}, "TMPDIR", ("too long for a socket",), None),
        ({"temporary": "/a b"}, "TMPDIR", ("with blanks",), None),
        ({"runtime_directory": ""}, "XDG_RUNTIME_DIR", ("not set", "/tmp"), None),
        (
            {"runtime_directory": "", "environ": {"XDG_RUNTIME_DIR": "/run/user/9"}},
            "XDG_RUNTIME_DIR",
            ("/run/user/9 is not a directory of this user",),
            None,
        ),
        ({"umask": 0o777}, "umask", ("0777",), False),
        (
            {"environ": {"BASH_ENV": "/x", "BASH_FUNC_ml%%": "() {"}},
            "BASH_ENV, 1 exported functions",
            (),
            None,
        ),
        (
            {"environ": {"LD_LIBRARY_PATH": "/x"}},
            "LD_LIBRARY_PATH",
            ("engines and containers do not get",),
            None,
        ),
        (
            {"environ": {"LD_LIBRARY_PATH": ":/x"}},
            "LD_LIBRARY_PATH",
            ("':/x' has an empty or relative",),
            None,
        ),
        ({"environ": {"PYTHONPATH": "/x"}}, "PYTHONPATH", ("before its own",), None),
        ({"environ": {"PYTHONPATH": "/x:"}}, "PYTHONPATH", ("'/x:' has an empty",), None),
        (
            {"environ": {"PYTHONPATH": "lib"}},
            "PYTHONPATH",
            ("'lib' has an empty or relative",),
            None,
        ),
        ({"environ": {"PATH": ":/bin"}}, "PATH", ("':/bin' has an empty or relative",), None),
        ({"environ": {"PATH": "/bin:bin"}}, "PATH", ("'/bin:bin' has an empty or relative",), None),
        ({"environ": {"LC_ALL": "C"}}, "locale", ("UTF-8",), None),
        ({"ignored": ("SIGHUP", "SIGINT")}, "signals", ("SIGHUP, SIGINT",), None),
    ],
    ids=str,
)
def test_each_unusual_setting_is_reported(
    change: dict[str, Any], subject: str, words: tuple[str, ...], ok: bool | None
) -> None:
    (found,) = job_findings(attrs.evolve(USUAL, **change))
    assert (found.subject, found.ok) == (subject, ok)
    for word in words:
        assert word in found.detail


@pytest.mark.parametrize(
    "change",
    [
        {"limits": {"nproc": 400}, "is_root": True},
        {"runtime_directory": "", "is_root": True},
        {"umask": 0o027},
        {"limits": {"stack": 8 * 2**20}},
        {"environ": {"LC_ALL": "de_DE.UTF-8", "LANG": "C"}},
    ],
    ids=str,
)
def test_harmless_settings_are_not_reported(change: dict[str, Any]) -> None:
    assert list(job_findings(attrs.evolve(USUAL, **change))) == []


def test_look_around_reads_the_settings_of_this_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    found = look_around()
    assert (found.temporary, found.is_root) == (str(tmp_path), os.geteuid() == 0)
    assert set(found.limits) == {"nproc", "nofile", "fsize", "stack", "rss", "locks"}


def test_look_around_works_without_a_temporary_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> str:
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.setattr("tempfile.gettempdir", fail)
    assert look_around().temporary == ""


def test_what_hyperrun_corrected_for_itself_is_still_reported() -> None:
    given = {
        "PATH": f"{os.environ['PATH']}:",
        "PYTHONPATH": f"{Path(hyperruntime.__file__).parents[1]}:",
        "LD_LIBRARY_PATH": ":/x",
    }
    show = "import os, json; from hyperruntime.host.python import *; make_safe(os.environ)"
    show += "; names = ('PATH', 'PYTHONPATH', 'LD_LIBRARY_PATH')"
    show += (
        "; print(json.dumps([{name: all[name] for name in names} for all in (os.environ, "
        "given_environment())]))"
    )
    done = run_process([sys.executable, "-P", "-c", show], env={**os.environ, **given}, cwd="/")
    now, before = json.loads(done.stdout)
    assert before == given
    assert all(now[name] != given[name] for name in given)
