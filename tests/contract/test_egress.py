"""A network with a list, with the programs that people use, beyond the conformance suite."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import hyperruntime as hr
from hyperruntime.errors import PoolError
from hyperruntime.host.process import wait_until
from hyperruntime.rollout.agent.agent import AgentResult, AgentTask
from hyperruntime.rollout.run.options import RolloutOptions
from hyperruntime.rollout.run.runner import Parts, run_rollouts
from hyperruntime.rollout.run_files.run_dir import read_trajectories
from tests.contract.pools import make_pool
from tests.doubles.episodes import FakeModel
from tests.doubles.fake_runtime import make_agent_repository
from tests.doubles.packages import (
    HOST,
    INDEX_PASSWORD,
    PackageIndex,
    make_repository,
    make_wheel,
    serve_packages,
)
from tests.runs import failures, start

pytestmark = pytest.mark.engine

KILL_FORWARDER = r"""
import os
for pid in filter(str.isdigit, os.listdir("/proc")):
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        if b"/egress" + b"-" in file.read():
            os.kill(int(pid), 9)
"""
HOLD = """
import os, socket, time
proxy = int(os.environ["http_proxy"].rpartition(":")[2])
held = []
for _ in range(200):
    client = socket.create_connection(("127.0.0.1", proxy))
    client.sendall(b"GET http://slow.test:%d/ HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n" % int(os.environ["PORT"]))
    held.append(client)
print("held", flush=True)
time.sleep(600)
"""
ASK = """
import os, urllib.request
for _ in range(20):
    print(urllib.request.urlopen(os.environ["URL"]).read().decode(), end="")
"""


@pytest.fixture(scope="module")
def dev(runtime: hr.Runtime) -> str:
    return runtime.images.ensure("dev")


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PackageIndex]:
    folder = tmp_path_factory.mktemp("packages")
    with serve_packages(folder) as index:
        make_wheel(index.files, "needed", "1.0", "also-needed")
        make_wheel(index.files, "also_needed", "2.0")
        (folder / "git").mkdir()
        make_repository(folder / "git" / "code.git", {"file": "content\n"})
        yield index


def listed(packages: PackageIndex) -> hr.Egress:
    return hr.Egress(allow=(f"{HOST}:{packages.port}",), hosts={HOST: "127.0.0.1"})


def test_pip_and_git_reach_a_server_by_name_and_nothing_else(
    runtime: hr.Runtime, dev: str, packages: PackageIndex
) -> None:
    with runtime.container(hr.ContainerSpec(image=dev, network=listed(packages))) as container:
        container.put(packages.certificate, "/tmp/authority.pem")
        index = f"https://user:{INDEX_PASSWORD}@{HOST}:{packages.port}/simple"
        pip = ["pip", "download", "--quiet", "--cert", "/tmp/authority.pem", "-d", "/tmp/got"]
        container.exec([*pip, "-i", index, "needed"], timeout_s=300).check()
        assert sorted(container.listdir("/tmp/got")) == [
            "also_needed-2.0-py3-none-any.whl", "needed-1.0-py3-none-any.whl",
        ]  # fmt: skip
        env = {"GIT_SSL_CAINFO": "/tmp/authority.pem"}
        url = f"https://{HOST}:{packages.port}/git/code.git"
        clone = ["git", "clone", "--quiet", url, "/tmp/code"]
        container.exec(clone, env=env, timeout_s=300).check()
        assert container.read_file("/tmp/code/file") == b"content\n"
        other = ["git", "clone", "--quiet", "https://github.com/git/git.git", "/tmp/other"]
        refused = container.exec(other, env=env, timeout_s=300)
        assert refused.exit_code != 0
        assert b"403" in refused.stderr
        reached = {(one.host, bool(one.refused)) for one in container.connections}
        assert reached == {(HOST, False), ("github.com", True)}


def test_a_killed_forwarder_comes_back_with_the_next_command(
    runtime: hr.Runtime, dev: str, packages: PackageIndex
) -> None:
    asks = ["python3", "-c", f"import urllib.request as u; u.urlopen('http://{HOST}/')"]
    with runtime.container(hr.ContainerSpec(image=dev, network=listed(packages))) as container:
        for _ in range(3):
            container.exec(["python3", "-c", KILL_FORWARDER]).check()
            way = container._way_out._way
            assert way is not None
            assert wait_until(lambda way=way: bool(way.ended), 60)  # type: ignore[misc]
            assert b"403" in container.exec(asks).stderr


def test_every_command_has_the_list_and_a_variable_of_the_spec_wins(
    runtime: hr.Runtime, dev: str, packages: PackageIndex
) -> None:
    spec = hr.ContainerSpec(image=dev, network=listed(packages), env={"no_proxy": "mine.test"})
    show = 'printf "%s %s" "$HTTPS_PROXY" "$no_proxy"'
    with runtime.container(spec) as container:
        proxy = container.exec(["sh", "-c", show]).stdout
        assert proxy.startswith(b"http://127.0.0.1:")
        assert proxy.endswith(b" mine.test")
        with container.spawn(["sh", "-c", show]) as process:
            assert process.wait().stdout == proxy
        with container.shell() as shell:
            assert shell.run(show).stdout == proxy
        with container.terminal(["sh", "-c", show]) as terminal:
            assert b"".join(iter(terminal.read, b"")) == proxy


async def test_a_slot_has_its_list_until_its_lease_ends(
    runtime: hr.Runtime, dev: str, packages: PackageIndex
) -> None:
    show = ["sh", "-c", 'printf %s "$http_proxy"']
    async with make_pool(runtime, dev, slots_per_container=1, max_containers=1) as pool:
        async with pool.lease() as lease:
            assert (await lease.exec(show)).stdout == b""
            await lease.set_egress(listed(packages))
            assert (await lease.exec(show)).stdout
            since = time.time()
            asks = f"import urllib.request as u; u.urlopen('http://{HOST}/')"
            await lease.exec(["python3", "-c", asks])
            (noted,) = await lease.connections(since)
            assert noted.host == HOST
        async with pool.lease() as lease:
            assert (await lease.exec(show)).stdout == b""
    if runtime.info.users:
        async with make_pool(runtime, dev, slots_per_container=2) as pool, pool.lease() as lease:
            with pytest.raises(PoolError, match="shares its container"):
                await lease.set_egress(listed(packages))


@pytest.mark.slow
def test_a_container_that_stalls_all_its_connections_does_not_stop_another(
    runtime: hr.Runtime, dev: str
) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=512) as server:
        port = server.getsockname()[1]
        kept = []

        def serve() -> None:
            with suppress(OSError):
                while True:
                    client, _ = server.accept()
                    first = client.recv(65536)
                    if b"slow.test" in first:
                        kept.append(client)
                        continue
                    with client:
                        client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

        threading.Thread(target=serve, daemon=True).start()
        names = ("slow.test", "quick.test")
        egress = hr.Egress(
            allow=tuple(f"{name}:{port}" for name in names), hosts=dict.fromkeys(names, "127.0.0.1")
        )
        spec = hr.ContainerSpec(image=dev, network=egress)
        env = {"URL": f"http://quick.test:{port}/"}

        with (
            runtime.container(spec) as quick,
            runtime.container(spec) as hostile,
            hostile.spawn(["python3", "-c", HOLD], env={"PORT": str(port)}),
        ):
            assert wait_until(lambda: len(kept) >= 199, 120)
            done = quick.exec(["python3", "-c", ASK], env=env, timeout_s=250).check()
            assert done.stdout == b"ok" * 20
        for client in kept:
            client.close()


def test_the_records_of_a_generation_have_its_connections(
    runtime: hr.Runtime, base_image: str, tmp_path: Path
) -> None:
    asks = (
        "import contextlib, urllib.request\n"
        "with contextlib.suppress(OSError): urllib.request.urlopen('http://evil.test/')\n"
        "improve()"
    )
    agent = make_agent_repository(tmp_path / "agent", {1: asks})
    summary = start(
        runtime, tmp_path, agent=str(agent), max_generation=1, allow=("a.test",), image=base_image
    )
    assert failures(summary) == [None, None]
    lines = Path(summary.run_dir, "gen_1", "egress.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    assert [(one["step"], one["host"], one["refused"]) for one in found] == [
        ("agent", "evil.test", "evil.test is not in the list")
    ]
    assert not Path(summary.run_dir, "gen_initial", "egress.jsonl").exists()


async def asking(task: AgentTask) -> AgentResult:
    """Ask a server of the list, and another one twice."""
    for name in ("a.test", "b.test", "b.test"):
        ask = f"python3 -c \"import urllib.request as u; u.urlopen('http://{name}/')\""
        await task.tool_handler("bash", {"command": ask}, name)
    return AgentResult(messages=task.messages, turns=1, tool_calls=3, stop_reason="finished")


def test_the_record_of_a_trajectory_has_its_connections(
    runtime: hr.Runtime, base_image: str, tmp_path: Path
) -> None:
    options = RolloutOptions(
        environment="toy",
        max_items=1,
        attempts=1,
        allow=("a.test",),
        container=hr.ContainerSpec(image=base_image),
    )
    parts = Parts(model=FakeModel(), agent=asking)
    asyncio.run(run_rollouts(runtime, options, run_dir=tmp_path / "run", parts=parts))
    (found,) = read_trajectories(tmp_path / "run")
    assert [(one["host"], one["count"]) for one in found.connections] == [
        ("a.test", 1),
        ("b.test", 2),
    ]
    assert "cannot be resolved" in found.connections[0]["refused"]
    assert found.connections[1]["refused"] == "b.test is not in the list"


def test_a_service_beside_a_list_is_reached_directly_and_needs_no_python(
    runtime: hr.Runtime, base_image: str, busybox_image: str
) -> None:
    web = hr.Service(
        name="web",
        image=busybox_image,
        entrypoint=["busybox", "httpd", "-f", "-p", "127.0.0.2:80", "-h", "/etc"],
        ready=hr.Ready(tcp=80),
    )
    egress = hr.Egress(allow=("pypi.org",))
    spec = hr.ContainerSpec(image=base_image, network=egress, services=(web,))
    ask = "import urllib.request as u; print(u.urlopen('http://web/hosts').status)"
    with runtime.container(spec) as container:
        assert container.exec(["python3", "-c", ask]).check().stdout == b"200\n"
        assert container.services["web"].exec(["sh", "-c", "printf %s $http_proxy"]).stdout == b""
        assert container.connections == ()
