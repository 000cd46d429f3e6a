"""The same scenarios in SWE-ReX's own runtime, which runs on this machine, and in ours."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from swerex import exceptions
from swerex.runtime.abstract import (
    AbstractRuntime,
    BashAction,
    BashInterruptAction,
    CloseBashSessionRequest,
    Command,
    CreateBashSessionRequest,
    ReadFileRequest,
    UploadRequest,
    WriteFileRequest,
)
from swerex.runtime.local import LocalRuntime

import hyperruntime as hr
from hyperruntime_swe_rex import Runtime

pytestmark = pytest.mark.engine

SESSION = CreateBashSessionRequest(startup_timeout=10)
numbers = itertools.count()


@attrs.frozen
class Place:
    """A runtime, and a directory of its own there."""

    runtime: AbstractRuntime
    directory: str

    async def say(self, command: str, **options: Any) -> tuple[str, int | None]:
        """Run a command in the default session; return its output and its exit code."""
        seen = await self.runtime.run_in_session(
            BashAction(command=command, **{"timeout": 20, **options})
        )
        return seen.output, seen.exit_code


@pytest.fixture(scope="module")
def shared(runtime: hr.Runtime, base_image: str) -> Iterator[hr.Container]:
    with runtime.container(hr.ContainerSpec(image=base_image)) as container:
        yield container


# SWE-ReX's own waits at most 0.1 s for a prompt, which is too short on a busy machine.
@pytest.fixture(params=[pytest.param("theirs", marks=pytest.mark.flaky(reruns=9)), "ours"])
async def place(
    request: pytest.FixtureRequest,
    shared: hr.Container,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Place]:
    # as in SWE-ReX's images; else its bash writes escape sequences
    monkeypatch.setenv("TERM", "dumb")
    if request.param == "theirs":
        found = Place(LocalRuntime(), str(tmp_path))
    else:
        found = Place(Runtime(shared), f"/tmp/{next(numbers)}")
        shared.exec(["mkdir", "-p", found.directory]).check()
    yield found
    await found.runtime.close()


@pytest.fixture
async def session(place: Place) -> Place:
    await place.runtime.create_session(SESSION)
    return place


RESULTS = [
    ("echo hello world", "hello world\n", 0),
    ("echo ''", "\n", 0),
    ("printf '\\n\\nx\\n\\n'", "\n\nx\n\n", 0),
    ("printf '  x'", "  x", 0),
    ("", "", 0),
    ("\n\n \n", "", 0),
    ("# a comment", "", 0),
    ("\n\n echo 1 \n  \n echo 2 \n\n", "1\n2\n", 0),
    ("cat <<END\na\nb\nEND", "a\nb\n", 0),
    ("for i in {1..3};\n do echo $i;\n done", "1\n2\n3\n", 0),
    ("echo a; echo b && echo c", "a\nb\nc\n", 0),
    ("[[ $HOME == $HOME ]]", "", 0),
    ("echo a;A=();echo b", "a\nb\n", 0),
    ("A=(); false", "", 1),
    ("false && true", "", 1),
    ("false || true", "", 0),
    ("(exit 42)", "", 42),
    ("echo out; echo err >&2; echo out", "out\nerr\nout\n", 0),
    ("printf 'a\\r\\nb\\n'", "a\r\nb\n", 0),
    ("printf '\\033[31mred\\033[0m\\n'", "red\n", 0),
    ("printf '\\303\\244 \\377\\n'", "ä \\xff\n", 0),
    ("(sleep 100) &", "", 0),
]


async def test_commands_of_a_session_have_the_same_output_and_exit_code(session: Place) -> None:
    for command, output, code in RESULTS:
        said = await session.say(command, check="silent")
        if command.endswith("&"):
            said = ("", said[1])  # an interactive bash prints the number of a job
        assert said == (output, code), command
    assert (await session.say("no-such-program", check="silent"))[1] == 127


async def test_the_check_decides_what_a_failure_is(session: Place) -> None:
    assert await session.say("false", check="silent") == ("", 1)
    assert await session.say("false", check="ignore") == ("", None)
    with pytest.raises(exceptions.NonZeroExitCodeError, match=r"why.*exit code 3"):
        await session.say("echo seen; (exit 3)", error_msg="why")
    with pytest.raises(exceptions.NonZeroExitCodeError, match="seen"):
        await session.say("echo seen; false", check="raise")


@pytest.mark.parametrize("command", ["(a", "a='", "for", "echo never; fi"])
async def test_code_that_bash_cannot_parse_does_not_run(session: Place, command: str) -> None:
    with pytest.raises(exceptions.BashIncorrectSyntaxError) as caught:
        await session.say(f"touch {session.directory}/ran\n{command}")
    assert set(caught.value.extra_info) == {"bash_stdout", "bash_stderr"}
    assert "bash" in caught.value.extra_info["bash_stderr"]
    assert await session.say(f"ls {session.directory}") == ("", 0)


async def test_sessions_last_and_do_not_see_each_other(place: Place) -> None:
    for name in ("one", "two"):
        await place.runtime.create_session(
            CreateBashSessionRequest(session=name, startup_timeout=10)
        )
        await place.say(f"x={name}; cd /usr; hello() {{ echo hello $x; }}", session=name)
    for name in ("one", "two"):
        assert await place.say("hello; pwd", session=name) == (f"hello {name}\n/usr\n", 0)
    with pytest.raises(exceptions.SessionExistsError):
        await place.runtime.create_session(CreateBashSessionRequest(session="one"))
    await place.runtime.close_session(CloseBashSessionRequest(session="one"))
    with pytest.raises(exceptions.SessionDoesNotExistError):
        await place.runtime.close_session(CloseBashSessionRequest(session="one"))
    with pytest.raises(exceptions.SessionDoesNotExistError):
        await place.say("true", session="one")
    assert await place.say("hello", session="two") == ("hello two\n", 0)


async def test_files_are_read_at_the_start_of_a_session(place: Place) -> None:
    path = f"{place.directory}/start"
    await place.runtime.write_file(
        WriteFileRequest(path=path, content="echo started; word=ready\n")
    )
    request = CreateBashSessionRequest(startup_source=[path], startup_timeout=10)
    assert (await place.runtime.create_session(request)).output.strip().endswith("started")
    assert await place.say("echo $word") == ("ready\n", 0)


async def test_a_command_that_is_late_is_interrupted(session: Place) -> None:
    await session.say("word=kept; cd /usr")
    with pytest.raises(exceptions.CommandTimeoutError):
        await session.say("echo before; sleep 1000", timeout=3)
    seen = await session.runtime.run_in_session(BashInterruptAction())
    assert (seen.exit_code, "before" in seen.output) == (0, True)
    assert await session.say("echo $word; pwd") == ("kept\n/usr\n", 0)


async def test_an_interrupt_of_a_session_that_does_nothing_does_nothing(session: Place) -> None:
    seen = await session.runtime.run_in_session(BashInterruptAction())
    # their terminal shows the key
    assert (seen.output.replace("^C", ""), seen.exit_code) == ("", 0)
    assert await session.say("echo on") == ("on\n", 0)


async def test_a_program_that_asks_is_answered(session: Place) -> None:
    prompt: dict[str, Any] = {"is_interactive_command": True, "expect": [">>> "]}
    first = await session.runtime.run_in_session(
        BashAction(command="python3 -q", timeout=20, **prompt)
    )
    assert (first.exit_code, first.expect_string) == (0, ">>> ")
    assert await session.say("x = 6 * 7", **prompt) == ("", 0)
    assert await session.say("print(x, 'is it')", **prompt) == ("42 is it", 0)
    await session.say("quit()\n", is_interactive_quit=True)
    assert (await session.say("echo back"))[0].endswith("back\n")


async def test_a_program_that_asks_may_be_late(session: Place) -> None:
    with pytest.raises(exceptions.CommandTimeoutError):
        await session.say(
            "python3 -q", is_interactive_command=True, expect=["never seen"], timeout=0.5
        )


EXECUTED: list[tuple[dict[str, Any], str, str, int]] = [
    ({"command": ["echo", "-n", " a b\n"]}, " a b\n", "", 0),
    ({"command": "echo '\n x'; echo err >&2; exit 3", "shell": True}, "\n x\n", "err\n", 3),
    (
        {"command": "echo out; echo err >&2", "shell": True, "merge_output_streams": True},
        "out\nerr\n",
        "",
        0,
    ),
    (
        {"command": ["sh", "-c", "pwd; echo $WORD"], "cwd": "/usr", "env": {"WORD": "a b"}},
        "/usr\na b\n",
        "",
        0,
    ),
    ({"command": "", "shell": True, "check": True}, "", "", 0),
    ({"command": ["echo $0 $1", "a", "b"], "shell": True}, "a b\n", "", 0),
    ({"command": "pwd", "cwd": "/"}, "/\n", "", 0),
]


async def test_commands_outside_sessions_have_the_same_results(place: Place) -> None:
    for options, stdout, stderr, code in EXECUTED:
        done = await place.runtime.execute(Command(timeout=20, **options))
        assert (done.stdout, done.stderr, done.exit_code) == (stdout, stderr, code), options
    with pytest.raises(exceptions.NonZeroExitCodeError, match=r"why.*seen"):
        await place.runtime.execute(
            Command(command="echo seen; false", shell=True, check=True, error_msg="why")
        )
    with pytest.raises(exceptions.CommandTimeoutError):
        await place.runtime.execute(Command(command=["sleep", "1000"], timeout=0.2))
    for missing in (
        {"command": "no such program"},
        {"command": "pwd", "cwd": "/no/such/directory"},
    ):
        with pytest.raises(FileNotFoundError):
            await place.runtime.execute(Command(**missing))


async def test_files_are_written_and_read(place: Place) -> None:
    path = f"{place.directory}/new directory/file"
    for content in ("", "ä\nb\n", "x" * 1024**2):
        await place.runtime.write_file(WriteFileRequest(path=path, content=content))
        assert (await place.runtime.read_file(ReadFileRequest(path=path))).content == content
    await place.runtime.execute(
        Command(command=f"printf 'a\\r\\n\\344' >'{path}'", shell=True, check=True)
    )
    with pytest.raises(UnicodeDecodeError):
        await place.runtime.read_file(ReadFileRequest(path=path))
    for options, content in (({"encoding": "latin-1"}, "a\nä"), ({"errors": "replace"}, "a\n�")):
        assert (
            await place.runtime.read_file(ReadFileRequest(path=path, **options))
        ).content == content
    for missing in ("nothing-of-this-name", f"{place.directory}/nothing"):
        with pytest.raises(FileNotFoundError):
            await place.runtime.read_file(ReadFileRequest(path=missing))
    with pytest.raises(IsADirectoryError):
        await place.runtime.read_file(ReadFileRequest(path=place.directory))


async def test_files_and_directories_are_uploaded(place: Place, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "below").mkdir(parents=True)
    (source / "a").write_text("1")
    (source / "below/b").write_text("2")
    await place.runtime.upload(
        UploadRequest(source_path=str(source), target_path=f"{place.directory}/target")
    )
    (tmp_path / "link").symlink_to(source / "a")
    for number, file in enumerate((source / "a", tmp_path / "link")):
        target = f"{place.directory}/file {number}"
        await place.runtime.upload(UploadRequest(source_path=str(file), target_path=target))
        assert (await place.runtime.read_file(ReadFileRequest(path=target))).content == "1"
    assert (
        await place.runtime.read_file(ReadFileRequest(path=f"{place.directory}/target/below/b"))
    ).content == "2"
    with pytest.raises(FileNotFoundError):
        await place.runtime.upload(
            UploadRequest(source_path="/no/such/file", target_path=f"{place.directory}/x")
        )


async def test_it_is_alive(place: Place) -> None:
    assert await place.runtime.is_alive(timeout=5)
