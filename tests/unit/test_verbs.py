"""A container, a lease and all their twins have the same methods: a method that one of them lacks
fails here.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

import hyperruntime as hr
from hyperruntime.cluster.slots.cluster_lease import ClusterLease
from hyperruntime.exec.persistent.shell import Shell
from hyperruntime.exec.spawn.process import Process
from hyperruntime.exec.spawn.terminal import Terminal
from hyperruntime.pool.sync import SyncLease

# Methods that never wait for a container or for another thread, so that an event loop calls them as
# they are.
QUICK: dict[type, set[str]] = {
    hr.Container: {"on_end", "shell"},
    Process: {"check_thread", "close_stdin", "detach_stdin", "find", "poll", "read", "take"},
    Terminal: {"fileno", "poll", "resize"},
    Shell: {"abandon", "leave_lane", "take_lane"},
}
TWINS = {"wait": "await_end"}  # else the name of a twin begins with `a`
# A lease ends with its release, runs as its own user, and its pool watches its container.
NOT_OF_LEASES = {"close", "end_user", "on_end", "responds"}
OF_THE_LEASE = {"end_processes", "tool"}
# Paths and ports of a lease belong to the whole slot, so only commands have groups.
COPIES = {
    "put",
    "get",
    "forward",
    "read_file",
    "read_files",
    "write_file",
    "write_files",
    "stat",
    "listdir",
}


def methods(kind: type) -> dict[str, Callable[..., Any]]:
    """Return the public methods of a class, by name."""
    found = inspect.getmembers(kind, inspect.isfunction)
    return {name: method for name, method in found if not name.startswith("_")}


def verbs(kind: type) -> set[str]:
    """Return the names of the methods that are not twins of another one."""
    return {
        name for name, method in methods(kind).items() if not inspect.iscoroutinefunction(method)
    }


def parameters(method: Callable[..., Any]) -> dict[str, object]:
    """Return the parameters with their defaults, each option of ``**options`` among them."""
    found: dict[str, object] = {}
    for name, one in list(inspect.signature(method).parameters.items())[1:]:
        if one.kind is one.VAR_KEYWORD:
            (options,) = typing.get_args(typing.get_type_hints(method)[name])
            found |= dict.fromkeys(typing.get_type_hints(options), "option")
        else:
            found[name] = one.default
    return found


@pytest.mark.parametrize("kind", QUICK)
def test_what_waits_has_a_twin_for_event_loops(kind: type) -> None:
    found = methods(kind)
    assert QUICK[kind] <= verbs(kind), "a name above is out of date"
    for name in verbs(kind) - QUICK[kind]:
        twin = found.get(TWINS.get(name, f"a{name}"))
        assert twin is not None, f"{kind.__name__}.{name} has no async twin"
        assert inspect.iscoroutinefunction(twin), name
        expected = {} if name in TWINS else parameters(found[name])  # await_end has asyncio.timeout
        assert parameters(twin) == expected, f"{kind.__name__}.{name}"
    assert {"__aenter__", "__enter__"} <= set(dir(kind))


def test_a_lease_has_the_methods_of_a_container() -> None:
    lease, container = methods(hr.Lease), methods(hr.Container)
    assert verbs(hr.Container) - NOT_OF_LEASES == set(lease) - OF_THE_LEASE
    for name in set(lease) - OF_THE_LEASE:
        missing = set(parameters(container[name])) - set(parameters(lease[name])) - {"user"}
        assert missing <= ({"group"} if name in COPIES else set()), f"Lease.{name} has no {missing}"


@pytest.mark.parametrize("kind", [SyncLease, ClusterLease])
def test_the_other_leases_have_the_methods_of_a_lease(kind: type) -> None:
    lease, other = methods(hr.Lease), methods(kind)
    assert set(other) == set(lease)
    for name, method in other.items():
        assert inspect.iscoroutinefunction(method) == (kind is ClusterLease), name
        if typing.get_type_hints(method)["return"] is not NoReturn:  # else it refuses any arguments
            assert parameters(method) == parameters(lease[name]), f"{kind.__name__}.{name}"
