"""A persistent shell: it keeps its state, its output is exact, and no script ends it."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator

import pytest

import hyperruntime as hr
from hyperruntime.errors import (
    ContainerLostError,
    ContainerStateError,
    ExecStartError,
    SpecError,
    WorkdirNotFoundError,
)
from hyperruntime.host.process import wait_until
from hyperruntime.spec import ExecResult
from tests.contract.waits import begun_in_time

pytestmark = pytest.mark.engine
HANG_S = 60.0
USER = hr.RunAs(uid=20_051)


@pytest.fixture(params=["main", "another"])
def shell(
    request: pytest.FixtureRequest, container: hr.Container, runtime: hr.Runtime
) -> Iterator[hr.Shell]:
    """A shell of the container's user, then one of another user if the engine has users."""
    user = USER if request.param == "another" and runtime.info.users else None
    with container.shell(user=user, workdir="/tmp", env={"GIVEN": "a 'b'"}) as opened:
        yield opened


def test_options_of_commands_are_no_options_of_a_shell(container: hr.Container) -> None:
    with pytest.raises(TypeError, match="timeout_s"):
        container.shell(timeout_s=1)  # type: ignore[call-arg]


@pytest.fixture
def own_shell(container: hr.Container) -> Iterator[hr.Shell]:
    """A shell of the container's user."""
    with container.shell() as opened:
        yield opened


def out(shell: hr.Shell, text: str, timeout_s: float = 30) -> str:
    result = shell.run(text, timeout_s=timeout_s)
    assert (result.exit_code, result.stderr) == (0, b""), result
    return result.stdout.decode()


def sleepers(container: hr.Container) -> list[str]:
    lines = container.exec(["ps", "-axo", "stat=,args="]).stdout.decode().splitlines()
    return sorted(
        line.split(None, 1)[1] for line in lines if " sleep " in line and not line.startswith("Z")
    )


STATE = r"""
cd /usr; plain=5; export SENT='x y'; declare -A table=([k]=$'v\nw'); list=(a "b c"); readonly fixed=1
greet() { echo "hello $1"; }; export -f greet; alias ll='ls -l'; umask 027; set -o pipefail; shopt -s extglob
set -- one 'two three'; trap 'echo got it' USR1; unset GIVEN
"""
ASK = r"""
pwd; echo "$plain $SENT ${table[k]} ${list[1]} $fixed [${GIVEN-gone}]"; greet you; bash -c 'greet child; echo $SENT'
alias ll; umask; set -o | grep pipefail; shopt extglob; echo $# "$2"; kill -USR1 $$; :
"""
ANSWER = """/usr
5 x y v
w b c 1 [gone]
hello you
hello child
x y
alias ll='ls -l'
0027
pipefail       \ton
extglob        \ton
2 two three
got it
"""


def test_a_shell_keeps_its_state(shell: hr.Shell) -> None:
    """R18: the state is also kept after the shell ended itself or was ended by a timeout."""
    assert out(shell, 'pwd; echo "$GIVEN"; echo $0') == "/tmp\na 'b'\nbash\n"
    assert out(shell, STATE) == ""
    assert out(shell, ASK) == ANSWER
    assert shell.run("exit 3").exit_code == 3
    assert out(shell, ASK) == ANSWER
    assert shell.run("sleep 60", timeout_s=0.5).timed_out
    assert out(shell, ASK) == ANSWER


def test_a_shell_keeps_its_jobs(shell: hr.Shell) -> None:
    gate = f"/tmp/gate.{os.urandom(4).hex()}"
    assert (
        out(
            shell,
            f"sleep 811 & sleep 812 & sh -c 'until [ -e {gate} ]; do sleep 0.02; done; exit 5' &",
        )
        == ""
    )
    assert out(shell, "jobs | wc -l") == "3\n"
    # bash forgets a job that ends before the `wait`
    later = f"sh -c '(sleep 1; touch {gate}) >/dev/null 2>&1 &'"
    assert out(shell, f"{later}; wait %3; echo $?; kill %1; wait %1; echo $?") == "5\n143\n"
    assert shell.run("jobs", timeout_s=9).stdout.decode().split()[1:] == [
        "Running",
        "sleep",
        "812",
        "&",
    ]


@pytest.mark.parametrize(
    ("text", "code", "stdout", "stderr"),
    [
        ("cat <<E\n$((1 + 1))\nE\n# a comment", 0, b"2\n", b""),
        ("echo before\necho 'unbalanced", 2, b"before\n", b"unexpected EOF"),
        ("if", 2, b"", b"syntax error"),
        ("echo a\nnonexistent x", 127, b"a\n", b"bash: line 2: nonexistent: command not found\n"),
        ("(exit 200)", 200, b"", b""),
        ("false | true", 0, b"", b""),
        ("exit 3", 3, b"", b""),
        ("exec sh -c 'echo replaced; exit 4'", 4, b"replaced\n", b""),
        ("kill -KILL $$", 137, b"", b""),
        ("kill -TERM $$; sleep 1", 143, b"", b""),
        ("set -e; echo a; false; echo b", 1, b"a\n", b""),
        ("set -u; echo $nothing", 127, b"", b"unbound"),
        ("cat; read line; echo [$line]", 0, b"[]\n", b""),
        ("exec 1>&- 2>&- 0<&-; true", 0, b"", b""),
        ('for f in /proc/$$/fd/*; do eval "exec ${f##*/}>&-"; done 2>/dev/null', 0, b"", b""),
        ("echo a; break; echo b", 0, b"a\n", b""),
        ("echo a; continue 3; echo b", 0, b"a\n", b""),
        ("return 3; echo $?", 0, b"2\n", b"return"),
        ("trap 'echo trapped' EXIT; exit 6", 6, b"", b""),
        ("read() { return 1; }; printf() { :; }; eval() { :; }; echo still", 0, b"still\n", b""),
        ("IFS=0123456789; TMOUT=1; PS4=x; PATH=; sleep 1 || cd /usr", 0, b"", b""),
        ("set -f; set -C; shopt -s nullglob failglob; echo x", 0, b"x\n", b""),
        ("trap 'false' DEBUG ERR RETURN; false", 1, b"", b""),
        ("", 0, b"", b""),
        ("\n\n# nothing\n", 0, b"", b""),
    ],
)
def test_no_script_breaks_the_shell(
    own_shell: hr.Shell, text: str, code: int, stdout: bytes, stderr: bytes
) -> None:
    """W27: the exit code and the output are exact, and the shell keeps its state."""
    out(own_shell, "kept=yes; cd /usr")
    result = own_shell.run(text, timeout_s=HANG_S)
    assert (result.exit_code, result.stdout, result.timed_out) == (code, stdout, False), result
    assert stderr in result.stderr
    assert stderr or not text or "sleep" in text or result.stderr == b""
    after = own_shell.run('echo "$? $kept $PWD"', timeout_s=HANG_S)
    assert after.stdout == f"{code} yes /usr\n".encode(), after


def test_input_and_output_bytes_are_exact(shell: hr.Shell) -> None:
    data = os.urandom(2_000_000)
    result = shell.run("tee /dev/fd/3 3>&2", input=data, timeout_s=60)
    assert (result.stdout == data, result.stderr == data) == (True, True)
    assert shell.run(b"printf %s '\xff\xfe\n\x80'").stdout == b"\xff\xfe\n\x80"
    with pytest.raises(SpecError, match="NUL"):
        shell.run("echo \0")


def test_a_state_larger_than_its_pipe_neither_blocks_the_shell_nor_is_lost(
    own_shell: hr.Shell,
) -> None:
    """bash waits while it writes its state; the host must read it before the text begins, and when
    the shell ends.
    """
    out(own_shell, "big=$(head -c 100000 /dev/zero | tr '\\0' b)")
    for number in range(5):
        assert out(own_shell, f"echo {number}") == f"{number}\n"
    assert own_shell.run("last=set; exit 3", timeout_s=30).exit_code == 3
    assert out(own_shell, "echo ${#big} $last") == "100000 set\n"


def test_large_outputs_are_not_lost(shell: hr.Shell) -> None:
    size = 50_000_000
    result = shell.run(
        f"head -c {size} /dev/zero; echo end >&2; exit 9",
        timeout_s=120,
        output_limit_bytes=2 * size,
    )
    assert (result.exit_code, len(result.stdout), result.stderr, result.truncated) == (
        9,
        size,
        b"end\n",
        False,
    )
    cut = shell.run(f"head -c {size} /dev/zero", timeout_s=120, output_limit_bytes=1000)
    assert (cut.truncated, len(cut.stdout) < 2000) == (True, True)
    assert out(shell, "big=$(head -c 300000 /dev/zero | tr '\\0' x); echo ${#big}") == "300000\n"
    assert shell.run("exit").exit_code == 0
    assert out(shell, "echo ${#big}") == "300000\n"


def test_a_deadline_ends_only_the_processes_of_the_script(
    shell: hr.Shell, container: hr.Container
) -> None:
    """W6, W27."""
    out(shell, "sleep 821 & cd /usr; x=1; container=outside")
    container.exec(["sh", "-c", "setsid sleep 822 >/dev/null 2>&1 &"])
    text = "cd /etc; x=2; echo begun; setsid env -i sleep 823 & trap '' TERM; sleep 824"
    began = time.monotonic()
    late = begun_in_time(lambda: shell.run(text, timeout_s=0.5))
    assert time.monotonic() - began < HANG_S
    assert (late.timed_out, late.exit_code, late.stdout) == (True, 124, b"begun\n")
    assert not {"sleep 823", "sleep 824"} & set(sleepers(container))
    assert wait_until(lambda: sleepers(container) == ["sleep 821", "sleep 822"], HANG_S)
    assert out(shell, "echo $? $PWD $x") == "124 /usr 1\n"
    assert shell.close()
    assert sleepers(container) == ["sleep 822"]
    container.exec(["pkill", "-f", "sleep 822"])


def test_scripts_run_one_at_a_time_and_can_be_cancelled_separately(
    shell: hr.Shell, container: hr.Container
) -> None:
    async def scenario() -> list[bytes]:
        await shell.arun("n=0; sleep 831 & cd /usr")
        results: list[ExecResult] = await asyncio.gather(
            *(shell.arun("n=$((n + 1)); echo $n") for _ in range(8))
        )
        running, waiting = (
            asyncio.create_task(shell.arun(text)) for text in ("cd /; sleep 832", "cd /; sleep 833")
        )
        await asyncio.sleep(0.5)
        for task in (waiting, running):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(task, HANG_S)
        return sorted(result.stdout for result in results)

    assert asyncio.run(scenario()) == [b"%d\n" % number for number in range(1, 9)]
    assert sleepers(container) == ["sleep 831"]
    assert out(shell, "pwd; echo $n") == "/usr\n8\n"


def test_output_arrives_while_a_script_runs(shell: hr.Shell) -> None:
    heard: list[tuple[str, bytes]] = []
    shell.run(
        "echo a; sleep 0.2; echo b >&2",
        on_output=lambda stream, chunk: heard.append((stream, chunk)),
    )
    assert heard == [("stdout", b"a\n"), ("stderr", b"b\n")]


def test_a_group_has_the_processes_of_its_shells(container: hr.Container) -> None:
    with container.shell(group="one") as first, container.shell(group="two") as second:
        first.run("sleep 841 &")
        second.run("sleep 842 &")
        container.exec(["sh", "-c", "sleep 843 >/dev/null 2>&1 &"], group="one")
        assert container.end_group("one")
        assert not {"sleep 841", "sleep 843"} & set(sleepers(container))
        assert wait_until(lambda: sleepers(container) == ["sleep 842"], HANG_S)
        assert first.run("echo on").stdout == second.run("echo on").stdout == b"on\n"
    assert sleepers(container) == []


def test_closed_shells_and_lost_containers_raise_errors(
    runtime: hr.Runtime, base_image: str
) -> None:
    with runtime.container(hr.ContainerSpec(image=base_image)) as started:
        closed, lost, idle = (started.shell() for _ in range(3))
        assert closed.run("echo on").stdout == idle.run("echo on").stdout == b"on\n"
        assert closed.close()
        assert closed.close()
        with pytest.raises(ContainerStateError, match="closed"):
            closed.run("echo")
        threading.Timer(0.5, started._live.remove).start()
        with pytest.raises(ContainerLostError):
            lost.run("sleep 60")
        with pytest.raises(ContainerLostError):
            idle.run("echo")
    assert idle.close()


@pytest.mark.slow
def test_closed_shells_leave_nothing(container: hr.Container) -> None:
    exchange = container.exchange.source
    container.exec(["true"])
    descriptors, lanes = len(os.listdir("/proc/self/fd")), len(os.listdir(exchange))
    for _ in range(20):
        with container.shell() as opened:
            opened.run("sleep 851 &")
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert len(os.listdir(exchange)) <= lanes
    assert sleepers(container) == []


def test_variables_with_names_that_bash_does_not_accept_reach_the_programs_of_each_bash(
    runtime: hr.Runtime, base_image: str
) -> None:
    """As the settings of Java and .NET programs: they come from the spec or the shell, and outlive
    a bash that ends.
    """
    ask = "env | grep -a '^[a-z]*[.-]' | sort; echo ${plain-gone}"
    spec = hr.ContainerSpec(image=base_image, env={"of.spec": "1", "both.ways": "lost"})
    env = {"a.b": "it's\n$x", "both.ways": "kept", "x-y": "", "plain": "p"}
    wanted = b"a.b=it's\nboth.ways=kept\nof.spec=1\nx-y=\np\n"
    with runtime.container(spec) as container:
        for user in (None, hr.RunAs(uid=20_003)) if runtime.info.users else (None,):
            with container.shell(env=env, user=user) as shell:
                assert shell.run(ask).stdout == wanted
                assert shell.run("exit 3").exit_code == 3
                assert shell.run(ask).stdout == wanted
                assert b"_hr_late" not in shell.run("env; declare -p").stdout


def test_a_shell_that_cannot_start_names_the_reason(
    container: hr.Container, runtime: hr.Runtime, busybox_image: str
) -> None:
    with (
        container.shell(workdir="/none") as opened,
        pytest.raises(WorkdirNotFoundError, match="/none"),
    ):
        opened.run("echo")
    if busybox_image == container.spec.image:
        return  # an engine with one image
    with runtime.container(hr.ContainerSpec(image=busybox_image)) as small:
        with small.shell() as opened, pytest.raises(ExecStartError, match="bash"):
            opened.run("echo")
        assert small.exec(["echo", "usable"]).stdout == b"usable\n"
