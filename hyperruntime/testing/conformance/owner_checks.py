"""Checks of ownership: nothing outlives its owner, and pruning removes nothing of live or foreign
owners.
"""

from __future__ import annotations

import json
import os
import select
import signal
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from hyperruntime.attached_shell import AttachedShell
from hyperruntime.driver import Launch, LiveContainer
from hyperruntime.host.cache_dir import cache_directory
from hyperruntime.host.owner import LABEL as OWNER_LABEL
from hyperruntime.host.owner import OwnerIdentity
from hyperruntime.host.process import HostProcess, kill_group, python_args, run_process
from hyperruntime.spec import Mount
from hyperruntime.testing.conformance.check import check, expect, expect_equal
from hyperruntime.testing.conformance.context import (
    LABEL,
    RUN_ID,
    Context,
    host_processes,
    marker,
    shell,
)
from hyperruntime.testing.conformance.owner import start_owner

GONE_S = 10.0
ODD_NAMES = ("a#b?c%41&d:e,f;g", 'it\'s a "b" \\ c\n\u00e9', "/".join(["x" * 50] * 4))
# after a container was closed
UNLISTED_S = 5.0
ENDED_S = 2.0
PRUNED_S = 5.0
OTHERS_S = 180.0
_UP_MS = 30_000
_PRINT_IDENTITY = """
import json
from hyperruntime.host.owner import OwnerIdentity
print(json.dumps(OwnerIdentity.current().to_labels()))
"""


@check("owner.close-removes")
def close_removes(context: Context) -> None:
    """Closing a container ends its processes and removes it with its files."""
    mark = marker()
    with context.start(labels={LABEL: mark}) as container:
        shell(container, "setsid sleep $1 >/dev/null 2>&1 &", mark)
        expect(mark in context.own(), "an open container is not listed")
        files = Path(container._dir)  # noqa: SLF001 - these files must be removed too
        expect(files.exists(), "the files of an open container do not exist")
    gone = context.load.wait_until(lambda: mark not in context.own(), UNLISTED_S)
    expect(gone, f"a closed container is still listed after {context.load.bound(UNLISTED_S):g} s")
    ended = context.load.wait_until(lambda: not host_processes(f"sleep {mark}"), ENDED_S)
    expect(
        ended, f"a process of a closed container still runs after {context.load.bound(ENDED_S):g} s"
    )
    expect(not files.exists(), "the files of a closed container still exist")


@check("owner.listing")
def listing(context: Context) -> None:
    """A container is listed with its owner, its run and its own labels."""
    mark = marker()
    with context.start(labels={LABEL: mark, "mine": 'it\'s "quoted", = and all'}):
        found = [
            owned
            for owned in context.runtime.containers()
            if owned.record.labels.get(LABEL) == mark
        ]
        expect_equal(len(found), 1, "number of listed containers with its label")
        expect_equal(
            (found[0].owner.pid, found[0].owner_state), (os.getpid(), "alive"), "its owner"
        )
        labels = found[0].record.labels
        expect_equal(labels.get("mine"), 'it\'s "quoted", = and all', "its label")
        expect_equal(labels.get(f"{OWNER_LABEL}.run"), RUN_ID, "its run")


@check("owner.killed", deadline_s=240)
def killed(context: Context) -> None:
    """If an owner is killed with SIGKILL, nothing of it is left after 10 s, even if a forked child
    lives on.
    """
    _expect_gone(context, "3", "fork", signal.SIGKILL)


@check("owner.killed-while-stopped", deadline_s=240)
def killed_while_stopped(context: Context) -> None:
    """If an owner is killed, a container whose processes are all stopped is removed too."""
    _expect_gone(context, "1", "stop", signal.SIGKILL)


@check("owner.killed-in-use", deadline_s=240)
def killed_in_use(context: Context) -> None:
    """If an owner is killed with processes, terminals, ports and shells open or being opened,
    nothing of it is left.
    """
    _expect_gone(context, "2", "use", signal.SIGKILL)


@check("owner.terminated", deadline_s=240)
def terminated(context: Context) -> None:
    """If an owner is ended with SIGTERM, nothing of it is left."""
    _expect_gone(context, "1", "plain", signal.SIGTERM)


@check("owner.terminated-job", deadline_s=240)
def terminated_job(context: Context) -> None:
    """If a batch system sends SIGTERM to an owner and its processes, and it closes its containers,
    nothing is left.
    """
    _expect_gone(context, "2", "job", signal.SIGTERM)


@check("owner.odd-directories")
def odd_directories(context: Context) -> None:
    """Containers start and end below temporary and cache directories of any name and length."""
    with ThreadPoolExecutor(len(ODD_NAMES)) as threads:
        for tried in [threads.submit(_use_directory, context, name) for name in ODD_NAMES]:
            tried.result()


def _use_directory(context: Context, name: str) -> None:
    place = context.place("odd") / name
    (place / "cache").mkdir(parents=True)
    env = {"TMPDIR": str(place), "XDG_CACHE_HOME": str(place / "cache"), "LC_ALL": "C"}
    with _owner(context, "1", mark := marker(), "plain", env=env) as (process, _):
        expect_equal(len(_listed(context, mark)), 1, f"number of containers below {name!r}")
        os.kill(process.pid, signal.SIGTERM)
        process.wait()
    left = context.load.wait_until(lambda: os.listdir(place) == ["cache"], GONE_S)
    expect(left, f"files are left below {name!r}: {os.listdir(place)}")


def _expect_gone(context: Context, count: str, how: str, number: signal.Signals) -> None:
    mark = marker()
    with _no_other_prunes(context), _owner(context, count, mark, how) as (process, facts):
        listed = _listed(context, mark)
        expect_equal(
            len(listed), int(count), f"number of listed containers of the owner ({listed})"
        )
        owned = [one for one in context.runtime.containers() if one.record.id in listed]
        found = {(one.owner.pid, one.owner_state) for one in owned}
        expect_equal(found, {(process.pid, "alive")}, "the owner of its containers")
        for child in psutil.Process(process.pid).children(recursive=True) if how == "job" else ():
            with suppress(psutil.Error):
                child.terminate()
        os.kill(process.pid, number)
        process.wait()

        def left() -> str:
            if listed := _listed(context, mark):
                return f"still listed: {listed}"
            if running := host_processes(f"sleep {mark}"):
                return f"still running: {running[:3]}"
            return f"still existing: {facts['private']}" if os.path.exists(facts["private"]) else ""

        gone = context.load.wait_until(lambda: not left(), GONE_S)
        expect(gone, f"after {context.load.bound(GONE_S):g} s {left()}")


@contextmanager
def _owner(
    context: Context, *words: str, env: Mapping[str, str] | None = None
) -> Iterator[tuple[HostProcess, dict[str, str]]]:
    """Start an owner in its own process and wait until its containers run; kill it at the end."""
    process = start_owner(context.driver, context.image, *words, env=env)
    facts: dict[str, str] = {}
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        expect(bool(line), "the owner's process ended early")
        facts = json.loads(line)
        yield process, facts
    finally:
        kill_group(process)
        process.communicate()


def _listed(context: Context, mark: str) -> list[str]:
    records = context.driver.containers()
    return [record.id for record in records if record.labels.get(LABEL, "").startswith(mark)]


@check("owner.prune", deadline_s=240, when="alone")
def prune(context: Context) -> None:
    """Pruning removes the containers of dead owners on this machine, not those of live owners or
    other machines.
    """
    dead = json.loads(run_process(python_args("-c", _PRINT_IDENTITY)).stdout)
    elsewhere = {
        **dead,
        OWNER_LABEL: "another",
        f"{OWNER_LABEL}.host": "another-machine",
        f"{OWNER_LABEL}.boot_id": "another",
    }
    mine = OwnerIdentity.current().to_labels()
    with _no_other_prunes(context), _left_behind(context, dead, elsewhere, mine) as marks:
        expect_equal(_alive(context, marks), marks, "the containers before pruning")
        context.runtime.prune()
        context.load.wait_until(lambda: _alive(context, marks) == marks[1:], PRUNED_S)
        expect_equal(_alive(context, marks), marks[1:], "the containers that pruning leaves")


@contextmanager
def _no_other_prunes(context: Context) -> Iterator[None]:
    """Exclude this user's other checks of dead owners, because each would prune the containers of
    the others.
    """
    path = cache_directory() / f"conformance-{context.driver.name}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)

    def take(timeout_s: float) -> bool:
        with suppress(Timeout):
            lock.acquire(timeout=max(0.0, timeout_s))
        return lock.is_locked

    expect(context.load.wait(take, OTHERS_S), "other checks of owners on this engine did not end")
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _left_behind(context: Context, *owners: Mapping[str, str]) -> Iterator[list[str]]:
    """Launch a container with the labels of each owner; yield the marks by which they are found."""
    marks = [marker() for _ in owners]
    live = list[LiveContainer]()
    try:
        for mark, labels in zip(marks, owners, strict=True):
            place = context.place("files")
            place.chmod(0o755)
            launch = Launch(
                spec=context.spec(),
                name=f"hyperruntime-{mark}",
                labels={**labels, LABEL: mark},
                exchange=Mount(source=str(place), target="/run/hyperruntime"),
                private_dir=str(context.place("private")),
            )
            live.append(context.driver.launch(launch))
            os.write(live[-1].shell.input, b"echo up\n")
            expect_equal(_answer(live[-1].shell), b"up", "the output of a container's shell")
        yield marks
    finally:
        for one in live:
            one.shell.close_input()
            one.remove()
            one.shell.close()
            one.shell.close_output()


def _answer(attached: AttachedShell) -> bytes:
    """Return the last word of the output: ``up``, unless it does not come in time. The engine's own
    warnings may come before it.
    """
    said = b""
    poll = select.poll()
    poll.register(attached.output, select.POLLIN)
    while not (b"\n" + said).endswith(b"\nup\n") and poll.poll(_UP_MS):
        with suppress(BlockingIOError):
            if not (chunk := attached.read()):
                break
            said += chunk
    return said.split()[-1] if said else b""


def _alive(context: Context, marks: list[str]) -> list[str]:
    there = {record.labels.get(LABEL) for record in context.driver.containers()}
    return [mark for mark in marks if mark in there]
