"""Services of a container: what they share with it, their order, their ends; what is refused."""

from __future__ import annotations

import threading

import pytest

import hyperruntime as hr
from hyperruntime.errors import (
    ContainerStateError,
    ServiceError,
    SpecError,
    UnsupportedOptionError,
)
from hyperruntime.host.process import wait_until
from tests.bench.owner import start_owner

pytestmark = pytest.mark.engine

# answers each client with its own name
ANSWER = """
import socket, sys
with socket.create_server((sys.argv[1], 80)) as server:
    print("listening", flush=True)
    while True:
        with server.accept()[0] as client:
            client.sendall(sys.argv[1].encode())
"""
ASK = "import socket, sys; print(socket.create_connection((sys.argv[1], 80)).recv(99).decode())"
END_S = 60.0


def answering(name: str, image: str, **fields: object) -> hr.Service:
    """Return a service that listens on port 80 at its own address."""
    return hr.Service(
        name=name,
        image=image,
        entrypoint=["python3", "-c", ANSWER, name],
        ready=hr.Ready(tcp=80),
        **fields,  # type: ignore[arg-type]
    )


def spec_with(image: str, *services: hr.Service, **fields: object) -> hr.ContainerSpec:
    return hr.ContainerSpec(image=image, services=services, **fields)  # type: ignore[arg-type]


def asked(container: hr.Container, name: str) -> str:
    return container.exec(["python3", "-c", ASK, name]).check().stdout.decode().strip()


def service(container: hr.Container, name: str) -> hr.ServiceContainer:
    found = container.services[name]
    assert isinstance(found, hr.ServiceContainer)
    return found


def test_services_share_the_network_and_nothing_else(runtime: hr.Runtime, base_image: str) -> None:
    """Both listen on one port, each at its own address; all find all by name."""
    spec = spec_with(
        base_image,
        answering("one", base_image, aliases=["first"], env={"MODE": "test"}, workdir="/usr"),
        answering("two", base_image, directories=["/data/of two"]),
        host_names=["app"],
    )
    with runtime.container(spec) as container:
        one, two = service(container, "one"), service(container, "two")
        for client in (container, one, two):
            assert [asked(client, name) for name in ("one", "first", "two")] == [
                "one",
                "one",
                "two",
            ]
        container.exec(["touch", "/tmp/mine"]).check()
        container.spawn(["sleep", "4711"])
        for other in (one, two):
            assert other.exec(["test", "-e", "/tmp/mine"]).exit_code == 1
            assert b"4711" not in other.exec(["ps", "-eo", "args"]).check().stdout
        assert one.exec(["sh", "-c", "echo $MODE; pwd"]).stdout == b"test\n/usr\n"
        assert two.exec(["test", "-d", "/data/of two"]).exit_code == 0
        assert container.exec(["sh", "-c", "echo $MODE"]).stdout == b"\n"
        interfaces = "sed 's/:.*//' /proc/net/dev | tail -n +3; ls /sys/class/net 2>/dev/null"
        seen = one.exec(["sh", "-c", interfaces]).stdout.split()
        assert set(seen) == {b"lo"}
        assert one.log == b"listening\n"


def test_each_service_starts_when_those_that_it_needs_are_ready(
    runtime: hr.Runtime, base_image: str
) -> None:
    prepare = hr.Service(
        name="prepare",
        image=base_image,
        entrypoint=["sh", "-c", "sleep 0.5; echo prepared"],
        ready=hr.Ready(completed=True),
    )
    last = hr.Service(
        name="last",
        image=base_image,
        entrypoint=["python3", "-u", "-c", f"{ASK}; import time; time.sleep(600)", "first"],
        ready=hr.Ready(http="http://web:8000/etc/hostname"),
        after=["first", "prepare", "web"],
    )
    web = hr.Service(
        name="web",
        image=base_image,
        entrypoint=["python3", "-m", "http.server", "8000", "--bind", "web", "--directory", "/"],
        ready=hr.Ready(
            command=["python3", "-c", "import socket; socket.create_connection(('web', 8000))"]
        ),
    )
    spec = spec_with(base_image, last, web, prepare, answering("first", base_image))
    with runtime.container(spec) as container:
        found = service(container, "last")
        assert wait_until(lambda: found.log == b"first\n", END_S)
        assert service(container, "prepare").log == b"prepared\n"
        assert service(container, "prepare").process.poll() == 0


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("echo no such setting; exit 3", "ended with exit code 3"),
        ("echo no such setting; sleep 600", "nothing listens on port 99"),
        (f"echo no such setting; exec python3 -c '{ANSWER.replace('80', '99')}' 127.0.0.1", "another address only"),
    ],
)  # fmt: skip
def test_a_service_that_is_not_ready_is_an_error_with_its_log(
    program: str, why: str, runtime: hr.Runtime, base_image: str
) -> None:
    """And nothing is left of the group."""
    before = {one.record.id for one in runtime.containers()}
    broken = hr.Service(
        name="broken",
        image=base_image,
        entrypoint=["sh", "-c", program],
        ready=hr.Ready(tcp=99, timeout_s=1 if "exit" not in program else 60),
    )
    with pytest.raises(ServiceError, match="'broken'") as caught:
        runtime.container(spec_with(base_image, broken))
    assert why in caught.value.why
    assert "no such setting" in caught.value.log_tail

    def is_clean() -> bool:
        return {one.record.id for one in runtime.containers()} <= before

    assert wait_until(is_clean, END_S)


def test_the_end_of_a_service_is_an_event_and_that_of_the_container_ends_all(
    runtime: hr.Runtime, base_image: str
) -> None:
    spec = spec_with(base_image, answering("one", base_image), answering("two", base_image))
    container = runtime.container(spec)
    one, two = service(container, "one"), service(container, "two")
    ended = threading.Event()
    one.process.ended.listen(ended.set)
    one.process.close()
    assert ended.wait(END_S)
    assert asked(container, "two") == "two"
    assert one.exec(["true"]).exit_code == 0, "its container stays, for a look at its files"
    container.close()
    assert (one.closed.is_set, two.closed.is_set) == (True, True)
    with pytest.raises(ContainerStateError):
        two.exec(["true"])


def test_services_end_with_a_container_that_is_lost(runtime: hr.Runtime, base_image: str) -> None:
    container = runtime.container(spec_with(base_image, answering("one", base_image)))
    try:
        one = service(container, "one")
        container.live.remove()
        assert wait_until(lambda: one.closed.is_set, END_S)
    finally:
        container.close()


def test_services_are_refused_by_name_where_they_cannot_be(
    runtime: hr.Runtime, base_image: str
) -> None:
    one = hr.Service(name="one", image=base_image, entrypoint=["sleep", "600"])
    with pytest.raises(UnsupportedOptionError, match=r"services.*network"):
        runtime.container(spec_with(base_image, one, network="host"))
    mount = hr.Mount(source="/etc/hostname", target="/etc/hosts")
    with pytest.raises(SpecError, match=r"Mount\.target"):
        runtime.container(spec_with(base_image, one, mounts=[mount]))
    with runtime.container(spec_with(base_image, one)) as container:
        with pytest.raises(UnsupportedOptionError, match="services"):
            container.snapshot()
        with pytest.raises(UnsupportedOptionError, match="services"):
            container.fork()


def test_a_pool_gives_each_lease_new_services(runtime: hr.Runtime, base_image: str) -> None:
    config = hr.PoolConfig(spec=spec_with(base_image, answering("one", base_image)))
    with hr.open_pool(config, runtime) as pool:
        for _ in range(2):
            with pool.lease() as lease:
                assert lease.exec(["python3", "-c", ASK, "one"]).stdout == b"one\n"


def test_nothing_is_left_of_services_when_their_owner_is_killed(
    runtime: hr.Runtime, base_image: str
) -> None:
    with start_owner(runtime.name, base_image, 1, "open", services=2) as owner:
        owner.wait_for("open")
        owner.kill()
        last = ""

        def is_clean() -> bool:
            nonlocal last
            last = owner.left(runtime)[1]
            return not last

        assert wait_until(is_clean, 2 * END_S, 0.1), last
