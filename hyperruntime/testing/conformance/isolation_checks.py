"""Checks of the safe defaults: no network, no dangerous capabilities, nothing of the host; and of
what services share.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import attrs

from hyperruntime.container import Container
from hyperruntime.errors import UnsupportedOptionError
from hyperruntime.host.process import DEVNULL, kill_group, spawn
from hyperruntime.reclaim.trees import reclaim_trees
from hyperruntime.run_as import RunAs
from hyperruntime.services.group import ServiceContainer
from hyperruntime.spec import Mount, Ready, Service
from hyperruntime.testing.conformance.check import check, expect, expect_equal, expect_soon
from hyperruntime.testing.conformance.context import (
    Context,
    fields_of,
    host_processes,
    interfaces,
    left_of,
    marker,
    processes,
    shell,
)

REAPED_S = 5.0
# Capabilities that a root shell in a container does not need. Source: linux/capability.h.
DANGEROUS = {
    "DAC_READ_SEARCH": 2,
    "NET_ADMIN": 12,
    "NET_RAW": 13,
    "SYS_MODULE": 16,
    "SYS_RAWIO": 17,
    "SYS_PTRACE": 19,
    "SYS_ADMIN": 21,
    "SYS_BOOT": 22,
    "SYS_TIME": 25,
    "MKNOD": 27,
    "MAC_ADMIN": 33,
    "SYSLOG": 34,
    "BPF": 39,
}
# Makes files with special bits, and directories that only the owner can enter. One owner is another
# user, if possible.
_WRITE_SPECIAL = """
cd "$1" && mkdir shut other && cp /bin/sh shut/shell && cp /bin/sh other/shell || exit
chown 12345:12345 other/shell other 2>/dev/null
chmod 6755 shut/shell other/shell && mkfifo shut/fifo && chmod 7777 shut/fifo && chmod 0 shut && chmod 2700 other
"""
_LIST_STATES = 'for p in /proc/[0-9]*; do read -r line 2>/dev/null <"$p/stat" && echo "$line"; done'


_SERVICE = "echo ready >/file-of-service; echo said; sleep 97531"
_OWN_NETWORK = ["readlink", "/proc/self/ns/net"]
_ALL_PROCESSES = 'cat /proc/[0-9]*/cmdline | tr "\\0" " "'


@check("isolation.no-host-environment", when="alone")  # it changes the environment of this process
def no_host_environment(context: Context) -> None:
    """No variable of the host's environment reaches a container, proxies included."""
    secret = secrets.token_hex(8)
    proxies = dict.fromkeys(("http_proxy", "https_proxy"), f"http://{secret}.invalid:3128")
    known = {**proxies, "no_proxy": f"localhost,127.0.0.1,{secret}"}
    capitals = {name.upper(): value for name, value in known.items()}
    given = {"HYPERRUNTIME_CONFORMANCE": secret, **known, **capitals}
    with patch.dict(os.environ, given), context.start() as container:
        own = container.exec(["env"]).stdout.decode(errors="replace")
        all_of_them = shell(container, "cat /proc/[0-9]*/environ 2>/dev/null").stdout.decode(
            errors="replace"
        )
    expect(secret not in own, "a variable of the host is in a command's environment")
    expect(
        secret not in all_of_them,
        "a variable of the host is in the environment of a process in the container",
    )


@check("isolation.environment-hidden")
def environment_hidden(context: Context) -> None:
    """The spec's environment is on no command line, neither on the host nor in the container."""
    secret = f"key-{secrets.token_hex(8)}"
    with context.start(env={"API_KEY": secret}) as container:
        expect_equal(
            shell(container, "echo $API_KEY").stdout, f"{secret}\n".encode(), "the variable"
        )
        expect_equal(host_processes(secret), [], "command lines of the host with its value")
        expect_equal(
            left_of(container, secret), [], "command lines in the container with its value"
        )


@check("isolation.no-host-files")
def no_host_files(context: Context) -> None:
    """The host's files are not visible: home, current directory and temporary files."""
    with _canaries(context) as paths:
        for path in paths:
            seen = shell(context.container, 'cat "$1" 2>/dev/null', str(path)).stdout
            expect_equal(seen, b"", f"content of the host's {path}")
        with context.start(workdir="/") as container:
            for path in paths:
                expect_equal(
                    shell(container, 'cat "$1" 2>/dev/null', str(path)).stdout,
                    b"",
                    f"the host's {path}",
                )


@contextmanager
def _canaries(context: Context) -> Iterator[list[Path]]:
    """Write a file to each directory of the host that a container could show by mistake; yield
    their paths.
    """
    name = f".hyperruntime-conformance-{secrets.token_hex(4)}"
    made: list[Path] = []
    try:
        for directory in dict.fromkeys(
            (context.directory, context.directory.parent, Path.home(), Path.cwd())
        ):
            try:
                (directory / name).write_text("canary")
            except OSError:
                continue
            made.append(directory / name)
        yield made
    finally:
        for path in made:
            path.unlink(missing_ok=True)


@check("isolation.no-host-processes")
def no_host_processes(context: Context) -> None:
    """Processes of the host are not visible, and cannot be killed from inside."""
    mark = marker()
    sleeper = spawn(["sleep", mark], stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL)
    try:
        seen = [line for line in processes(context.container) if line == f"sleep {mark}"]
        expect_equal(seen, [], "visible processes of the host")
        with context.start() as container:
            shell(container, "kill -KILL $1", str(sleeper.pid))
        expect(sleeper.poll() is None, "a command killed a process of the host by its pid")
    finally:
        kill_group(sleeper)
        sleeper.wait()


@check("isolation.capabilities")
def capabilities(context: Context) -> None:
    """Commands have no dangerous capability, such as SYS_ADMIN, NET_ADMIN or MKNOD."""
    status = _status(context.container)
    for name in ("CapEff", "CapPrm", "CapInh", "CapAmb", "CapBnd"):
        held = int(status[name], 16)
        found = [capability for capability, bit in DANGEROUS.items() if held >> bit & 1]
        expect_equal(found, [], f"dangerous capabilities in {name}")


@check("isolation.inherited-capabilities")
def inherited_capabilities(context: Context) -> None:
    """Commands have no ambient and no inheritable capability, which a program of another user would
    keep.
    """
    status = _status(context.container)
    held = {name: int(status[name], 16) for name in ("CapInh", "CapAmb")}
    expect_equal(held, dict.fromkeys(held, 0), "the capabilities that programs inherit")


@check("isolation.file-modes")
def file_modes(context: Context) -> None:
    """A command cannot read a file that its mode closes to its user, unless the driver declares it
    for root.
    """
    with context.start() as container:
        shell(container, "umask 0; echo secret >/tmp/closed && chmod 0 /tmp/closed").check()
        read = container.exec(["cat", "/tmp/closed"]).stdout  # noqa: S108 - in the container
        expect_equal(
            read,
            b"secret\n" if context.info.ignores_modes else b"",
            "what root reads of a closed file",
        )
        if context.info.users:
            read = container.exec(["cat", "/tmp/closed"], user=RunAs(uid=20_003)).stdout  # noqa: S108
            expect_equal(read, b"", "what another user reads of a closed file")


@check("isolation.seccomp", needs="seccomp")
def seccomp(context: Context) -> None:
    """Commands run under a seccomp filter."""
    status = _status(context.container)
    if context.info.unfiltered and status["Seccomp"] == "0":
        raise UnsupportedOptionError(context.info.engine, "seccomp", context.info.unfiltered)
    expect_equal(status["Seccomp"], "2", "the seccomp mode of a command (2 is a filter)")


@check("isolation.no-new-privileges")
def no_new_privileges(context: Context) -> None:
    """Commands cannot gain privileges: no_new_privs is set."""
    expect_equal(_status(context.container).get("NoNewPrivs"), "1", "NoNewPrivs")


def _status(container: Container) -> dict[str, str]:
    return dict(fields_of(container.exec(["cat", "/proc/self/status"]).stdout.decode()))


@check("isolation.init")
def init(context: Context) -> None:
    """PID 1 is an init, not a command of the caller, and reaps orphans."""
    printed = shell(
        context.container, "echo $$ $PPID; (sleep 0.05 &) ; (sleep 0.05 &) ; cat /proc/1/cmdline"
    ).stdout
    pid, parent = (int(word) for word in printed.split(b"\n")[0].split())
    expect(
        pid > 1 and b"(sleep 0.05" not in printed,
        f"a command runs as PID 1 (its pid is {pid}, parent {parent})",
    )
    time.sleep(0.5)

    def zombies() -> list[str]:
        lines = shell(context.container, _LIST_STATES).stdout.decode(errors="replace").splitlines()
        return [
            line
            for line in lines
            if "(sleep)" in line and line.rpartition(")")[2].split()[:1] == ["Z"]
        ]

    expect(
        context.load.wait_until(lambda: not zombies(), REAPED_S),
        f"zombies are not reaped: {zombies()}",
    )


@check("isolation.exchange")
def exchange(context: Context) -> None:
    """The library's own files in a container cannot be changed from inside."""
    script = (
        "cd /run/hyperruntime || exit; (: >new); rm -rf ./*; mv lane.sh moved; (: >lane.sh); ls"
    )
    with context.start() as container:
        listed = shell(container, script).stdout.split()
        expect(
            b"lane.sh" in listed and b"new" not in listed and b"moved" not in listed,
            f"/run/hyperruntime now contains {listed}",
        )
        expect_equal(container.exec(["echo", "works"]).stdout, b"works\n", "the next command")


@check("isolation.mounts-reclaimed")
def mounts_reclaimed(context: Context) -> None:
    """Files that any user wrote to a mount get the owner's uid on the host, and lose their special
    bits.
    """
    tree = context.place()
    with context.start(
        mounts=(Mount(source=str(tree), target="/mnt/tree", read_only=False),)
    ) as container:
        shell(container, _WRITE_SPECIAL, "/mnt/tree").check()
    reclaim_trees([tree], context.info.reclaim_args, 60.0)
    found = {str(path.relative_to(tree)): path.lstat() for path in tree.rglob("*")}
    names = {"shut", "shut/shell", "shut/fifo", "other", "other/shell"}
    expect_equal(set(found), names, "readable files of the mount")
    expect_equal(
        {status.st_uid for status in found.values()}, {os.geteuid()}, "the uids of its files"
    )
    special = [name for name, status in found.items() if status.st_mode & 0o6000]
    expect_equal(special, [], "files that still have special bits")


@check("network.none")
def no_network(context: Context) -> None:
    """By default there is no network: only the interface lo, no route, and not the host's
    network.
    """
    expect_equal(interfaces_of(context.container), {"lo"}, "the interfaces inside")
    routes = context.container.exec(["cat", "/proc/net/route"]).stdout.decode().splitlines()[1:]
    expect_equal(routes, [], "the routes inside")
    expect(
        _namespace(context.container) != os.readlink("/proc/self/ns/net"),
        "the network is the host's",
    )


@check("network.host", needs="network.host")
def host_network(context: Context) -> None:
    """With network="host", a container has the host's network."""
    with context.start(network="host") as container:
        expect_equal(_namespace(container), os.readlink("/proc/self/ns/net"), "the network inside")
        expect("lo" in interfaces_of(container), "the interface lo is missing")


@check("network.bridge", needs="network.bridge")
def bridge(context: Context) -> None:
    """With network="bridge", a container has a private network with a route out."""
    with context.start(network="bridge") as container:
        found = interfaces_of(container)
        expect("lo" in found and len(found) > 1, f"the interfaces inside are {sorted(found)}")
        expect(
            _namespace(container) != os.readlink("/proc/self/ns/net"), "the network is the host's"
        )
        routes = container.exec(["cat", "/proc/net/route"]).stdout.decode().splitlines()[1:]
        expect(bool(routes), "there is no route out")


def interfaces_of(container: Container) -> set[str]:
    """Return the names of the network interfaces in a container."""
    return interfaces(container.exec(["cat", "/proc/net/dev"]).stdout.decode())


def _namespace(container: Container) -> str:
    listed = container.exec(["ls", "-l", "/proc/self/ns/net"]).check().stdout.decode()
    return listed.rpartition("-> ")[2].strip()


@check("services.shared", needs="services")
def shared(context: Context) -> None:
    """A service shares the network of its container, by name, and nothing else; it ends with it."""
    service = Service(
        name="beside",
        image=context.image,
        entrypoint=["/bin/sh", "-c", _SERVICE],
        ready=Ready(command=["test", "-e", "/file-of-service"]),
        limits=context.container.spec.limits,
    )
    spec = attrs.evolve(context.container.spec, services=(service,), host_names=("main",))
    with context.runtime.container(spec) as container:
        beside = container.services["beside"]
        expect(isinstance(beside, ServiceContainer), "a service has another class")
        assert isinstance(beside, ServiceContainer)
        networks = {one.exec(_OWN_NETWORK).check().stdout for one in (container, beside)}
        expect_equal(len(networks), 1, "the number of networks")
        alone = context.container.exec(_OWN_NETWORK).check().stdout
        expect(alone not in networks, "another container has the same network")
        hosts = [one.exec(["cat", "/etc/hosts"]).check().stdout for one in (container, beside)]
        expect_equal(hosts[0], hosts[1], "the names")
        expect(b"127.0.0.2 beside" in hosts[0], "the service has no name")
        has_file = container.exec(["test", "-e", "/file-of-service"]).exit_code == 0
        expect(not has_file, "the container sees a file of the service")
        seen = container.exec(["/bin/sh", "-c", _ALL_PROCESSES]).stdout
        expect(b"97531" not in seen, "the container sees a process of the service")
        expect_equal(beside.log, b"said\n", "the log")
        beside.process.close()
        expect(beside.process.ended.is_set, "the end of its program is no event")
    expect_soon(context, lambda: beside.closed.is_set, "the end of the service")
