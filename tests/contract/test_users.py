"""Commands as other users of one container: they are isolated from each other, and ended
completely.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

import hyperruntime as hr
from hyperruntime.driver import OpensShells
from hyperruntime.errors import ExecStartError, UnsupportedOptionError
from hyperruntime.host.process import wait_until
from tests.contract.test_timeouts import FLEEING_CHAIN
from tests.contract.waits import begun_in_time
from tests.params import first_quick

pytestmark = pytest.mark.engine
HANG_S = 20.0

ONE, TWO = hr.RunAs(uid=20_001), hr.RunAs(uid=20_002)
FORK_LOOP = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"
# Looks for the files of lanes, by numbers and by each long word that a command line has.
HUNTER = """
import os, time
exchange, found = "/run/hyperruntime", set()
names = [str(n) for n in range(300)]
end = time.monotonic() + 2
while time.monotonic() < end:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            text = open(f"/proc/{pid}/cmdline").read()
        except OSError:
            continue
        names += [word for word in text.replace(chr(0), " ").replace("/", " ").split() if len(word) > 15]
    for name in set(names):
        for file in "ciogse":
            if os.path.lexists(f"{exchange}/{name}/{file}"):
                found.add(f"found {name}/{file}")
print(found or "nothing")
"""
FORGER = """
import glob, os, time
own = [os.readlink(link) for link in glob.glob("/proc/[0-9]*/fd/*") if os.path.islink(link)]
status = [path for path in own if path.startswith("/run/hyperruntime/") and path.endswith("/s")]
assert status, own
for path in status:
    pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    os.write(pipe, b"".join(b"0 up %d\\n" % group for group in range(2, 4000)))
time.sleep(60)
"""


@pytest.fixture(scope="module", autouse=True)
def _users(runtime: hr.Runtime, base_image: str) -> None:
    """Skip the tests on an engine without other users, after a check that it refuses them."""
    if not runtime.info.users:
        with runtime.container(hr.ContainerSpec(image=base_image)) as started:
            with pytest.raises(UnsupportedOptionError, match="user"):
                started.exec(["true"], user=ONE)
            assert started.exec(["echo", "usable"]).stdout == b"usable\n"
        pytest.skip("the engine has no other users, and says so")


@pytest.fixture
def shared(runtime: hr.Runtime, base_image: str) -> Iterator[hr.Container]:
    with runtime.container(hr.ContainerSpec(image=base_image)) as started:
        yield started


def living(container: hr.Container, uid: int) -> list[str]:
    lines = container.exec(["ps", "-axo", "uid=,stat=,args="]).stdout.decode().splitlines()
    rows = [line.split(None, 2) for line in lines]
    return [args for owner, state, args in rows if owner == str(uid) and not state.startswith("Z")]


def test_an_exec_of_another_user_has_the_same_features(shared: hr.Container) -> None:
    data = os.urandom(3_000_000)
    result = shared.exec(
        ["sh", "-c", "cat; echo bad >&2; exit 7"], user=ONE, input=data, env={"A": "1", "B.C": "2"}
    )
    assert (result.exit_code, result.stderr, result.stdout == data) == (7, b"bad\n", True)
    listed = (
        shared.exec(["env"], user=ONE, env={"A": "1", "B.C": "2", "HOME": "/tmp"})
        .stdout.decode()
        .split()
    )
    assert {"A=1", "B.C=2", "HOME=/tmp"} <= set(listed)
    assert not [line for line in listed if line.startswith("_hr")]
    shared.exec(["sh", "-c", "setsid sleep 901 >/dev/null 2>&1 &"], user=TWO)
    script = "echo early; env -i setsid sleep 911 & sleep 912"
    late = begun_in_time(lambda: shared.exec(["sh", "-c", script], user=ONE, timeout_s=0.5))
    assert (late.timed_out, late.exit_code, late.stdout) == (True, 124, b"early\n")
    assert not [line for line in living(shared, ONE.uid) if line.startswith("sleep")]
    assert wait_until(lambda: "sleep 901" in living(shared, TWO.uid), HANG_S)


def test_root_can_add_a_user_of_this_container_alone(
    runtime: hr.Runtime, base_image: str, shared: hr.Container
) -> None:
    add = "echo added:x:7001:7001::/tmp:/bin/sh >>/etc/passwd; echo added:x:7001: >>/etc/group"
    shared.exec(["sh", "-c", add]).check()
    assert (
        shared.exec(["sh", "-c", "id -un; id -gn"], user="added").check().stdout
        == b"added\nadded\n"
    )
    assert b"denied" in shared.exec(["sh", "-c", add], user=ONE).stderr
    assert shared.exec(["grep", "-c", "added", "/etc/passwd"]).stdout == b"1\n"
    with runtime.container(hr.ContainerSpec(image=base_image)) as other:
        assert b"added" not in other.exec(["cat", "/etc/passwd", "/etc/group"]).check().stdout


def test_ids_that_are_not_mapped_are_refused_at_once(shared: hr.Container) -> None:
    far = hr.RunAs(uid=2**31 - 2)
    began = time.monotonic()
    try:
        assert shared.exec(["id", "-u"], user=far).stdout == b"2147483646\n"
    except ExecStartError as error:
        assert "65536" in str(error)  # noqa: PT017 - some engines map such an id
    assert time.monotonic() - began < HANG_S


def test_a_user_cannot_find_the_lanes_of_another(shared: hr.Container) -> None:
    """W8, W14: neither guessed nor found in /proc; check `users.apart` tries the rest."""
    with ThreadPoolExecutor(4) as threads:
        busy = [
            threads.submit(
                shared.exec, ["sh", "-c", f"for i in 1 2 3; do sleep 0.5; echo {n}; done"], user=TWO
            )
            for n in range(3)
        ]
        shared.exec(["true"], user=TWO)
        hunted = shared.exec(["python3", "-c", HUNTER], user=ONE, timeout_s=30)
        assert hunted.stdout == b"nothing\n", hunted
        for number, future in enumerate(busy):
            assert future.result().stdout == b"%d\n" % number * 3


@pytest.mark.slow
def test_forged_reports_of_a_user_do_not_end_processes_of_another(shared: hr.Container) -> None:
    """A timeout kills only the process group that the lane reported before its user had a
    process.
    """
    with ThreadPoolExecutor(2) as threads:
        victim = threads.submit(shared.exec, ["sh", "-c", "sleep 3; echo alive"], user=TWO)
        main = threads.submit(shared.exec, ["sh", "-c", "sleep 3; echo alive"])
        shared.exec(["python3", "-c", FORGER], user=ONE, timeout_s=1)
        assert victim.result().stdout == main.result().stdout == b"alive\n"


@pytest.mark.parametrize(
    "program", [FORK_LOOP, FLEEING_CHAIN], ids=["a fork loop", "a fleeing chain"]
)
@pytest.mark.parametrize("pids", first_quick(None, 60))
def test_all_processes_of_a_user_are_ended(
    shared: hr.Container, program: str, pids: int | None
) -> None:
    wild = hr.RunAs(uid=20_021, pids=pids)
    shared.exec(
        ["sh", "-c", "setsid env -i sleep 911 & trap '' TERM; sleep 912 & kill -STOP $!"], user=wild
    )
    shared.exec(["sh", "-c", "setsid sleep 901 >/dev/null 2>&1 &"], user=TWO)
    shared.exec(
        ["python3", "-c", f"import os\nif os.fork(): os._exit(0)\nos.setsid()\n{program}"],
        user=wild,
    )
    time.sleep(0.3)
    assert shared.end_user(wild)
    assert living(shared, wild.uid) == []
    assert wait_until(lambda: "sleep 901" in living(shared, TWO.uid), HANG_S)
    assert shared.exec(["echo", "again"], user=wild).stdout == b"again\n"


@pytest.mark.parametrize("signal", first_quick("SIGSTOP", "SIGKILL"))
def test_a_user_that_signals_all_processes_does_not_affect_others(
    shared: hr.Container, signal: str
) -> None:
    """The supervisor waits for no process that a user can stop, when it starts a lane and when it
    ends the user.
    """
    loop = (
        f"import os, signal\nwhile True:\n  try: os.kill(-1, signal.{signal})\n  except "
        "OSError: pass"
    )
    shared.exec(
        ["python3", "-c", f"import os\nif os.fork(): os._exit(0)\nos.setsid()\n{loop}"],
        user=ONE,
        timeout_s=5,
    )
    for number in range(4):
        # the user's program may stop other commands of the same user
        with suppress(ExecStartError):
            shared.exec(["true"], user=ONE, timeout_s=0.5)
        assert (
            shared.exec(["echo", "on"], user=hr.RunAs(uid=21_000 + number), timeout_s=HANG_S).stdout
            == b"on\n"
        )
        assert shared.exec(["echo", "on"], timeout_s=HANG_S).stdout == b"on\n"
    assert shared.end_user(ONE)
    assert living(shared, ONE.uid) == []
    assert shared.exec(["echo", "again"], user=ONE).stdout == b"again\n"


@pytest.mark.parametrize("pids", first_quick(None, 60))
def test_a_fork_loop_of_a_user_is_ended_at_its_deadline(
    shared: hr.Container, pids: int | None
) -> None:
    wild = hr.RunAs(uid=20_022, pids=pids)
    shared.exec(["sh", "-c", "setsid sleep 902 >/dev/null 2>&1 &"], user=TWO)
    began = time.monotonic()
    assert shared.exec(["python3", "-c", FORK_LOOP], user=wild, timeout_s=1).timed_out
    assert time.monotonic() - began < HANG_S
    assert [line for line in living(shared, wild.uid) if "python3" in line] == []
    assert wait_until(lambda: "sleep 902" in living(shared, TWO.uid), HANG_S)


def test_a_shell_stays_usable_after_its_user_was_ended(shared: hr.Container) -> None:
    with shared.shell(user=ONE) as shell:
        assert shell.run("cd /usr; sleep 903 & echo on").stdout == b"on\n"
        assert shared.end_user(ONE)
        assert living(shared, ONE.uid) == []
        assert shell.run("pwd").stdout == b"/usr\n"


def test_a_user_that_kills_its_own_lane_does_not_affect_others(shared: hr.Container) -> None:
    shared.exec(["true"], user=TWO)
    assert shared.exec(["sh", "-c", "kill -KILL -1"], user=ONE).exit_code == 137
    assert shared.exec(["echo", "on"], user=ONE).stdout == b"on\n"
    assert shared.exec(["echo", "on"], user=TWO).stdout == b"on\n"


def test_a_hundred_users_leave_nothing(shared: hr.Container) -> None:
    """100 uids leave no descriptor, no file on the host and no process."""
    shared.exec(["true"], user=ONE)
    assert shared.end_user(ONE)
    exchange = Path(shared.exchange.source)
    before = len(os.listdir("/proc/self/fd")), len(list(exchange.iterdir()))
    for number in range(100):
        user = hr.RunAs(uid=30_000 + number)
        assert shared.exec(["true"], user=user).exit_code == 0
        assert shared.end_user(user)
    assert (len(os.listdir("/proc/self/fd")), len(list(exchange.iterdir()))) == before
    assert b" 300" not in shared.exec(["ps", "-axo", "uid="]).stdout


def test_a_container_that_is_not_run_as_root_refuses_other_users(
    runtime: hr.Runtime, base_image: str
) -> None:
    spec = hr.ContainerSpec(image=base_image, user="nobody")
    with runtime.container(spec) as started:
        if not isinstance(started._live, OpensShells):
            pytest.skip("the main shell is always root, and becomes the spec's user for commands")
        with pytest.raises(UnsupportedOptionError, match="root"):
            started.exec(["true"], user=ONE)
