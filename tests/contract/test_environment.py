"""T1: the environment of one task, without asyncio: results, directories, deadlines, interrupts,
isolated tasks.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import hyperruntime as hr
from hyperruntime.adapters.environment import HyperEnvironment, close_shared_pools
from hyperruntime.errors import (
    ImageNotFoundError,
    PoolError,
    PoolStartError,
    SandboxLostError,
    SpecError,
)
from hyperruntime.host.process import wait_until

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def image(runtime: hr.Runtime) -> Iterator[str]:
    yield runtime.images.ensure("base")
    close_shared_pools()


@pytest.fixture(scope="module")
def environment(runtime_name: str, image: str) -> Iterator[HyperEnvironment]:
    with HyperEnvironment(image, env={"GREETING": "a 'b' $c"}, runtime=runtime_name) as made:
        yield made


def sleepers(environment: HyperEnvironment, seconds: str) -> int:
    """Return how many processes of a container sleep for so long."""
    search = f"grep -al '[s]leep.{seconds}' /proc/[0-9]*/cmdline 2>/dev/null | wc -l"
    return int(environment.execute(search)["output"])


def test_both_outputs_are_merged_in_the_order_of_writing(environment: HyperEnvironment) -> None:
    script = "for n in 1 2 3; do echo out $n; echo err $n >&2; done; (exit 7)"
    assert environment.execute(script) == {
        "output": "out 1\nerr 1\nout 2\nerr 2\nout 3\nerr 3\n",
        "returncode": 7,
    }


@pytest.mark.parametrize(
    ("command", "code", "output"),
    [
        ("exit 200", 200, ""),
        ('echo "$GREETING"', 0, "a 'b' $c\n"),
        ("cat", 0, ""),
        ("printf 'no newline'", 0, "no newline"),
    ],
)
def test_a_command_runs_in_bash_and_its_exit_code_is_exact(
    environment: HyperEnvironment, command: str, code: int, output: str
) -> None:
    assert environment.execute(command) == {"output": output, "returncode": code}


@pytest.mark.parametrize(
    ("command", "data"),
    [("a\0b", None), ("\ud800", None), (5, None), (None, None), (["ls"], None), ("cat", 5)],
)
def test_an_invalid_command_or_input_is_refused_and_has_no_effect(
    environment: HyperEnvironment, command: Any, data: Any
) -> None:
    with pytest.raises(SpecError, match="is not allowed"):
        environment.execute(command, stdin_data=data)
    assert environment.execute("echo on")["output"] == "on\n"


def test_cleanup_after_the_end_of_the_pool_is_not_an_error(runtime: hr.Runtime, image: str) -> None:
    """A program may close all pools before it leaves the `with` blocks of its environments."""
    with hr.open_pool(
        hr.PoolConfig(spec=hr.ContainerSpec(image=image), slots_per_container=1), runtime
    ) as pool:
        environment = HyperEnvironment(pool=pool)
    environment.cleanup()
    with pytest.raises(PoolError):
        environment.execute("echo")


@pytest.mark.parametrize("data", ["plain\n", "ü\udcff'\"$\n", b"\x00\xff\x00", "", "x" * 3_000_000])
def test_input_arrives_unchanged(environment: HyperEnvironment, data: str | bytes) -> None:
    raw = data.encode(errors="surrogateescape") if isinstance(data, str) else data
    result = environment.execute("cksum; cat; wc -c", stdin_data=data)
    assert result["returncode"] == 0
    assert result["output"].split()[1] == str(len(raw))


def test_a_long_command_can_have_input(environment: HyperEnvironment) -> None:
    filler = "# " + "x" * 3_000_000
    result = environment.execute(
        f"{filler}\nread -r line; echo got $line; cat", stdin_data="first\nsecond\n"
    )
    assert result == {"output": "got first\nsecond\n", "returncode": 0}


@pytest.mark.parametrize(
    "name", ["a b", "it's", 'q"$(touch x)`', "-n", "new\nline", ";echo INJECTED", "ü\udcff"]
)
def test_directories_can_have_any_name(environment: HyperEnvironment, name: str) -> None:
    made = environment.execute(
        'IFS= read -r -d "" name; mkdir -p -- "./$name"', stdin_data=name + "\0"
    )
    assert made["returncode"] == 0, made
    relative = environment.execute("printf %s \"${PWD##*/}\" | od -An -tx1 | tr -d ' \n'", name)
    assert bytes.fromhex(relative["output"]) == os.fsencode(name).rpartition(b"/")[2]
    absolute = environment.execute("pwd", f"{environment.workspace}/{name}")
    assert absolute["output"] == os.fsencode(f"{environment.workspace}/{name}\n").decode(
        errors="replace"
    )


def test_a_relative_directory_is_below_the_cwd_of_the_environment(
    runtime_name: str, image: str
) -> None:
    with HyperEnvironment(image, cwd="/usr", runtime=runtime_name) as made:
        assert made.execute("pwd", "lib")["output"] == "/usr/lib\n"
        assert made.execute("pwd", "/etc")["output"] == "/etc\n"
        assert made.execute("pwd")["output"] == "/usr\n"


def test_a_variable_of_one_call_is_added_to_those_of_the_environment(
    environment: HyperEnvironment,
) -> None:
    show = 'echo "$GREETING $OTHER"'
    assert environment.execute(show, env={"OTHER": "x", "GREETING": "y"})["output"] == "y x\n"
    assert environment.execute(show)["output"] == "a 'b' $c \n"


def test_an_environment_has_mounts_and_names_its_container(
    runtime: hr.Runtime, runtime_name: str, image: str, tmp_path: Path
) -> None:
    (tmp_path / "note").write_text("from the host\n")
    with HyperEnvironment(
        image, runtime=runtime_name, mounts=[hr.Mount(source=str(tmp_path), target="/notes")]
    ) as made:
        assert made.execute("cat /notes/note; touch /notes/x 2>/dev/null || echo read-only") == {
            "output": "from the host\nread-only\n",
            "returncode": 0,
        }
        assert made.container in {found.record.id for found in runtime.containers()}


def test_an_environment_runs_as_the_user_that_it_names(runtime_name: str, image: str) -> None:
    if runtime_name in (
        "apptainer",
        "bubblewrap",
        "charliecloud",
    ):  # the main user of a container is the caller
        with pytest.raises(PoolStartError, match="user"):
            HyperEnvironment(image, runtime=runtime_name, user="1234:1234")
        return
    with HyperEnvironment(image, runtime=runtime_name, user="1234:1234") as made:
        assert (
            made.execute("id -u; id -g; touch here && echo wrote")["output"]
            == "1234\n1234\nwrote\n"
        )


def test_a_long_output_has_no_part_of_a_character(runtime_name: str, image: str) -> None:
    with HyperEnvironment(image, runtime=runtime_name, output_limit_bytes=1000) as environment:
        output = environment.execute("printf x; printf '\\344\\270\\255%.0s' $(seq 5000)")["output"]
        assert output.startswith("x中")
        assert output.endswith("中中")
        assert "\ufffd" not in output


def test_a_missing_directory_is_a_failed_command(environment: HyperEnvironment) -> None:
    result = environment.execute("pwd", "nowhere/at all")
    assert result["returncode"] == 126
    assert "no such directory" in result["output"]


def test_a_deadline_ends_all_processes_and_keeps_the_output(environment: HyperEnvironment) -> None:
    result: dict[str, Any] = {"output": ""}
    for _ in range(5):  # on a busy machine, the command may not start before its deadline
        if not result["output"].startswith("begun"):
            result = dict(
                environment.execute("echo begun; setsid sleep 8412 & sleep 8413", timeout=0.6)
            )
    assert result["returncode"] == 124
    assert result["output"] == "begun\n[timed out after 0.6 s]\n"
    assert sleepers(environment, "841[23]") == 0
    assert environment.execute("exit 124") == {"output": "", "returncode": 124}


def test_another_thread_can_interrupt_running_commands(environment: HyperEnvironment) -> None:
    with ThreadPoolExecutor(2) as threads:
        running = [
            threads.submit(environment.execute, f"touch began{n}; sleep 8414") for n in range(2)
        ]
        assert wait_until(lambda: environment.execute("ls")["output"].count("began") == 2, 60)
        assert environment.interrupt() == 2
        assert [future.result(timeout=60)["returncode"] for future in running] == [130, 130]
    assert sleepers(environment, "8414") == 0
    assert environment.execute("echo on")["output"] == "on\n"
    assert environment.interrupt() == 0


def test_ctrl_c_ends_the_running_command(environment: HyperEnvironment) -> None:
    def press(main: int) -> None:
        assert wait_until(lambda: "waited-for" in environment.execute("ls")["output"], 60)
        signal.pthread_kill(main, signal.SIGINT)

    main = threading.main_thread().ident
    assert main is not None
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with ThreadPoolExecutor(1) as threads:
            pressed = threads.submit(press, main)
            result = environment.execute("touch waited-for; sleep 8415")
            pressed.result()
    finally:
        signal.signal(signal.SIGINT, before)
    assert result["returncode"] == 130
    assert sleepers(environment, "8415") == 0


def test_two_tasks_share_no_directory_file_or_process(runtime_name: str, image: str) -> None:
    """W16: with a shared start directory, tasks could read each other's files."""
    with (
        HyperEnvironment(image, runtime=runtime_name, task_id="a") as one,
        HyperEnvironment(image, runtime=runtime_name, task_id="b") as two,
    ):
        one.execute(
            "echo secret >note; echo secret >/tmp/note; (exec -a hidden sleep 8416) & sleep 0.1"
        )
        for path in ("note", "/tmp/note", f"{one.workspace}/note"):
            assert two.execute(f"cat {path}")["returncode"] != 0
        assert (
            "hidden"
            not in two.execute("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '")["output"]
        )
        assert one.execute("cat note")["output"] == "secret\n"


def test_environments_run_at_the_same_time(runtime_name: str, image: str) -> None:
    with ThreadPoolExecutor(4) as threads:

        def work(number: int) -> str:
            with HyperEnvironment(image, runtime=runtime_name) as made:
                return str(made.execute(f"echo {number} >f; sleep 0.2; cat f")["output"])

        assert list(threads.map(work, range(8))) == [f"{n}\n" for n in range(8)]


def test_cleanup_ends_commands_and_refuses_new_ones(runtime_name: str, image: str) -> None:
    made = HyperEnvironment(image, runtime=runtime_name)
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(made.execute, "touch began; sleep 8418")
        assert wait_until(lambda: "began" in made.execute("ls")["output"], 60)
        made.cleanup()
        assert running.result(timeout=60)["returncode"] == 130
    made.stop()
    made.cleanup()
    with pytest.raises(PoolError, match="create a new one"):
        made.execute("true")


def test_a_lost_container_raises_an_error(
    runtime_name: str, image: str, engine_command: object
) -> None:
    with HyperEnvironment(image, runtime=runtime_name) as made:
        with pytest.raises(SandboxLostError):
            made.execute("kill -9 -1; sleep 5")
        with pytest.raises(SandboxLostError):
            made.execute("true")


def test_a_missing_image_is_an_error_at_once(runtime_name: str, image: str) -> None:
    with pytest.raises((PoolStartError, ImageNotFoundError), match="not on this machine"):
        HyperEnvironment("localhost/hyperruntime/none:such", runtime=runtime_name)
