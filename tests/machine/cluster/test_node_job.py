"""The job of a node: its script, its end, and what it leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import psutil
import pytest

from hyperruntime.cluster.config import ClusterConfig
from hyperruntime.cluster.head import Invitation
from hyperruntime.cluster.node_jobs import job_script
from hyperruntime.cluster.node_services import NodeSettings
from hyperruntime.host.process import ProcessResult, run_process
from hyperruntime.host.temporary import SCRATCH

ORPHAN = """
import subprocess, sys
from hyperruntime.cluster import node_job
sleep = "['sleep', '1000'], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL"
inner = f"import subprocess; print(subprocess.Popen({sleep}).pid)"


def serve(needs):
    print(subprocess.run([sys.executable, "-c", inner], capture_output=True, text=True).stdout, flush=True)
    return "done"


node_job._serve = serve
sys.exit(node_job.main())
"""


def ran(folder: Path, *setup: str, excluded: tuple[str, ...] = ()) -> ProcessResult:
    script = job_script(ClusterConfig(setup=setup), folder, "node-1", excluded)
    return run_process(["bash", "-c", script], timeout_s=120)


def end(folder: Path) -> Any:
    return json.loads((folder / "node-1.end").read_text())


def test_orphans_of_the_node_server_are_ended(tmp_path: Path) -> None:
    env = {**os.environ, SCRATCH: str(tmp_path)}
    needs = {"invitation": {"name": "node-1"}, "settings": attrs.asdict(NodeSettings())}
    (tmp_path / "node-1.json").write_text(json.dumps(needs))
    words = [sys.executable, "-c", ORPHAN, str(tmp_path / "node-1.json")]
    done = run_process(words, timeout_s=120, env=env)
    assert done.exit_code == 0, done
    assert not psutil.pid_exists(int(done.stdout.split()[0]))
    assert end(tmp_path) == {"code": 0, "how": "done"}


KILLED = ORPHAN.replace(
    '    return "done"',
    "    print(owned_directory().__enter__(), flush=True)\n    os.kill(os.getpid(), signal.SIGKILL)",
).replace(
    "import subprocess, sys",
    "import os, signal, subprocess, sys\nfrom hyperruntime.host.owner import owned_directory",
    1,
)


@pytest.mark.engine
def test_a_node_server_that_is_killed_without_its_guards_leaves_no_process_and_no_directory(
    tmp_path: Path, runtime_name: str
) -> None:
    env = {**os.environ, SCRATCH: str(tmp_path)}
    settings = attrs.asdict(NodeSettings(runtime=runtime_name))
    needs = {"invitation": {"name": "node-1"}, "settings": settings}
    (tmp_path / "node-1.json").write_text(json.dumps(needs))
    words = [sys.executable, "-c", KILLED, str(tmp_path / "node-1.json")]
    done = run_process(words, timeout_s=120, env=env)
    orphan, directory = done.stdout.decode().split()
    assert done.exit_code == 128 + signal.SIGKILL, done
    assert not psutil.pid_exists(int(orphan))
    assert not Path(directory).exists()
    assert Path(directory).parent == tmp_path
    assert b"the node server was killed by signal 9" in done.stderr
    assert end(tmp_path) == {"code": 128 + signal.SIGKILL, "how": "failed"}


@pytest.mark.parametrize(
    ("setup", "code", "words"),
    [
        (("module-that-is-missing load x",), 127, "module-that-is-missing"),
        (("true", "false", "echo on >&2"), 1, ""),
        (("echo no module >&2; exit 3",), 3, "no module"),
        (("if false; then", "true", "fi", "false || exit 4"), 4, ""),
    ],
)
def test_a_line_of_the_set_up_that_fails_ends_the_job(
    setup: tuple[str, ...], code: int, words: str, tmp_path: Path
) -> None:
    done = ran(tmp_path, *setup)
    assert done.exit_code == code
    assert end(tmp_path) == {"code": code, "how": "failed"}
    said = (tmp_path / "node-1.err").read_text()
    assert words in said
    assert "on\n" not in said


def test_a_job_on_a_host_that_is_excluded_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    name = os.uname().nodename
    ran(tmp_path, f"touch {tmp_path}/ran", excluded=("other", name))
    assert end(tmp_path) == {"code": 75, "how": "excluded"}
    assert (tmp_path / "node-1.host").read_text() == f"{name}\n"
    assert not (tmp_path / "ran").exists()


def test_a_job_that_begins_after_its_head_was_killed_runs_nothing_and_leaves_no_directory(
    tmp_path: Path,
) -> None:
    done = ran(tmp_path / "jobs", f"touch {tmp_path}/ran")
    assert done.exit_code != 0
    assert b"jobs" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_job_whose_head_is_gone_before_it_answers_ends_and_keeps_no_token(
    tmp_path: Path,
) -> None:
    certificate = tmp_path / "head.crt"
    words = ["openssl", "req", "-x509", "-nodes", "-newkey", "rsa:2048", "-subj", "/CN=x"]
    subprocess.run(
        [*words, "-keyout", "/dev/null", "-out", str(certificate)], check=True, capture_output=True
    )
    invitation = Invitation("node-1", ("127.0.0.1:1",), certificate.read_text(), "secret", 0.2, 1.0)
    needs = {"invitation": attrs.asdict(invitation), "settings": attrs.asdict(NodeSettings())}
    (tmp_path / "node-1.json").write_text(json.dumps(needs))
    done = ran(tmp_path)
    assert done.exit_code == 1
    assert end(tmp_path) == {"code": 1, "how": "failed"}
    assert "the head did not answer for 1 s" in (tmp_path / "node-1.err").read_text()
    assert not any(b"secret" in path.read_bytes() for path in tmp_path.iterdir())
