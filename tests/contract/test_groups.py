"""What the commands of a group have started is ended together, where all of them are one user's."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import hyperruntime as hr
from hyperruntime.host.process import wait_until

pytestmark = pytest.mark.engine
HANG_S = 20.0
FLEEING_CHAIN = """
import os
while True:
    try:
        if os.fork():
            os._exit(0)
        os.setsid()
    except OSError:
        pass
"""


def sleepers(container: hr.Container) -> list[str]:
    lines = container.exec(["ps", "-axo", "args="]).stdout.decode().splitlines()
    return sorted(line for line in lines if line.startswith(("sleep", "python3 -c")))


def begun(container: hr.Container, count: int) -> bool:
    """Wait until so many run: what a shell leaves in the background may still be that shell for a moment."""
    return wait_until(lambda: len(sleepers(container)) == count, HANG_S)


@pytest.fixture
def container(runtime: hr.Runtime, base_image: str) -> Iterator[hr.Container]:
    """A container of its own for each test: they count what runs in it."""
    with runtime.container(hr.ContainerSpec(image=base_image)) as started:
        yield started


def test_a_group_is_ended_and_nobody_else(container: hr.Container) -> None:
    """W5: daemons too, with any session and environment; those of other groups and of none live on."""
    quiet = ">/dev/null 2>&1 &"
    for number in range(3):
        container.exec(["sh", "-c", f"setsid env -i sleep 70{number} {quiet} sleep 71{number} {quiet}"], group="one")
    container.exec(["sh", "-c", f"setsid sleep 801 {quiet}"], group="two")
    container.exec(["sh", "-c", f"setsid sleep 802 {quiet}"])
    assert begun(container, 8)
    with ThreadPoolExecutor(2) as threads:
        running = threads.submit(container.exec, ["sleep", "720"], group="one")
        other = threads.submit(container.exec, ["sh", "-c", "sleep 2; echo alive"], group="two")
        assert wait_until(lambda: "sleep 720" in sleepers(container), HANG_S)
        assert container.end_group("one")
        assert running.result().exit_code == 137
        assert [line for line in sleepers(container) if line != "sleep 2"] == ["sleep 801", "sleep 802"]
        assert other.result().stdout == b"alive\n"
    assert container.end_group("two")
    assert container.end_group("unknown")
    assert sleepers(container) == ["sleep 802"]
    container.exec(["pkill", "-f", "sleep 802"])


def test_a_chain_that_flees_is_ended_with_its_group(container: hr.Container) -> None:
    container.exec(["python3", "-c", f"import os\nif os.fork(): os._exit(0)\n{FLEEING_CHAIN}"], group="chain")
    began = time.monotonic()
    assert container.end_group("chain")
    assert time.monotonic() - began < HANG_S
    for _ in range(3):
        assert sleepers(container) == []


def test_a_group_that_was_ended_begins_anew(container: hr.Container) -> None:
    for _ in range(3):
        container.exec(["sh", "-c", "sleep 703 >/dev/null 2>&1 &"], group="again")
        assert begun(container, 1)
        assert container.end_group("again")
        assert sleepers(container) == []


def test_with_any_shell(shell_container: hr.Container) -> None:
    shell_container.exec(["sh", "-c", "sleep 704 >/dev/null 2>&1 & sleep 705 >/dev/null 2>&1 &"], group="one")
    shell_container.exec(["sh", "-c", "sleep 706 >/dev/null 2>&1 &"])
    assert shell_container.end_group("one")
    left = shell_container.exec(["sh", "-c", "for p in /proc/[0-9]*; do cat $p/cmdline 2>/dev/null; done"]).stdout
    # Numbers alone would also be found in the random names of a container that its engine's command line shows.
    assert sorted(set(re.findall(rb"sleep.(70\d)", left))) == [b"706"]
