"""Who listens to a container's connections never holds up its end."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import hyperruntime as hr
from hyperruntime.egress import container_egress
from hyperruntime.egress.container_egress import EgressWay
from hyperruntime.egress.proxy import Connection
from hyperruntime.errors import ContainerStateError
from hyperruntime.exec.options import ExecOptions
from hyperruntime.host.process import wait_until

ONE = Connection(container="box", host="pypi.org", port=443)


def made(folder: Path) -> EgressWay:
    """Return the egress of a container in which nothing runs."""

    def run(args: list[str], options: ExecOptions) -> hr.ExecResult:
        return hr.ExecResult(args=tuple(args), exit_code=127, not_executed=True)

    spec = hr.ContainerSpec(image="base")
    mount = hr.Mount(source=str(folder), target="/run/x")
    return EgressWay(spec, "box", "podman", run, lambda group: True, mount)


def test_a_listener_gets_each_connection_and_ends_with_the_container(tmp_path: Path) -> None:
    way = made(tmp_path)
    heard: list[str] = []

    def listen(connection: Connection) -> None:
        heard.append(connection.host)
        raise SystemExit(1)  # of a careless caller: the next connection is told nevertheless

    way.listen(listen)
    way._heard(ONE)
    way._heard(ONE)
    way.close()
    assert heard == ["pypi.org"] * 2
    assert way._listening is not None
    assert wait_until(lambda: not way._listening or not way._listening.is_alive(), 60)


def test_a_listener_that_blocks_does_not_hold_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container_egress, "_CALL_S", 0.05)
    monkeypatch.setattr(container_egress, "_MOST_KEPT", 1)
    way = made(tmp_path)
    blocked = threading.Event()

    def block(connection: Connection) -> None:
        blocked.wait()

    way.listen(block)
    for _ in range(5):
        way._heard(ONE)
    way.close()
    blocked.set()
    with pytest.raises(ContainerStateError, match="is closed"):
        way.set(hr.Egress(allow=("pypi.org",)))


def test_a_list_that_cannot_be_used_is_not_kept(tmp_path: Path) -> None:
    way = made(tmp_path)
    with pytest.raises(hr.HyperRuntimeError, match="there is no python3 in the image"):
        way.set(hr.Egress(allow=("pypi.org",)))
    assert way.egress is None
    assert way.env() == {}
    way.close()
