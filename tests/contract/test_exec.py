"""Execs beyond the conformance suite, and the suite with other shells than dash."""

from __future__ import annotations

import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hyperruntime as hr
from hyperruntime.errors import CommandFailedError, ExecStartError, SpecError, WorkdirNotFoundError
from hyperruntime.exec import execution, streams
from hyperruntime.host.process import wait_until
from hyperruntime.registry import load_driver
from hyperruntime.testing.conformance import CHECKS, open_context, run_checks, select_checks

pytestmark = pytest.mark.engine

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


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["busybox", "bash"])
def test_the_suite_passes_with_another_shell(
    runtime_name: str, images: dict[str, str], shell: str
) -> None:
    families = ("exec", "timeout", "users", "groups", "transfer.tree")
    with open_context(load_driver(runtime_name), images[shell]) as context:
        results = list(
            run_checks(context, [check for name in families for check in select_checks(name)])
        )
    failed = [result for result in results if result.outcome == "fail"]
    # it attaches no shells, and busybox cannot switch by number
    if shell == "busybox" and runtime_name in ("apptainer", "bubblewrap", "charliecloud"):
        assert all("neither util-linux's setpriv" in result.detail for result in failed)
        failed = [result for result in failed if CHECKS[result.name].needs != "exec.user"]
    assert failed == []


@relaxed
@given(arguments=st.lists(any_argument, max_size=4))
def test_arguments_arrive_unchanged(shell_container: hr.Container, arguments: list[bytes]) -> None:
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
def test_a_variable_can_have_any_value(shell_container: hr.Container, value: str) -> None:
    result = shell_container.exec(["sh", "-c", 'printf "%s" "$VALUE"'], env={"VALUE": value})
    assert result.stdout == value.encode()


SPECIAL_NAMES = (
    *(
        "IFS",
        "OPTIND",
        "PPID",
        "_",
        "PWD",
        "OLDPWD",
        "TMOUT",
        "UID",
        "LINENO",
        "RANDOM",
        "SHLVL",
        "PS1",
        "PS4",
        "ENV",
    ),
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
    return {
        name: value
        for name, _, value in (line.partition("=") for line in lines)
        if name in SPECIAL_NAMES
    }


@pytest.mark.parametrize("shell", SHELLS)
def test_no_name_of_a_variable_is_special(
    runtime: hr.Runtime, images: dict[str, str], shell: str
) -> None:
    wanted = {name: f"1 'of' {name}" for name in SPECIAL_NAMES}
    spec = hr.ContainerSpec(image=images[shell], env={**wanted, "HOME": "/nowhere"})
    with runtime.container(spec) as started:
        assert [environment(started) for _ in range(2)] == [wanted, wanted]
    with runtime.container(hr.ContainerSpec(image=images[shell])) as started:
        assert environment(started, wanted) == wanted


# Takes every process that the limit allows, also later ones. Python does it for bash, which would
# wait for a free one. The loop that waits until all are taken must not start a process.
AWAIT = "while [ ! -e /tmp/full ]; do :; done"
FILL = {
    "dash": [
        "sh",
        "-c",
        f'(while :; do command eval "sleep 60 &" || : >/tmp/full; done) 2>/dev/null & {AWAIT}',
    ],
    "bash": ["sh", "-c", f'python3 -c "$1" & {AWAIT}', "x", FILL_LOOP],
}


@pytest.mark.parametrize(
    "shell", ["dash", *(pytest.param(shell, marks=pytest.mark.slow) for shell in SHELLS[1:])]
)
def test_an_exec_without_a_free_process_names_the_pids_limit(
    runtime: hr.Runtime, images: dict[str, str], shell: str
) -> None:
    with runtime.container(
        hr.ContainerSpec(image=images[shell], limits=hr.Limits(pids=150))
    ) as started:
        started.exec(FILL.get(shell, FILL["dash"]))
        with pytest.raises(ExecStartError, match="pids limit"):
            started.exec(["true"])


MAKE_FILES = r"""
mkdir /tmp/p && cd /tmp/p
printf '#!/no/such/interpreter\n' >bad; printf '#!/bin/sh\nexit 127\n' >good; printf 'exit 126\n' >plain
cp good closed; chmod 755 bad good plain; chmod 644 closed
"""
NONE = "the container has no program "
REFUSED = "the program {} cannot be executed in the container: "
FORGED = "echo $0: line 1: exec: x: not found >&2; exit 127"
# argv -> exit codes of dash, busybox and bash, and the sentence for the caller, in place of that of
# the shell; "" means that the exit code is the program's own
OUTCOMES: dict[tuple[str, ...], tuple[tuple[int, ...], str]] = {
    ("no-such-program",): ((127,), NONE + r"'no-such-program'; check its name and PATH"),
    ("/no/such/program",): (
        (127,),
        NONE + r"'/no/such/program', or not the interpreter that its .*",
    ),
    ("/tmp/p/closed",): ((126,), REFUSED.format("'/tmp/p/closed'") + "permission denied"),
    ("/tmp/p",): ((126,), REFUSED.format("'/tmp/p'") + "(permission denied|it is a directory)"),
    ("/tmp/p/bad",): ((126, 127), NONE + r"'/tmp/p/bad', or not the interpreter that its .*"),
    ("/tmp/p/good/below",): ((126, 127), ".*"),
    ("no\nprogram",): ((127,), NONE + r"'no\\nprogram'; check its name and PATH"),
    ("/tmp/p/good",): ((127,), ""),
    ("/tmp/p/plain",): ((126,), ""),
    ("sh", "-c", "no-such-program"): ((127,), ""),
    ("sh", "-c", "/tmp/p/closed"): ((126,), ""),
    ("sh", "-c", FORGED, "/run/hyperruntime/lane.sh"): ((127,), ""),
    ("env", "no-such-program"): ((127,), ""),
    ("sh", "-c", "exit 126"): ((126,), ""),
    ("true",): ((0,), ""),
}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_program_that_could_not_be_executed_is_told_from_its_own_exit_code_and_said_plainly(
    runtime: hr.Runtime, images: dict[str, str], shell: str
) -> None:
    # env(1) sets a variable with such a name; bash warns of the locale. Neither changes what is
    # said.
    variables: tuple[dict[str, str], ...] = ({}, {"a.b": "1"}, {"LC_ALL": "xx_YY.UTF-8"})
    with runtime.container(hr.ContainerSpec(image=images[shell])) as started:
        started.exec(["sh", "-c", MAKE_FILES]).check()
        for args, (codes, sentence) in OUTCOMES.items():
            for env in variables:
                if "a.b" in env and "\n" in args[0]:
                    continue  # env writes such names in another way
                result = started.exec(args, env=env, output_limit_bytes=2)
                assert result.exit_code in codes, (args, env, result)
                assert result.not_executed == bool(sentence), (args, env, result)
                for merge in (False, True) if sentence else ():
                    expect_sentence(started, args, sentence, env, merge=merge)
        process = started.spawn(["no-such-program"])
        assert (process.wait().exit_code, process.stderr.count(b"\n")) == (127, 1)
        assert b"has no program" in process.stderr
        with pytest.raises(CommandFailedError, match="could not be executed"):
            started.exec(["no-such-program"]).check()
        with pytest.raises(WorkdirNotFoundError):
            started.exec(["no-such-program"], workdir="/no/such")
        assert not started.exec(["sleep", "20"], timeout_s=0.2).not_executed
        if shell == "bash":
            assert not started.shell().run("no-such-program").not_executed


def expect_sentence(
    container: hr.Container,
    args: tuple[str, ...],
    sentence: str,
    env: dict[str, str],
    *,
    merge: bool,
) -> None:
    heard: list[tuple[str, bytes]] = []
    result = container.exec(
        args, env=env, merge_output=merge, on_output=lambda *each: heard.append(each)
    )
    said, nothing = result.stderr, result.stdout
    if merge:
        said, nothing = nothing, said
    assert re.fullmatch(f"hyperruntime: {sentence}\n", said.decode()), (args, env, said)
    assert heard == [("stdout" if merge else "stderr", said)]
    assert nothing == b""


MIMICS = [
    "hyperruntime: 3: exec: sh: not found",
    "hyperruntime: exec: line 3: sh: not found",
    "hyperruntime: 3: exec: s",
    "hyperruntime: ",
    "h",
]


def test_a_command_that_says_the_same_as_a_shell_is_not_changed(container: hr.Container) -> None:
    for said in MIMICS:
        for code in (0, 1, 126, 127):
            heard: list[tuple[str, bytes]] = []
            args = ["sh", "-c", 'printf %s "$1" >&2; exit "$2"', "sh", said, str(code)]
            result = container.exec(args, on_output=lambda *each, to=heard: to.append(each))
            assert (result.exit_code, result.stderr, result.not_executed) == (
                code,
                said.encode(),
                False,
            )
            assert b"".join(chunk for _, chunk in heard) == said.encode()
        result = container.exec(
            ["sh", "-c", 'printf %s "$1" >&2; sleep 20', "sh", said], timeout_s=0.5
        )
        assert (result.timed_out, result.stderr) == (True, said.encode())


def test_output_of_a_child_that_briefly_outlives_the_command_is_kept(
    container: hr.Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the default is too short on a busy machine
    monkeypatch.setattr(streams, "_GRACE_S", 20.0)
    assert container.exec(["bash", "-c", "echo late > >(sleep 0.05; cat)"]).stdout == b"late\n"


def test_a_brief_command_wakes_its_caller_once(
    container: hr.Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its output is read when it has ended; each wake-up costs processor time of the host."""
    monkeypatch.setattr(execution, "_BRIEF_S", 60.0)
    events: list[int] = []
    act = execution.Execution._on_event

    def noted(self: execution.Execution, descriptor: int, event: int) -> None:
        events.append(event)
        act(self, descriptor, event)

    monkeypatch.setattr(execution.Execution, "_on_event", noted)
    container.exec(["true"])
    events.clear()
    result = container.exec(
        ["sh", "-c", "head -c 50000 /dev/zero; echo problem >&2; exit 3"], timeout_s=50
    )
    assert (result.exit_code, result.stdout, result.stderr) == (3, bytes(50_000), b"problem\n")
    assert len(events) == 1


def test_kill_0_ends_the_command_and_nothing_else(container: hr.Container) -> None:
    with ThreadPoolExecutor(1) as threads:
        sibling = threads.submit(container.exec, ["sh", "-c", "sleep 1; echo lives"])
        time.sleep(0.2)
        assert container.exec(["sh", "-c", "kill 0; sleep 5"]).exit_code == 128 + signal.SIGTERM
        assert container.exec(["sh", "-c", "kill -9 0; sleep 5"]).exit_code == 137
        assert sibling.result().stdout == b"lives\n"


def command_lines(container: hr.Container) -> bytes:
    return container.exec(["sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null"]).stdout


def test_signals_to_all_processes_do_not_end_the_librarys_shells(
    shell_container: hr.Container,
) -> None:
    for name in ("TERM", "HUP", "INT", "USR1"):
        with ThreadPoolExecutor(1) as threads:
            sibling = threads.submit(shell_container.exec, ["sleep", "30"])
            assert wait_until(lambda: b"sleep\x0030\x00" in command_lines(shell_container), 60)
            shell_container.exec(
                ["sh", "-c", f"trap '' {name}; kill -{name} -1; sleep 0.1"]
            ).check()
            assert sibling.result(timeout=60).exit_code > 128
        assert shell_container.exec(["echo", "works"]).stdout == b"works\n"


def test_a_killed_idle_lane_is_not_used(container: hr.Container) -> None:
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: container.exec(["sleep", "0.2"]), range(4)))
    killed = container.exec(["sh", "-c", "pkill -9 -f lane.sh; sleep 1"])
    assert killed.exit_code == 137
    for _ in range(8):
        assert container.exec(["echo", "works"]).stdout == b"works\n"


def test_one_lane_runs_long_and_short_commands_in_turn(shell_container: hr.Container) -> None:
    for size in (10, 100_000, 10, 9000, 8190, 8192, 10):
        assert (
            shell_container.exec(["sh", "-c", "printf %s ${#1}", "x", "y" * size]).stdout
            == str(size).encode()
        )


def test_an_unknown_keyword_is_refused_at_once(container: hr.Container) -> None:
    with pytest.raises(TypeError, match="timout_s"):
        container.exec(["true"], timout_s=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("args", [["-x"], [1]])
def test_malformed_arguments_are_refused(container: hr.Container, args: list[str]) -> None:
    with pytest.raises(SpecError, match="args"):
        container.exec(args)
