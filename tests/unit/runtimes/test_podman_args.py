"""How the driver calls Podman: arguments, environment, and errors for Podman's messages."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import attrs
import pytest

import hyperruntime as hr
from hyperruntime.driver import Launch
from hyperruntime.errors import EngineUnavailableError, ProcessLimitError
from hyperruntime.host.engine_program import CAPABILITIES
from hyperruntime.spec import Mount
from hyperruntime_podman import PodmanDriver, edge
from hyperruntime_podman.args import Settings, exec_args, probe_args, run_args
from hyperruntime_podman.container import PodmanContainer

SHARED = Settings(rootless=True, nofile=20000, nproc=400, limits={"pids": "rlimit"})
APART = attrs.evolve(SHARED, uids=65537, gids=65536)
LAUNCH = Launch(
    spec=hr.ContainerSpec(image="base", limits=hr.Limits(pids=60)),
    name="hyperruntime-1",
    labels={},
    exchange=Mount(source="/x", target="/run/hyperruntime"),
    private_dir="/private",
)


def test_the_complete_arguments_of_a_container() -> None:
    spec = attrs.evolve(LAUNCH.spec, workdir="/it's here")
    args = run_args(attrs.evolve(LAUNCH, spec=spec), APART)
    assert args == [
        *("run", "--rm", "--interactive", "--pull=never", "--name", "hyperruntime-1"),
        *("--entrypoint", "/bin/sh", "--log-driver", "none", "--http-proxy=false"),
        *("--systemd=false", "--no-healthcheck", "--pidfile", "/private/hyperruntime-1.pid"),
        *("--security-opt", "no-new-privileges", "--security-opt", "label=disable"),
        *("--cap-drop", "all"),
        *(word for name in CAPABILITIES for word in ("--cap-add", name)),
        *("--uidmap", "0:0:65537", "--gidmap", "0:0:65536", "--network", "none"),
        *("--ulimit", "nofile=20000:20000", "--ulimit", "nproc=60:60"),
        *("--mount", "type=bind,src=/x,dst=/run/hyperruntime,ro", "base", "-c"),
        *args[-3:],
    ]
    assert args[-1] == "/it's here", "Podman refuses a missing directory of the image"
    assert exec_args(attrs.evolve(LAUNCH, spec=spec), "1", SHARED)[-1] == "/it's here"
    assert run_args(LAUNCH, SHARED)[-3:] == ["base", "-c", "/bin/sh; exit $?"]
    more = attrs.evolve(LAUNCH.spec, limits=hr.Limits(pids=512))
    assert "nproc=400:400" in run_args(attrs.evolve(LAUNCH, spec=more), SHARED)
    trial = probe_args(APART, "/rootfs", [], "true", limited=False)
    assert trial[trial.index("--uidmap") + 1] == "0:0:65537"


@pytest.mark.parametrize(
    ("settings", "words"),
    [(SHARED, "all containers of this user together .* limits.pids=60"), (APART, "ulimit -u")],
)
@pytest.mark.parametrize(
    "said",
    [
        "/bin/sh: 1: Cannot fork",
        "/bin/sh: can't fork: Resource temporarily unavailable",
        "Error: runc create failed: unable to start container process: can't get final child's "
        "PID from pipe: EOF",
    ],
)
def test_an_exhausted_process_limit_has_a_clear_error(
    settings: Settings, words: str, said: str
) -> None:
    container = PodmanContainer.__new__(PodmanContainer)
    container._launch, container._settings = LAUNCH, settings
    error = container.explain_start_failure(said)
    assert isinstance(error, ProcessLimitError)
    with pytest.raises(ProcessLimitError, match=words):
        raise error
    assert "limits.pids" in error.next_step


def test_a_user_without_kernel_keys_left_is_told_so() -> None:
    container = PodmanContainer.__new__(PodmanContainer)
    container._launch, container._settings = LAUNCH, APART
    said = (
        "Error: runc create failed: unable to join session keyring: unable to create session "
        "key: disk quota exceeded"
    )
    error = container.explain_start_failure(f"{said}: OCI runtime error")
    with pytest.raises(
        EngineUnavailableError,
        match=r"none left \(`kernel\.keys\.maxkeys`\); end other containers, or",
    ):
        raise error


@pytest.fixture
def ordinary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Simulate an ordinary user without a login session; return the expected run directory."""
    owner = os.geteuid()
    monkeypatch.setattr(edge, "_RUN_FILES", str(tmp_path / "podman-run"))
    monkeypatch.setattr(edge, "own_runtime_directory", lambda _: "")
    monkeypatch.setattr(os, "geteuid", lambda: owner or 1)
    monkeypatch.setattr("os.lstat", as_owner(os.lstat, owner or 1))
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/of-another-node")
    return tmp_path / f"podman-run-{owner or 1}"


def as_owner(look: Any, owner: int) -> Any:
    """Return an ``lstat`` that reports this owner for every file."""

    def lstat(*args: Any, **options: Any) -> os.stat_result:
        status = look(*args, **options)
        return os.stat_result((*status[:4], owner, *status[5:10]))

    return lstat


def test_without_a_login_the_run_directory_does_not_depend_on_tmpdir(
    ordinary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("/one", "/two"):
        monkeypatch.setenv("TMPDIR", place)
        assert edge.environment()["XDG_RUNTIME_DIR"] == str(ordinary)
    assert ordinary.stat().st_mode & 0o777 == 0o700
    assert f"XDG_RUNTIME_DIR={ordinary}" in PodmanDriver().cleanup_args("a=b")


def test_a_run_directory_that_others_can_write_is_not_used(ordinary: Path) -> None:
    ordinary.mkdir()
    ordinary.chmod(0o777)
    assert edge.run_files() == {}
    assert edge.environment()["XDG_RUNTIME_DIR"] == "/run/user/of-another-node"


def test_podman_does_not_get_the_library_path_of_the_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/modules/lib")
    monkeypatch.setenv("CONTAINERS_CONF", "/kept")
    assert "LD_LIBRARY_PATH" not in edge.environment()
    assert edge.environment()["CONTAINERS_CONF"] == "/kept"
    args = PodmanDriver().cleanup_args("a=b")
    assert args[:2] == ("env", "-i")
    assert "CONTAINERS_CONF=/kept" in args
    assert "LD_LIBRARY_PATH" not in " ".join(args)


def test_a_program_in_podmans_namespace_gets_the_library_path_of_the_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This Python, which may need the library path of an environment module, reclaims the files of
    containers.
    """
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    assert edge.unshare_args()[-2:] == ("podman", "unshare")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/modules/lib")
    args = edge.unshare_args()
    assert args[:2] == ("env", "-i")
    assert args[-4:] == ("podman", "unshare", "env", "LD_LIBRARY_PATH=/opt/modules/lib")


def test_a_store_in_a_lost_login_session_has_a_next_step() -> None:
    step = edge.store_step(
        "Error: creating events dirs: mkdir /run/user/1007/libpod: permission denied"
    )
    for word in ("/run/user/1007", "enable-linger", "XDG_DATA_HOME"):
        assert word in step
    assert edge.store_step("Error: something else") == "see `hyperrun doctor`"


def test_a_service_has_the_network_of_its_container() -> None:
    """Which lets everybody listen on any port, and whose interfaces no other ``/sys`` shows."""
    main = PodmanContainer.__new__(PodmanContainer)
    main.id = "hyperruntime-main"
    args = run_args(attrs.evolve(LAUNCH, joins=main), APART)
    assert args[args.index("--network") + 1] == "container:hyperruntime-main"
    assert any(word.startswith("mask=/sys/class/net") for word in args)
    beside = hr.Service(name="db", image="db")
    spec = attrs.evolve(LAUNCH.spec, services=(beside,))
    args = run_args(attrs.evolve(LAUNCH, spec=spec), APART)
    assert args[args.index("--sysctl") + 1] == "net.ipv4.ip_unprivileged_port_start=0"
