"""PostgreSQL and Redis as services: how long until they are ready, beside what they take alone.

    scripts/as-test-user .venv/bin/python -m tests.bench.services [--runtime podman] [--rounds 5]
        [--tar FILE] [--json FILE]

Their image is made by the bootstrap of this project, from Debian's packages. A server "alone" is
started by hand in a container that runs already, and is asked in a loop by a shell beside it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import attrs

from hyperruntime import (
    Container,
    ContainerSpec,
    Limits,
    Ready,
    Runtime,
    Service,
    ServiceContainer,
    open_runtime,
)
from hyperruntime.images.bootstrap import build_rootfs
from tests.bench.measure import Row
from tests.bench.page import report

IMAGE = "localhost/hyperruntime-test/servers:latest"
PACKAGES = ("python3", "procps", "postgresql", "redis-server")
MOST = 1.3
# PostgreSQL refuses to run as root; a user makes new files for it in /tmp
POSTGRES = """
set -e
cd /tmp; PATH=/usr/lib/postgresql/15/bin:$PATH
initdb --auth trust --username me data >/dev/null
exec postgres -D data -c listen_addresses="$1" -c unix_socket_directories=/tmp
"""
REDIS = ("redis-server", "--protected-mode", "no", "--save", "", "--bind")


@attrs.frozen
class Server:
    """A server: its program without its address, what asks it, and what shows that it works."""

    program: tuple[str, ...]
    ask: tuple[str, ...]
    use: tuple[str, ...]
    user: str | None = None

    def service(self, name: str, limits: Limits) -> Service:
        ready = Ready(command=[*self.ask, name])
        program = [*self.program, name]
        return Service(
            name=name, image=IMAGE, entrypoint=program, user=self.user, ready=ready, limits=limits
        )


SERVERS = {
    "postgresql": Server(
        ("sh", "-c", POSTGRES, "postgres"),
        ("pg_isready", "--quiet", "--username", "me", "--host"),
        ("psql", "--username", "me", "--tuples-only", "--command", "select 40 + 2", "postgres", "--host"),
        "postgres",
    ),
    "redis": Server(
        (*REDIS,),
        ("sh", "-c", '[ "$(redis-cli -h "$0" ping 2>/dev/null)" = PONG ]'),
        ("sh", "-c", 'redis-cli -h "$0" incr n'),
    ),
}  # fmt: skip


def ensure_image(runtime: Runtime, tar: str | None) -> None:
    """Make the image of the servers, if the engine does not have it."""
    if runtime.images.exists(IMAGE):
        return
    with tempfile.TemporaryDirectory() as folder:
        made = Path(tar or f"{folder}/servers.tar")
        if tar is None:
            build_rootfs("servers", made, lambda line: print(line, file=sys.stderr), PACKAGES)
        runtime._driver.images.load_rootfs(made, IMAGE)


def alone_s(runtime: Runtime, server: Server, limits: Limits) -> float:
    """Return how long a server takes that is started by hand, by a clock in its container."""
    script = (
        'begin=$(date +%s%N); "$@" >/tmp/log 2>&1 & '
        f"until {' '.join(map(quoted, server.ask))} 127.0.0.1 2>/dev/null; do sleep 0.01; done; "
        "echo $(($(date +%s%N) - begin))"
    )
    spec = ContainerSpec(image=IMAGE, user=server.user, limits=limits)
    with runtime.container(spec) as container:
        args = ["sh", "-c", script, "alone", *server.program, "127.0.0.1"]
        return int(container.exec(args).check().stdout) / 1e9


def quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


def works(container: Container, name: str, server: Server) -> bool:
    args = [*server.use, name]
    return container.exec(args).check().stdout.strip() in (b"42", b"1")


def measure(given: argparse.Namespace) -> list[Row]:
    rows = list[Row]()
    with open_runtime(given.runtime) as runtime:
        ensure_image(runtime, given.tar)
        enforced = runtime.info.limits.get("pids", "no") != "no"
        limits = Limits() if enforced else Limits(pids=None)
        plain, whole = list[float](), list[float]()
        ours = {name: list[float]() for name in SERVERS}
        theirs = {name: list[float]() for name in SERVERS}
        services = tuple(one.service(name, limits) for name, one in SERVERS.items())
        for _ in range(given.rounds):
            begin = time.perf_counter()
            runtime.container(ContainerSpec(image=IMAGE, limits=limits)).close()
            plain.append(time.perf_counter() - begin)
            for name, server in SERVERS.items():
                theirs[name].append(alone_s(runtime, server, limits))
                spec = ContainerSpec(
                    image=IMAGE, limits=limits, services=(server.service(name, limits),)
                )
                with runtime.container(spec) as container:
                    beside = container.services[name]
                    assert isinstance(beside, ServiceContainer)
                    ours[name].append(beside.ready_s)
            begin = time.perf_counter()
            spec = ContainerSpec(image=IMAGE, limits=limits, services=services)
            with runtime.container(spec) as container:
                whole.append(time.perf_counter() - begin)
                assert all(works(container, name, one) for name, one in SERVERS.items())
    for name in SERVERS:
        mine, alone = statistics.median(ours[name]), statistics.median(theirs[name])
        rows.append(
            Row(
                what=f"{name}: from its start until it is known to be ready",
                value=mine,
                unit="s",
                compared_to=f"started and asked by hand: {alone:.3f} s",
                ratio=mine / alone,
                wanted=f"at most {MOST}x",
                holds=mine <= MOST * alone,
            )
        )
    rows.append(
        Row(
            what="a container with both, ready",
            value=statistics.median(whole),
            unit="s",
            compared_to=f"a container alone: {statistics.median(plain):.3f} s",
        )
    )
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.services", description=__doc__)
    parser.add_argument("--runtime", default="podman", help="engine")
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured")
    parser.add_argument("--tar", metavar="FILE", help="root file system of the servers")
    parser.add_argument("--json", metavar="FILE", help="write the rows to this file")
    given = parser.parse_args()
    return report(f"PostgreSQL and Redis as services, {given.runtime}", measure(given), given.json)


if __name__ == "__main__":
    sys.exit(main())
