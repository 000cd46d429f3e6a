"""A Docker daemon that removes a container late fails no caller, and leaves nothing in the end."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

import hyperruntime as hr
from hyperruntime.host.process import wait_until
from hyperruntime_docker.client import endpoint
from tests.contract.test_slow_removal import members_of, shorten_limits
from tests.doubles.slow_socket import slow_socket

pytestmark = [pytest.mark.engine, pytest.mark.docker]

_GONE_S = 120.0


def test_close_returns_while_a_slow_daemon_removes_the_container(
    base_image: str, engine_command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten_limits(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with slow_socket(endpoint().removeprefix("unix://")) as daemon:
        monkeypatch.setenv("DOCKER_HOST", daemon.address)
        with hr.open_runtime("docker") as runtime:
            container = runtime.container(hr.ContainerSpec(image=base_image))
            inside = members_of(engine_command.init_pid(container.name))
            for pid in inside:
                os.kill(pid, signal.SIGSTOP)  # so nothing in it sees the end of its input
            daemon.held, daemon.delay_s = "DELETE", 6.0
            container.close()
            assert runtime.late_removals == 1
            assert wait_until(lambda: not any(map(psutil.pid_exists, inside)), _GONE_S)
            assert wait_until(lambda: not runtime.left_containers, _GONE_S)
        assert container.name not in engine_command.containers()
