"""The tool bash, in a real container."""

from __future__ import annotations

import time

import pytest

import hyperruntime as hr
from tests.contract.toolplace import Desk, make_desk

pytestmark = pytest.mark.engine


@pytest.fixture
def desk(container: hr.Container) -> Desk:
    return make_desk(container)


def test_streams_are_returned_separately_and_merged_and_the_exit_code_is_exact(desk: Desk) -> None:
    """R7, W10."""
    result = desk("bash", command="echo out; echo err >&2; exit 3")

    assert (result.success, result.exit_code, result.metadata["returncode"]) == (False, 3, 3)
    assert (result.stdout, result.stderr, result.output) == (
        "out\n",
        "err\n",
        "out\n[stderr]\nerr\n",
    )
    assert "exit code 3" in result.error
    assert result.slot_id == desk.slot_exec.slot_id
    assert result.execution_id


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("true", 0),
        ("no-such-program", 127),
        ("/etc/passwd", 126),
        ("kill -9 $$", 137),
        ("(", 2),
        ("exit 255", 255),
    ],
)
def test_exit_codes_are_those_of_bash(desk: Desk, command: str, code: int) -> None:
    """W10."""
    assert desk("bash", command=command).metadata["returncode"] == code


def test_the_shell_is_a_real_bash(desk: Desk) -> None:
    """W15: pipefail, source, arrays, process substitution."""
    command = (
        "set -o pipefail; echo 'v=1' > f; source f; a=(x y); cat <(echo ${a[1]} $v); false | true"
    )

    result = desk("bash", command=command)

    assert (result.stdout, result.exit_code) == ("y 1\n", 1)


def test_a_command_of_megabytes_runs(desk: Desk) -> None:
    """W7: no limit of argument sizes."""
    text = "cat <<'END' | sha256sum\n" + "é$(id)`'\n" * 300_000 + "END\n"

    assert desk("bash", command=text).stdout.startswith("270386c1eb81690d")


def test_standard_input_is_the_given_text_or_empty(desk: Desk) -> None:
    assert desk("bash", command="cat | tr a-z A-Z", stdin="é abc\n").stdout == "é ABC\n"
    assert desk("bash", command="cat; echo end").stdout == "end\n"
    assert desk("bash", command="", stdin="ignored").exit_code == 0
    assert desk("bash", command="readlink /proc/self/fd/0").stdout == "/dev/null\n", (
        "programs check its type"
    )


def test_a_command_is_on_no_command_line_and_cannot_find_itself(desk: Desk) -> None:
    result = desk("bash", command="pkill -f 'a word of this very command'; echo alive")

    assert result.stdout == "alive\n"


@pytest.mark.parametrize("padding", ["", "x" * 200_000], ids=["short", "long"])
def test_a_command_finds_no_variable_that_its_caller_did_not_give(desk: Desk, padding: str) -> None:
    result = desk(
        "bash", command=f": {padding}\ncompgen -v | grep -ci '_text$'; env | grep -c compgen; cat"
    )

    assert (result.stdout, result.stderr) == ("0\n0\n", "")


def test_a_timeout_ends_children_that_hold_the_output_open(desk: Desk) -> None:
    """W6: in the public system, a timeout of one second took eight seconds."""
    started = time.monotonic()
    result = desk("bash", command="echo begun; setsid sleep 300 & sleep 300", timeout=1)
    for _ in range(4):
        if not result.stdout:  # on a busy machine, the command had not started in time
            result = desk("bash", command="echo begun; setsid sleep 300 & sleep 300", timeout=1)

    assert (result.timed_out, result.exit_code, result.stdout) == (True, 124, "begun\n")
    assert "after 1 s" in result.error
    assert time.monotonic() - started < 60
    assert "sleep 300" not in desk.sh("ps -axo args=")


def test_long_output_is_shown_as_head_and_tail_with_the_number_of_missing_bytes(
    container: hr.Container,
) -> None:
    """W9."""
    desk = make_desk(container, output_chars=100)

    result = desk("bash", command="printf 'é%.0s' {1..1000}; seq 1000 >&2")

    assert result.truncated
    assert result.stdout == "é" * 50 + "\n[... 1800 bytes are not shown ...]\n" + "é" * 50
    assert result.stderr.startswith("1\n2\n")
    assert result.stderr.endswith("999\n1000\n")


def test_a_command_starts_in_the_workspace_or_in_workdir(desk: Desk) -> None:
    desk("bash", command="mkdir -p 'a b'")

    assert desk("bash", command="pwd").stdout == f"{desk.slot_exec.workspace}\n"
    assert desk("bash", command="pwd", workdir="a b").stdout == f"{desk.slot_exec.workspace}/a b\n"
    assert desk("bash", command="pwd", workdir="/etc").stdout == "/etc\n"
    missing = desk("bash", command="pwd", workdir="none")
    assert not missing.success
    assert "no such directory" in missing.error


@pytest.mark.parametrize("tool", ["bash", "bash_stateful"])
def test_an_image_without_bash_is_refused_by_name(
    runtime: hr.Runtime, busybox_image: str, base_image: str, tool: str
) -> None:
    """W15: /bin/sh is never used instead of bash."""
    has_bash = busybox_image == base_image  # an engine with one image
    with runtime.container(hr.ContainerSpec(image=busybox_image)) as container:
        result = make_desk(container)(tool, command="echo hi")

    assert (result.success, "no bash" in result.error) == (has_bash, not has_bash)
