"""Checks of ownership: nothing outlives its owner, and nobody's cleaning touches what is another's.

A promise of 10 s holds if it is kept for one of three owners, for the machine may be busy; whatever is left of any of
them after 30 s is a failure.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from hyperruntime.driver import Launch, LiveContainer
from hyperruntime.host.cache_dir import cache_directory
from hyperruntime.host.owner import LABEL as OWNER_LABEL
from hyperruntime.host.owner import OwnerIdentity
from hyperruntime.host.process import HostProcess, kill_group, run_process, wait_until
from hyperruntime.spec import Mount
from hyperruntime.testing.conformance.check import check, expect, expect_equal
from hyperruntime.testing.conformance.context import LABEL, RUN_ID, Context, host_processes, marker, shell
from hyperruntime.testing.conformance.owner import start_owner

GONE_S = 10.0
TRIES = 3  # a busy machine may be late once
AT_LAST_S = 20.0  # but not for ever
OTHERS_S = 180.0
_PRINT_IDENTITY = """
import json
from hyperruntime.host.owner import OwnerIdentity
print(json.dumps(OwnerIdentity.current().to_labels()))
"""


@check("owner.close-removes")
def close_removes(context: Context) -> None:
    """Closing a container ends what runs in it and removes it, with its files."""
    mark = marker()
    with context.start(labels={LABEL: mark}) as container:
        shell(container, "setsid sleep $1 >/dev/null 2>&1 &", mark)
        expect(mark in context.own(), "an open container is not listed")
        files = Path(container._dir)  # noqa: SLF001 - its promise is that these files go too
        expect(files.exists(), "its files are not where they are looked for")
    expect(wait_until(lambda: mark not in context.own(), 20, 0.2), "a closed container is still listed")
    expect(wait_until(lambda: not host_processes(f"sleep {mark}"), 20), "what ran in it still runs")
    expect(not files.exists(), "its files are still there")


@check("owner.listing")
def listing(context: Context) -> None:
    """A container is listed with its owner, its run and its own labels."""
    mark = marker()
    with context.start(labels={LABEL: mark, "mine": 'it\'s "quoted", = and all'}):
        found = [owned for owned in context.runtime.containers() if owned.record.labels.get(LABEL) == mark]
        expect_equal(len(found), 1, "how many containers are listed by its label")
        expect_equal((found[0].owner.pid, found[0].owner_state), (os.getpid(), "alive"), "its owner")
        labels = found[0].record.labels
        expect_equal(labels.get("mine"), 'it\'s "quoted", = and all', "its label")
        expect_equal(labels.get(f"{OWNER_LABEL}.run"), RUN_ID, "its run")


@check("owner.killed", deadline_s=240)
def killed(context: Context) -> None:
    """When its owner is killed with SIGKILL nothing of it is left after 10 s, though a forked child lives on."""
    _expect_gone(context, "3", "fork", signal.SIGKILL)


@check("owner.killed-while-stopped", deadline_s=240)
def killed_while_stopped(context: Context) -> None:
    """Even a container whose processes were all stopped goes with its owner."""
    _expect_gone(context, "1", "stop", signal.SIGKILL)


@check("owner.terminated", deadline_s=240)
def terminated(context: Context) -> None:
    """An owner that is ended by SIGTERM leaves nothing."""
    _expect_gone(context, "1", "plain", signal.SIGTERM)


def _expect_gone(context: Context, count: str, how: str, number: signal.Signals) -> None:
    late = ""
    for _ in range(TRIES):
        if not (late := _late(context, count, how, number)):
            return
    raise AssertionError(late)


def _late(context: Context, count: str, how: str, number: signal.Signals) -> str:
    """End an owner of its own; return what was left of it when all must be gone, or nothing; it must go at last."""
    mark = marker()
    with _owner(context, count, mark, how) as (process, facts):
        listed = _listed(context, mark)
        expect_equal(len(listed), int(count), f"how many containers of the owner are listed ({listed})")
        os.kill(process.pid, number)
        process.wait()

        def left() -> str:
            if listed := _listed(context, mark):
                return f"still listed: {listed}"
            if running := host_processes(f"sleep {mark}"):
                return f"still running: {running[:3]}"
            return f"still there: {facts['private']}" if os.path.exists(facts["private"]) else ""

        if wait_until(lambda: not left(), GONE_S, 0.3):
            return ""
        late = f"after {GONE_S:g} s {left()}"
        expect(wait_until(lambda: not left(), AT_LAST_S, 0.5), f"after {GONE_S + AT_LAST_S:g} s {left()}")
        return late


@contextmanager
def _owner(context: Context, *words: str) -> Iterator[tuple[HostProcess, dict[str, str]]]:
    """Start an owner of its own and wait until its containers run; end it, whatever happens."""
    process = start_owner(context.driver, context.image, *words)
    facts: dict[str, str] = {}
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        expect(bool(line), "an owner in a process of its own ended early")
        facts = json.loads(line)
        yield process, facts
    finally:
        kill_group(process)
        process.communicate()


def _listed(context: Context, mark: str) -> list[str]:
    records = context.driver.containers()
    return [record.id for record in records if record.labels.get(LABEL, "").startswith(mark)]


@check("owner.prune", deadline_s=240)
def prune(context: Context) -> None:
    """Pruning removes what a dead owner of this machine left, and nothing of the living or of other machines."""
    dead = json.loads(run_process([sys.executable, "-c", _PRINT_IDENTITY]).stdout)
    elsewhere = {
        **dead,
        OWNER_LABEL: "another",
        f"{OWNER_LABEL}.host": "another-machine",
        f"{OWNER_LABEL}.boot_id": "another",
    }
    mine = OwnerIdentity.current().to_labels()
    with _no_other_prunes(), _left_behind(context, dead, elsewhere, mine) as marks:
        expect_equal(_alive(context, marks), marks, "the containers that are there")
        context.runtime.prune()
        wait_until(lambda: _alive(context, marks) == marks[1:], 5, 0.2)
        expect_equal(_alive(context, marks), marks[1:], "the containers that pruning leaves")


@contextmanager
def _no_other_prunes() -> Iterator[None]:
    """Wait for this user's other runs of the check, which would prune what this one leaves behind for itself."""
    path = cache_directory() / "conformance-prune.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path, timeout=OTHERS_S):
        yield


@contextmanager
def _left_behind(context: Context, *owners: Mapping[str, str]) -> Iterator[list[str]]:
    """Launch a container for each owner's labels; yield the marks they can be found by."""
    marks, live = [marker() for _ in owners], list[LiveContainer]()
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
            expect_equal(os.read(live[-1].shell.output, 100), b"up\n", "what the shell of a container prints")
        yield marks
    finally:
        for one in live:
            one.shell.close_input()
            one.remove()
            one.shell.close()
            one.shell.close_output()


def _alive(context: Context, marks: list[str]) -> list[str]:
    there = {record.labels.get(LABEL) for record in context.driver.containers()}
    return [mark for mark in marks if mark in there]
