"""The processes of a command are found and ended under any limits that a job, a site or a login
shell has set.
"""

from __future__ import annotations

import json
import sys
import textwrap

import pytest

import hyperruntime as hr
from hyperruntime.driver import OpensShells
from hyperruntime.errors import HyperRuntimeError
from hyperruntime.host.process import DEVNULL, ProcessResult, kill_group, run_process, spawn
from tests.contract.waits import begun_in_time

pytestmark = pytest.mark.engine
MIB, TIB = 2**20, 2**40
# Runs a command, a timeout, a group and a persistent shell in a process with the limits under test.
LOOK = textwrap.dedent(
    """
    import json, sys
    import hyperruntime as hr

    LIST = "for p in /proc/[0-9]*; do tr '\\\\0' ' ' <$p/cmdline 2>/dev/null; echo; done"

    def left(container):
        lines = container.exec(["sh", "-c", LIST]).stdout.decode().splitlines()
        return sorted(line.strip() for line in lines if line.startswith("sleep 9"))

    with hr.open_runtime(sys.argv[1]) as runtime, runtime.container(hr.ContainerSpec(image=sys.argv[2])) as container:
        said = container.exec(["sh", "-c", "echo out; echo err >&2"])
        container.exec(["sh", "-c", "sleep 955 >/dev/null 2>&1 &"])
        late = container.exec(["sh", "-c", "echo begun; sleep 911 & env -i sleep 912 & sleep 913"], timeout_s=2)
        after_deadline = left(container)
        container.exec(["sh", "-c", "sleep 921 >/dev/null 2>&1 & sleep 922 >/dev/null 2>&1 &"], group="one")
        ended, after_group = container.end_group("one"), left(container)
        with container.shell() as shell:
            text = shell.run("sleep 931 & echo on; echo off >&2")
        print(json.dumps({
            "said": [said.stdout.decode(), said.stderr.decode(), said.exit_code],
            "late": [late.timed_out, late.stdout.decode(), late.stderr.decode()],
            "after_deadline": after_deadline,
            "after_group": [ended, after_group],
            "text": [text.stdout.decode(), text.stderr.decode()],
            "after_shell": left(container),
        }))
    """
)


def under(limits: list[str], runtime_name: str, image: str) -> ProcessResult:
    return run_process(
        ["prlimit", *limits, sys.executable, "-c", LOOK, runtime_name, image], timeout_s=200
    )


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param([f"--rss={100 * MIB}"], id="100 MiB"),
        pytest.param([f"--rss={2048 * MIB}"], id="2 GiB", marks=pytest.mark.slow),
        pytest.param([f"--rss={100 * TIB}"], id="100 TiB", marks=pytest.mark.slow),
        pytest.param(["--locks=1000"], id="few file locks", marks=pytest.mark.slow),
        pytest.param(
            [f"--locks={2**60}", f"--rss={100 * MIB}"], id="many file locks", marks=pytest.mark.slow
        ),
    ],
)
def test_a_finite_limit_that_linux_ignores_has_no_effect(
    runtime_name: str, base_image: str, limits: list[str]
) -> None:
    """Slurm sets a hard RSS limit for each job that requests memory."""
    done = under(limits, runtime_name, base_image)
    assert done.exit_code == 0, done.stderr.decode()
    assert json.loads(done.stdout) == {
        "said": ["out\n", "err\n", 0],
        "late": [True, "begun\n", ""],
        "after_deadline": ["sleep 955"],
        "after_group": [True, ["sleep 955"]],
        "text": ["on\n", "off\n"],
        "after_shell": ["sleep 955"],
    }


def test_a_container_without_a_usable_limit_for_marks_is_refused(
    runtime_name: str, base_image: str
) -> None:
    done = under([f"--rss={100 * MIB}", "--locks=1000"], runtime_name, base_image)
    if runtime_name == "docker":  # its containers have the limits of the daemon, not of the caller
        assert done.exit_code == 0, done.stderr.decode()
        return
    last = done.stderr.decode().strip().splitlines()[-1]
    assert "ExecStartError" in last
    assert f"file locks (1000) and of resident memory ({100 * MIB} bytes) are both too low" in last
    assert "--locks=unlimited" in last


def test_a_shell_that_reports_false_limits_cannot_make_the_host_kill_processes(
    runtime: hr.Runtime, base_image: str
) -> None:
    """Root in a container may replace /bin/sh before another user's shell starts; the host kills
    processes by marks.
    """
    if not runtime.info.users:
        pytest.skip("the engine has no other users, and says so")
    victim = spawn(
        ["prlimit", "--rss=3145728000:3145728000", "sleep", "600"],
        stdin=DEVNULL,
        stdout=DEVNULL,
        stderr=DEVNULL,
    )
    lie = """#!/bin/dash
    case "$(id -u)" in 0) exec /bin/dash "$@" ;; esac
    echo "ready setsid m 3145728000"; exec sleep 600
    """
    try:
        with runtime.container(hr.ContainerSpec(image=base_image)) as container:
            if not isinstance(container._live, OpensShells):
                pytest.skip(
                    "the engine attaches no shell as another user, and a lane reports no limits"
                )
            container.exec(["rm", "/bin/setpriv"])
            container.exec(
                ["sh", "-c", "cat >/tmp/sh && chmod 755 /tmp/sh && mv -f /tmp/sh /bin/sh"],
                input=lie.encode(),
            )
            with pytest.raises(HyperRuntimeError, match="/bin/sh was replaced"):
                container.exec(["sleep", "60"], user="nobody", timeout_s=1)
        assert victim.poll() is None
    finally:
        kill_group(victim)
        victim.wait()


@pytest.mark.parametrize("shell_container", ["dash", "bash", "busybox"], indirect=True)
def test_each_shell_marks_with_the_limit_that_it_can_set(shell_container: hr.Container) -> None:
    script = (
        "while read -r a b c d e f; do case $b.$c in file.locks) echo $e;; resident.set) echo "
        "$e;; esac; done"
    )
    first, second = (
        shell_container.exec(["sh", "-c", f"{script} </proc/self/limits"]).stdout for _ in range(2)
    )
    assert first != second
    assert first.split()[0] == second.split()[0], "the limit of resident memory has changed"


@pytest.mark.slow
def test_a_command_that_timed_out_before_it_started_never_starts(
    runtime: hr.Runtime, base_image: str
) -> None:
    """When the user is ended, it has no process yet, but a process of root is about to change to
    this user.
    """
    if not runtime.info.users:
        pytest.skip("the engine has no other users, and says so")
    slow = (
        '#!/bin/sh\nsleep 1\ncase "$*" in *22001*) echo "$*" >>/tmp/arrived;; esac\nexec '
        '/usr/bin/setpriv.real "$@"\n'
    )
    user = hr.RunAs(uid=22_001)
    with runtime.container(hr.ContainerSpec(image=base_image)) as container:
        assert container.exec(["true"], user=hr.RunAs(uid=22_002)).exit_code == 0
        replace = (
            "mv /usr/bin/setpriv /usr/bin/setpriv.real; cat >/usr/bin/setpriv; chmod 755 "
            "/usr/bin/setpriv"
        )
        container.exec(["sh", "-c", replace], input=slow.encode()).check()
        assert container.exec(["true"], user=user, timeout_s=0.3).timed_out
        assert container.end_user(user)
        container.exec(["sleep", "2.5"])  # a surviving process would have written its line by now
        assert container.exec(["cat", "/tmp/arrived"]).exit_code == 1
        assert begun_in_time(lambda: container.exec(["id", "-u"], user=user)).stdout == b"22001\n"
