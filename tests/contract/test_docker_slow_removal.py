"""A Docker daemon that removes a container late fails no caller, and leaves nothing in the end."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import attrs
import pytest

import hyperruntime as hr
from hyperruntime.host import engine_limits
from hyperruntime.host.process import pid_namespace, wait_until
from hyperruntime_docker.client import endpoint
from tests.doubles.slow_socket import slow_socket

pytestmark = [pytest.mark.engine, pytest.mark.docker]

_GONE_S = 120.0


def test_close_returns_while_a_slow_daemon_removes_the_container(
    base_image: str, engine_command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = {"end": 0.2, "close": 1.0}
    limits = {
        verb: attrs.evolve(limit, base_s=short[verb], most_s=short[verb])
        if verb in short
        else limit
        for verb, limit in engine_limits.LIMITS.items()
    }
    monkeypatch.setattr(engine_limits, "LIMITS", limits)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    where = endpoint().removeprefix("unix://")
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as folder,
        slow_socket(Path(folder, "s"), where) as daemon,
    ):
        monkeypatch.setenv("DOCKER_HOST", f"unix://{daemon.path}")
        with hr.open_runtime("docker") as runtime:
            container = runtime.container(hr.ContainerSpec(image=base_image))
            first = engine_command.init_pid(container.name)
            inode = pid_namespace(first)
            inside = [
                int(name)
                for name in os.listdir("/proc")
                if name.isdigit() and pid_namespace(name) == inode
            ]
            for pid in inside:
                os.kill(pid, signal.SIGSTOP)  # so nothing in it sees the end of its input
            daemon.held, daemon.delay_s = "DELETE", 6.0
            container.close()
            assert runtime.late_removals == 1
            assert wait_until(
                lambda: not any(pid_namespace(pid) == inode for pid in inside), _GONE_S
            )
            assert wait_until(lambda: not runtime.left_containers, _GONE_S)
        assert container.name not in engine_command.containers()
