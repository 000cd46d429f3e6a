"""Messages of the daemon, and files of the machine, become one clear error per cause."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import hyperruntime as hr
from hyperruntime.errors import (
    EngineError,
    EngineUnavailableError,
    ImageNotFoundError,
    SpecError,
    UnsupportedOptionError,
    UserNotFoundError,
)
from hyperruntime.host.engine_program import NO_WORKDIR, shown_limits
from hyperruntime.host.process_tree import cgroup_paths, kernel_killed_in, memory_cgroups
from hyperruntime_docker.args import Settings
from hyperruntime_docker.client import refuse_remote, unreachable
from hyperruntime_docker.container import device_env, explain
from hyperruntime_docker.images import familiar

SPEC = hr.ContainerSpec(image="localhost/i:1", workdir="/w", user="someone")
DIGEST = "sha256:" + "ab" * 32


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("No such image: localhost/i:1", ImageNotFoundError, "docker pull localhost/i:1"),
        (
            "unable to find user who: no matching entries in passwd file",
            UserNotFoundError,
            "user='someone'",
        ),
        ("linux spec user: no matching entries in group file", UserNotFoundError, "user='someone'"),
        (f"x\n{NO_WORKDIR}\n", SpecError, "workdir='/w'"),
        (
            'invalid mount config for type "bind": bind source path does not exist: /a b',
            SpecError,
            "'/a b'",
        ),
        (
            'could not select device driver "nvidia" with capabilities: [[gpu]]',
            UnsupportedOptionError,
            "gpus",
        ),
        (
            "CDI device injection failed: unresolvable CDI devices a/b=c",
            UnsupportedOptionError,
            "a/b=c",
        ),
        (
            "[FATAL tini (7)] exec /bin/sh failed: No such file or directory",
            EngineError,
            "has no /bin/sh",
        ),
        (
            "runc create failed: exec: argument list too long",
            SpecError,
            "more than a command line holds",
        ),
        ("write /var/lib/docker/x: no space left on device", EngineError, "docker system df"),
        ("Container abc is not running", EngineError, "gone"),
        ("something new", EngineUnavailableError, "something new"),
        ("", EngineUnavailableError, "never answered"),
    ],
)
def test_a_failed_start_raises_the_error_for_its_cause(
    text: str, error: type[Exception], words: str
) -> None:
    found = explain(text, SPEC)
    assert type(found) is error
    assert words in str(found)


@pytest.mark.parametrize(
    ("reference", "listed"),
    [
        ("localhost/a/b", "localhost/a/b:latest"),
        ("127.0.0.1:5000/a", "127.0.0.1:5000/a:latest"),
        ("docker.io/library/debian:12", "debian:12"),
        ("docker.io/a/b", "a/b:latest"),
        (f"quay.io/a@{DIGEST}", f"quay.io/a@{DIGEST}"),
    ],
)
def test_references_are_normalised_as_the_daemon_lists_them(reference: str, listed: str) -> None:
    assert familiar(reference) == listed


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("('Connection aborted.', PermissionError(13, 'Permission denied'))", "group `docker`"),
        (
            "('Connection aborted.', FileNotFoundError(2, 'No such file or directory'))",
            "no daemon answers",
        ),
        (
            "Error: ('Connection aborted.', ConnectionRefusedError(111, 'Connection refused'))",
            "systemctl start docker",
        ),
        ("client version 1.20 is too old", "too old"),
    ],
)
def test_an_unreachable_daemon_has_a_cause_and_a_next_step(text: str, words: str) -> None:
    assert words in str(unreachable(text, "unix:///var/run/docker.sock"))


@pytest.mark.parametrize("where", ["ssh://me@there", "https://there:2376"])
def test_a_daemon_over_ssh_or_tls_is_refused(where: str) -> None:
    with pytest.raises(EngineUnavailableError, match="DOCKER_HOST"):
        refuse_remote(where)


def test_a_limit_counts_as_enforced_only_if_the_container_shows_it() -> None:
    assert shown_limits("memory 67108864\npids 100\ncpu 50000\nworks\n") == dict.fromkeys(
        ("memory_bytes", "pids", "cpus"), "cgroup"
    )
    assert shown_limits("memory 67108864\npids 100\ncpu 50000 100000\n")["cpus"] == "cgroup"
    unlimited = shown_limits("memory 9223372036854771712\npids max\ncpu -1\nworks\n")
    assert unlimited == dict.fromkeys(("memory_bytes", "pids", "cpus"), "no")


def test_the_environment_of_a_cdi_spec_is_used_for_execs(tmp_path: Path) -> None:
    device = {"name": "0", "containerEdits": {"env": ["ONE=a=b"]}}
    other = {"name": "1", "containerEdits": {"env": ["ONE=wrong"]}}
    spec = {
        "cdiVersion": "0.6.0",
        "kind": "nvidia.com/gpu",
        "containerEdits": {"env": ["ALL=x"]},
        "devices": [device, other],
    }
    (tmp_path / "a.json").write_text(json.dumps(spec))
    (tmp_path / "b.json").write_text(json.dumps({**spec, "kind": "other.com/gpu"}))
    (tmp_path / "broken.json").write_text("{")
    settings = Settings(cdi_dirs=(str(tmp_path),))
    assert device_env(("0",), settings) == {"ALL": "x", "ONE": "a=b"}
    assert device_env(("nvidia.com/gpu=0",), settings) == {"ALL": "x", "ONE": "a=b"}
    assert device_env(None, settings) == {}
    assert device_env("all", Settings(nvidia=True)) == {}


def test_an_oom_kill_is_read_from_the_cgroup_of_the_container(tmp_path: Path) -> None:
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 0\n")
    assert not kernel_killed_in(tmp_path)
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert kernel_killed_in(tmp_path)
    (tmp_path / "memory.oom_control").unlink()
    assert not kernel_killed_in(tmp_path)
    (tmp_path / "memory.events").write_text("low 0\noom 1\noom_kill 1\noom_group_kill 0\n")
    assert kernel_killed_in(tmp_path)
    assert cgroup_paths("4:memory:/no/such/cgroup\n0::/nor/this\n") == ()
    assert memory_cgroups(0) == ()


def test_the_driver_imports_no_sdk_before_its_first_use(tmp_path: Path) -> None:
    script = (
        "import hyperruntime_docker, sys; hyperruntime_docker.DockerDriver(); print('docker' in "
        "sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("False\n", "")
