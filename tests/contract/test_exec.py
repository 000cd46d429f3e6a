"""DESIGN 4's promises about exec, on a real engine and with each shell that an image may have."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hyperruntime as hr
from hyperruntime.errors import CommandFailedError, ExecStartError, SpecError, WorkdirNotFoundError
from hyperruntime.exec import output_streams
from hyperruntime.host.process import wait_until

pytestmark = pytest.mark.engine

EVERY_BYTE = bytes(range(256))
any_text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40)
any_argument = st.binary(max_size=60).map(lambda b: b.replace(b"\0", b"."))
FILL_LOOP = """
import os, time
while True:
    try:
        if os.fork() == 0:
            time.sleep(60)
    except OSError:
        open("/tmp/full", "w").close()
        time.sleep(0.001)
"""
SHELLS = ("dash", "busybox", "bash")
relaxed = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def test_both_streams_come_apart_with_the_exit_code(shell_container: hr.Container) -> None:
    result = shell_container.exec(["sh", "-c", "printf out; printf err >&2; exit 7"])
    assert (result.stdout, result.stderr, result.exit_code) == (b"out", b"err", 7)
    assert not result.timed_out
    assert not result.truncated


@pytest.mark.parametrize("data", [b"", b"x", b"no newline", EVERY_BYTE * 3, b"\xff\xfe\n\0\n", EVERY_BYTE * 9000])
def test_every_byte_survives_in_both_directions(shell_container: hr.Container, data: bytes) -> None:
    assert shell_container.exec(["cat"], input=data).stdout == data
    assert shell_container.exec(["cat"], input=io.BytesIO(data)).stdout == data


@relaxed
@given(arguments=st.lists(any_argument, max_size=4))
def test_arguments_arrive_as_they_were_given(shell_container: hr.Container, arguments: list[bytes]) -> None:
    script = 'for a; do printf "%s\\n" "${#a}"; printf "%s" "$a"; done'
    result = shell_container.exec(["sh", "-c", script, "name", *arguments])
    assert result.exit_code == 0
    expected = shell_container.exec(["cat"], input=b"".join(arguments)).stdout
    stripped = result.stdout
    for argument in arguments:
        _, _, stripped = stripped.partition(b"\n")
        assert stripped.startswith(argument)
        stripped = stripped[len(argument) :]
    assert stripped == b""
    assert expected == b"".join(arguments)


@relaxed
@given(value=any_text)
def test_an_environment_value_may_hold_anything(shell_container: hr.Container, value: str) -> None:
    result = shell_container.exec(["sh", "-c", 'printf "%s" "$VALUE"'], env={"VALUE": value})
    assert result.stdout == value.encode()


@pytest.mark.parametrize("name", ["with.dot", "with-dash", "1digit", "OPTIND", "PPID", "IFS", "UID", "ÜMLAUT"])
def test_an_environment_name_that_no_shell_can_export_arrives_too(shell_container: hr.Container, name: str) -> None:
    lines = shell_container.exec(["env"], env={name: "a b\nc"}).stdout.decode()
    assert f"{name}=a b\nc\n" in lines


SPECIAL_NAMES = (
    *("IFS", "OPTIND", "PPID", "_", "PWD", "OLDPWD", "TMOUT", "UID", "LINENO", "RANDOM", "SHLVL", "PS1", "PS4", "ENV"),
    *(
        "GROUPS",
        "FUNCNAME",
        "SECONDS",
        "BASHOPTS",
        "GLOBIGNORE",
        "state",
        "hard",
        "first",
        "found",
        "one",
        "verb",
        "a.b",
    ),
)


def environment(container: hr.Container, env: dict[str, str] | None = None) -> dict[str, str]:
    lines = container.exec(["env"], env=env).stdout.decode().splitlines()
    return {name: value for name, _, value in (line.partition("=") for line in lines) if name in SPECIAL_NAMES}


@pytest.mark.parametrize("shell", SHELLS)
def test_no_name_is_special_in_any_environment(runtime: hr.Runtime, images: dict[str, str], shell: str) -> None:
    wanted = {name: f"1 'of' {name}" for name in SPECIAL_NAMES}
    spec = hr.ContainerSpec(image=images[shell], env={**wanted, "HOME": "/nowhere"})
    with runtime.container(spec) as started:
        assert [environment(started) for _ in range(2)] == [wanted, wanted]
    with runtime.container(hr.ContainerSpec(image=images[shell])) as started:
        assert environment(started, wanted) == wanted


# Takes every process that is to be had, also what becomes free later. bash itself would wait for one, so Python there.
# What waits until all are taken may start nothing.
AWAIT = "while [ ! -e /tmp/full ]; do :; done"
FILL = {
    "dash": ["sh", "-c", f'(while :; do command eval "sleep 60 &" || : >/tmp/full; done) 2>/dev/null & {AWAIT}'],
    "bash": ["sh", "-c", f'python3 -c "$1" & {AWAIT}', "x", FILL_LOOP],
}


@pytest.mark.parametrize("shell", SHELLS)
def test_without_a_process_to_be_had_an_exec_says_so(runtime: hr.Runtime, images: dict[str, str], shell: str) -> None:
    with runtime.container(hr.ContainerSpec(image=images[shell], limits=hr.Limits(pids=150))) as started:
        started.exec(FILL.get(shell, FILL["dash"]))
        with pytest.raises(ExecStartError, match="pids limit"):
            started.exec(["true"])


def test_the_host_environment_stays_outside(container: hr.Container, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYPERRUNTIME_TEST_SECRET", "leak")
    assert b"leak" not in container.exec(["env"]).stdout


def test_the_spec_environment_reaches_every_exec(runtime: hr.Runtime, base_image: str) -> None:
    spec = hr.ContainerSpec(image=base_image, env={"A": "1", "odd.name": "2"}, workdir="/usr/lib")
    with runtime.container(spec) as started:
        result = started.exec(["env"], env={"A": "3"})
        assert b"A=3\n" in result.stdout
        assert b"odd.name=2\n" in result.stdout
        assert started.exec(["pwd"]).stdout == b"/usr/lib\n"


@pytest.mark.parametrize("code", [0, 1, 2, 63, 125, 126, 127, 128, 200, 255])
def test_exit_codes_are_exact(shell_container: hr.Container, code: int) -> None:
    assert shell_container.exec(["sh", "-c", f"exit {code}"]).exit_code == code


@pytest.mark.parametrize("number", [1, 2, 6, 9, 11, 15])
def test_a_death_by_signal_is_128_and_its_number(shell_container: hr.Container, number: int) -> None:
    assert shell_container.exec(["sh", "-c", f"kill -{number} $$"]).exit_code == 128 + number


def test_a_missing_program_is_127_and_one_that_cannot_run_126(shell_container: hr.Container) -> None:
    assert shell_container.exec(["no-such-program"]).exit_code == 127
    assert shell_container.exec(["/bin"]).exit_code == 126
    assert shell_container.exec(["true"]).exit_code == 0


def test_a_missing_workdir_is_an_error_of_its_own(shell_container: hr.Container) -> None:
    for _ in range(20):
        with pytest.raises(WorkdirNotFoundError, match="'/no/such dir'"):
            shell_container.exec(["true"], workdir="/no/such dir")
        assert shell_container.exec(["cat"], input=b"still works").stdout == b"still works"


def test_workdir_is_honoured(shell_container: hr.Container) -> None:
    assert shell_container.exec(["pwd"], workdir="/tmp").stdout == b"/tmp\n"


def test_an_exec_can_run_as_another_user(container: hr.Container, has_users: bool) -> None:
    if not has_users:
        return
    assert container.exec(["id", "-un"], user="nobody").stdout == b"nobody\n"
    assert container.exec(["id", "-u"], user="1234:5678").stdout == b"1234\n"
    assert container.exec(["id", "-g"], user="1234:5678").stdout == b"5678\n"
    assert container.exec(["id", "-u"]).stdout == b"0\n"


def test_a_timeout_ends_what_another_user_started(container: hr.Container, has_users: bool) -> None:
    if not has_users:
        return
    result = container.exec(["sh", "-c", "setsid sleep 901 & sleep 902"], user="nobody", timeout_s=0.5)
    assert result.timed_out
    assert b"sleep 90" not in container.exec(["ps", "-axo", "args="]).stdout


def test_an_unknown_user_is_one_clear_error(container: hr.Container, has_users: bool) -> None:
    if not has_users:
        return
    with pytest.raises(SpecError, match="user"):
        container.exec(["true"], user="nobody-at-all")


@pytest.mark.parametrize("args", ["true", [], [""], ["-x"], ["a\0b"], [1]])
def test_malformed_arguments_are_refused(container: hr.Container, args: list[str]) -> None:
    with pytest.raises(SpecError, match="args"):
        container.exec(args)


def test_past_the_limit_head_and_tail_are_kept_and_the_command_goes_on(shell_container: hr.Container) -> None:
    script = "echo first; yes 0123456789 | head -c 3000000; echo last; exit 3"
    result = shell_container.exec(["sh", "-c", script], output_limit_bytes=1000)
    assert result.truncated
    assert result.exit_code == 3
    assert result.stdout.startswith(b"first\n")
    assert result.stdout.endswith(b"last\n")
    assert b"bytes of output dropped" in result.stdout
    assert len(result.stdout) < 1100


def test_output_comes_while_the_command_runs(container: hr.Container) -> None:
    """The command goes on only once both lines were handed over."""
    seen: list[tuple[str, bytes]] = []
    read_fd, write_fd = os.pipe()

    def hear(stream: str, chunk: bytes) -> None:
        seen.append((stream, chunk))
        if len(seen) == 2:
            os.write(write_fd, b"go on\n")

    script = "echo one; echo two >&2; read -r _; echo three"
    with os.fdopen(read_fd, "rb", buffering=0) as source, os.fdopen(write_fd, "wb"):
        result = container.exec(["sh", "-c", script], input=source, on_output=hear, timeout_s=60)
    assert not result.timed_out
    assert set(seen[:2]) == {("stdout", b"one\n"), ("stderr", b"two\n")}
    assert seen[2:] == [("stdout", b"three\n")]


def test_an_error_in_the_callers_callback_ends_the_command_and_comes_out(container: hr.Container) -> None:
    def explode(stream: str, chunk: bytes) -> None:
        raise BrokenPipeError("mine")

    with pytest.raises(BrokenPipeError, match="mine"):
        container.exec(["sh", "-c", "echo hello; exec sleep 903"], on_output=explode)
    assert b"sleep 903" not in container.exec(["ps", "-axo", "args="]).stdout


def test_a_command_that_does_not_read_its_input_is_not_waited_for(shell_container: hr.Container) -> None:
    assert shell_container.exec(["true"], input=b"x" * 3_000_000).exit_code == 0
    assert shell_container.exec(["head", "-c", "3"], input=b"abcdef" * 500_000).stdout == b"abc"


def test_input_may_come_from_a_slow_pipe(container: hr.Container) -> None:
    read_fd, write_fd = os.pipe()

    def feed() -> None:
        for part in (b"one ", b"two ", b"three"):
            time.sleep(0.1)
            os.write(write_fd, part)
        os.close(write_fd)

    thread = threading.Thread(target=feed)
    thread.start()
    with os.fdopen(read_fd, "rb", buffering=0) as source:
        assert container.exec(["cat"], input=source).stdout == b"one two three"
    thread.join()


def test_without_input_a_command_reads_nothing(shell_container: hr.Container) -> None:
    assert shell_container.exec(["cat"]).stdout == b""


def test_a_background_job_does_not_hold_the_call_and_lives_on(container: hr.Container) -> None:
    result = container.exec(["sh", "-c", "sleep 904 & echo started"])
    assert result.stdout == b"started\n"
    assert result.duration_s < 60
    assert b"sleep 904" in container.exec(["ps", "-axo", "args="]).stdout
    assert container.exec(["pkill", "-f", "sleep 904"]).exit_code == 0


def test_output_of_a_child_that_outlives_the_command_for_a_moment_is_kept(
    container: hr.Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_streams, "_GRACE_S", 20.0)  # a quarter of a second is short on a busy machine
    assert container.exec(["bash", "-c", "echo late > >(sleep 0.05; cat)"]).stdout == b"late\n"


def test_a_background_writer_does_not_reach_the_next_exec(container: hr.Container) -> None:
    container.exec(["sh", "-c", "(while echo noise; do sleep 0.01; done) & echo $!"])
    for _ in range(30):
        assert container.exec(["echo", "clean"]).stdout == b"clean\n"
    container.exec(["pkill", "-f", "while echo noise"])


def test_interrupts_have_their_default_meaning(shell_container: hr.Container) -> None:
    script = "sh -c 'kill -INT $$; echo survived'; echo after $?"
    assert b"survived" not in shell_container.exec(["sh", "-c", script]).stdout


def test_kill_0_ends_the_command_and_nothing_else(container: hr.Container) -> None:
    with ThreadPoolExecutor(1) as threads:
        sibling = threads.submit(container.exec, ["sh", "-c", "sleep 1; echo lives"])
        time.sleep(0.2)
        assert container.exec(["sh", "-c", "kill 0; sleep 5"]).exit_code == 128 + signal.SIGTERM
        assert container.exec(["sh", "-c", "kill -9 0; sleep 5"]).exit_code == 137
        assert sibling.result().stdout == b"lives\n"


def command_lines(container: hr.Container) -> bytes:
    return container.exec(["sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null"]).stdout


def test_signals_to_everything_spare_the_librarys_own_shells(shell_container: hr.Container) -> None:
    for name in ("TERM", "HUP", "INT", "USR1"):
        with ThreadPoolExecutor(1) as threads:
            sibling = threads.submit(shell_container.exec, ["sleep", "30"])
            assert wait_until(lambda: b"sleep\x0030\x00" in command_lines(shell_container), 60)
            shell_container.exec(["sh", "-c", f"trap '' {name}; kill -{name} -1; sleep 0.1"]).check()
            assert sibling.result(timeout=60).exit_code > 128
        assert shell_container.exec(["echo", "works"]).stdout == b"works\n"


def test_an_idle_lane_that_was_killed_is_not_used(container: hr.Container) -> None:
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: container.exec(["sleep", "0.2"]), range(4)))
    killed = container.exec(["sh", "-c", "pkill -9 -f lane.sh; sleep 1"])
    assert killed.exit_code == 137
    for _ in range(8):
        assert container.exec(["echo", "works"]).stdout == b"works\n"


def test_a_thousand_execs_from_fifty_threads_are_all_right(shell_container: hr.Container) -> None:
    def work(number: int) -> None:
        for turn in range(20):
            text = f"{number} {turn}"
            result = shell_container.exec(["sh", "-c", 'echo "$1"; echo "$1" >&2', "x", text])
            assert (result.stdout, result.stderr) == (f"{text}\n".encode(),) * 2

    with ThreadPoolExecutor(50) as threads:
        for done in [threads.submit(work, number) for number in range(50)]:
            done.result()


def test_aexec_does_not_block_the_loop_and_cancelling_ends_the_command(container: hr.Container) -> None:
    async def scenario() -> None:
        slow = asyncio.create_task(container.aexec(["sleep", "905"]))
        results = await asyncio.gather(*(container.aexec(["echo", str(i)]) for i in range(20)))
        assert [r.stdout for r in results] == [f"{i}\n".encode() for i in range(20)]
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow

    asyncio.run(scenario())
    assert b"sleep 905" not in container.exec(["ps", "-axo", "args="]).stdout


def test_check_names_the_command_and_both_tails(container: hr.Container) -> None:
    result = container.exec(["sh", "-c", "echo told; echo why >&2; exit 3"])
    with pytest.raises(CommandFailedError, match=r"(?s)exit code 3.*why.*told"):
        result.check()
    assert container.exec(["true"]).check().exit_code == 0


def test_a_long_script_and_then_a_short_one_in_the_same_lane(shell_container: hr.Container) -> None:
    for size in (10, 100_000, 10, 9000, 8190, 8192, 10):
        assert shell_container.exec(["sh", "-c", "printf %s ${#1}", "x", "y" * size]).stdout == str(size).encode()


def test_an_unknown_keyword_is_refused_at_once(container: hr.Container) -> None:
    with pytest.raises(TypeError, match="timout_s"):
        container.exec(["true"], timout_s=1)  # type: ignore[call-arg]
