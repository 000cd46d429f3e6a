"""The first minute: ``pipx run`` of the wheel, for an ordinary user who has no container engine but
bubblewrap.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.machine.test_packaging import build_wheel

# All that the user has: Debian's essential programs (utils), bubblewrap, git, patch and Python.
PROGRAMS = (
    "bwrap",
    "git",
    "patch",
    "python3",
    "tar",
    "sh",
    "bash",
    "env",
    "cat",
    "ls",
    "mkdir",
    "rm",
    "prlimit",
    "unshare",
)
NOWHERE = "http://127.0.0.1:9"  # the port `discard`, which nothing serves


@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() == 0, reason="bubblewrap is for ordinary users; the track of one runs it"
)
@pytest.mark.timeout(1200)
def test_pipx_runs_the_demo_on_bubblewrap_alone_and_offline_once_it_is_installed(
    tmp_path: Path,
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in PROGRAMS:
        found = shutil.which(name, path="/usr/bin:/bin:/usr/sbin:/sbin")
        assert found, f"{name} is not on this machine"
        (programs / name).symlink_to(found)
    wheel = build_wheel(tmp_path)
    kept = ("PIP_", "SSL_CERT_", "REQUESTS_CA_BUNDLE", "http", "HTTP", "no_proxy", "NO_PROXY")
    env = {name: value for name, value in os.environ.items() if name.startswith(kept)}
    env |= {
        "HOME": str(tmp_path),
        "PATH": str(programs),
        "PIPX_HOME": str(tmp_path / "pipx"),
        "LANG": "C.UTF-8",
    }
    env["DOCKER_HOST"] = f"unix://{tmp_path}/no-daemon"
    run = [
        sys.executable,
        "-m",
        "pipx",
        "run",
        "--python",
        "/usr/bin/python3",
        "--spec",
        str(wheel),
        "hyperruntime",
    ]
    subprocess.run([*run, "--version"], check=True, env=env, cwd=tmp_path)  # it installs
    offline = {**env, "PIP_NO_INDEX": "1", "http_proxy": NOWHERE, "https_proxy": NOWHERE}
    demo = [*run, "demo", "--generations", "2", "--seed", "1"]
    done = subprocess.run(demo, env=offline, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ", bubblewrap " in done.stderr
    assert "the score went from " in done.stdout
    (resume,) = [
        line.removeprefix("resume:  ")
        for line in done.stdout.splitlines()
        if line.startswith("resume:")
    ]
    resumed = subprocess.run(
        ["sh", "-c", resume.replace(" 12", " 3")], env=offline, cwd=tmp_path, capture_output=True
    )
    # as printed, though `hyperrun` is not on PATH
    assert resumed.returncode == 0, resumed.stderr.decode()
    assert len(list(tmp_path.glob("outputs/generate_*/gen_*"))) == 4
