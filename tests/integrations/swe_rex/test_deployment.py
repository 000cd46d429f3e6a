"""What only ours does: the container, its end, and sessions that are shells with terminals for
programs that ask.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest
from swerex import exceptions
from swerex.deployment.config import get_deployment
from swerex.deployment.hooks.status import SetStatusDeploymentHook
from swerex.runtime.abstract import (
    BashAction,
    BashInterruptAction,
    BashObservation,
    CloseBashSessionRequest,
    Command,
    CreateBashSessionRequest,
    ReadFileRequest,
    WriteFileRequest,
)

from hyperruntime_swe_rex import Deployment, DeploymentConfig, Runtime
from hyperruntime_swe_rex.runtime import ContainerError
from tests.integrations.swe_rex.example import compute

pytestmark = pytest.mark.engine


@pytest.fixture
async def deployment(base_image: str, runtime_name: str) -> AsyncIterator[Deployment]:
    found = Deployment(
        image=base_image, runtime=runtime_name, container={"env": {"WORD": "from the spec"}}
    )
    await found.start()
    await found.runtime.create_session(CreateBashSessionRequest())
    yield found
    await found.stop()


async def say(deployment: Deployment, command: str, **options: Any) -> BashObservation:
    """Run a command in the default session."""
    return await deployment.runtime.run_in_session(
        BashAction(command=command, **{"timeout": 20, **options})
    )


async def leave_running(deployment: Deployment, command: str, seen: str) -> None:
    """Run a command until it has said something; it then goes on, and keeps others waiting."""
    await say(deployment, command, expect=[seen], check="silent")
    with pytest.raises(exceptions.CommandTimeoutError, match=r"echo never.*in time"):
        await say(deployment, "echo never", timeout=0.2)


async def test_a_deployment_starts_and_stops(base_image: str, runtime_name: str) -> None:
    config = DeploymentConfig(
        image=base_image, runtime=runtime_name, container={"limits": {"pids": 100}}
    )
    deployment, steps = get_deployment(config), list[tuple[str, str]]()
    assert isinstance(deployment, Deployment)
    deployment.add_hook(SetStatusDeploymentHook("its id", lambda *step: steps.append(step)))
    with pytest.raises(exceptions.DeploymentNotStartedError):
        await deployment.is_alive()
    await deployment.stop()
    await deployment.start()
    assert steps == [("its id", "Starting container")]
    assert await deployment.is_alive()
    with pytest.raises(exceptions.DeploymentStartupError, match="already"):
        await deployment.start()
    runtime = deployment.runtime
    await deployment.stop()
    assert not await runtime.is_alive()
    assert not runtime.container.is_alive
    await deployment.start()  # again, with a new container
    assert await deployment.is_alive()
    await deployment.stop()


@pytest.mark.parametrize(
    "wrong", [{"image": "localhost/no-such-image:1"}, {"container": {"netwrok": "none"}}]
)
async def test_a_container_that_cannot_be_started_is_an_error_of_the_framework(
    wrong: dict[str, Any], base_image: str, runtime_name: str
) -> None:
    with pytest.raises(exceptions.DeploymentStartupError, match=r"no-such-image|netwrok"):
        await Deployment(**{"image": base_image, "runtime": runtime_name, **wrong}).start()


async def test_the_image_holds_nothing_of_the_framework(deployment: Deployment) -> None:
    found = await deployment.runtime.execute(
        Command(command="command -v swerex-remote; python3 -c 'import swerex'", shell=True)
    )
    assert (found.stdout, "No module named" in found.stderr) == ("", True)


def test_each_call_may_have_an_event_loop_of_its_own(base_image: str, runtime_name: str) -> None:
    """SWE-agent calls `asyncio.run` for each action."""
    deployment = Deployment(image=base_image, runtime=runtime_name)
    asyncio.run(deployment.start())
    try:
        asyncio.run(
            deployment.runtime.create_session(
                CreateBashSessionRequest(startup_source=["/etc/profile"])
            )
        )
        asyncio.run(say(deployment, "cd /usr; word=kept"))
        asyncio.run(leave_running(deployment, "echo output so far; sleep 1000", "output"))
        assert (
            asyncio.run(deployment.runtime.run_in_session(BashInterruptAction())).output == "so far"
        )
        prompt: dict[str, Any] = {"is_interactive_command": True, "expect": ["word: "]}
        asyncio.run(say(deployment, "read -p 'word: ' word", **prompt))
        asyncio.run(say(deployment, "typed", is_interactive_quit=True))
        assert asyncio.run(say(deployment, "echo $word $PWD")).output == "typed /usr\n"
    finally:
        asyncio.run(deployment.stop())


async def test_a_command_that_ignores_interrupts_is_killed_and_the_session_stays(
    deployment: Deployment,
) -> None:
    await say(deployment, "word=kept")
    await leave_running(
        deployment, "trap '' INT; echo is started; while :; do sleep 1; done", "is "
    )
    seen = await deployment.runtime.run_in_session(BashInterruptAction())
    assert (seen.output, seen.exit_code) == ("started", 0)
    assert (await say(deployment, "echo $word")).output == "kept\n"


async def test_a_command_waits_for_one_that_was_late(deployment: Deployment) -> None:
    await leave_running(
        deployment, "echo first; until [ -e /tmp/go ]; do sleep 0.05; done; word=first", "first"
    )
    third = asyncio.create_task(say(deployment, "echo third after $word"))
    await deployment.runtime.execute(Command(command=["touch", "/tmp/go"], check=True))
    assert (await third).output == "third after first\n"


async def test_programs_see_a_terminal_only_where_they_ask(deployment: Deployment) -> None:
    looks = "for n in 0 1 2; do test -t $n && echo yes || echo no; done; cat"
    assert (await say(deployment, looks)).output == "no\nno\nno\n"
    lines = r"yes\s+yes\s+yes\s+"  # a terminal ends them with \r\n
    seen = await say(deployment, looks, is_interactive_command=True, expect=[lines])
    assert (seen.output, seen.expect_string) == ("", lines)
    assert (
        await say(deployment, "seen again", is_interactive_command=True, expect=["again\\s"])
    ).output == "seen"
    with pytest.raises(exceptions.NonZeroExitCodeError, match="130"):
        await asyncio.gather(
            say(deployment, "typed"), deployment.runtime.run_in_session(BashInterruptAction())
        )


async def test_the_end_of_a_program_that_asks_is_not_lost_with_its_last_output(
    deployment: Deployment,
) -> None:
    seen = await say(
        deployment, "seq 20000; cd /usr; exit_is() { return 3; }", is_interactive_command=True
    )
    assert seen.output.split() == [str(number) for number in range(1, 20001)]
    assert (await say(deployment, "exit_is; echo $? $PWD")).output == "3 /usr\n"


async def test_output_is_exact_whatever_the_command_is(deployment: Deployment) -> None:
    documents = "cat <<END\na\nEND\ncat <<'END'\n$b\nEND"
    assert (await say(deployment, documents)).output == "a\n$b\n"
    for said in (
        "SHELLPS1PREFIX",
        "UNIQUESTRING29234",
        "EXITCODESTART0EXITCODEEND",
        "\t\r \r\n\n",
        "x" * 300000,
    ):
        await deployment.runtime.write_file(WriteFileRequest(path="/tmp/said", content=said))
        assert (await say(deployment, "cat /tmp/said")).output == said


async def test_an_expected_text_ends_the_wait_before_the_command_ends(
    deployment: Deployment,
) -> None:
    served = "echo listening on 1; sleep 1000"
    seen = await say(deployment, served, expect=["on [0-9]", "listening"], check="silent")
    assert (seen.output, seen.expect_string, seen.exit_code) == ("", "listening", None)
    seen = await deployment.runtime.run_in_session(BashInterruptAction(expect=["on [0-9]"]))
    assert (seen.output, seen.expect_string) == ("", "on [0-9]")
    await deployment.runtime.run_in_session(BashInterruptAction())
    with pytest.raises(exceptions.NoExitCodeError):
        await say(deployment, served, expect=["listening"])


async def test_the_end_of_the_shell_is_a_result(deployment: Deployment) -> None:
    assert (await say(deployment, "word=kept; exit 3", check="silent")).exit_code == 3
    assert (await say(deployment, "echo $word", check="silent")).output == "kept\n"
    assert (await say(deployment, "kill -9 $$", check="silent")).exit_code == 137
    assert (
        await say(deployment, "echo $word $WORD", check="silent")
    ).output == "kept from the spec\n"


async def test_output_without_end_is_bounded(deployment: Deployment) -> None:
    for options in ({}, {"is_interactive_command": True, "expect": ["never"]}):
        with pytest.raises(exceptions.CommandTimeoutError):
            await say(deployment, "yes a line of output", timeout=2, **options)
        seen = await deployment.runtime.run_in_session(BashInterruptAction())
        assert 0 < len(seen.output) <= 10 * 1024**2 + 100  # and a line about dropped bytes
    assert (await say(deployment, "echo on")).output == "on\n"


async def test_a_session_that_is_closed_leaves_no_process(deployment: Deployment) -> None:
    look = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -c 'sleep [12]'"
    command = "sleep 12345 & echo started; exec sleep 12345"
    for options in ({}, {"is_interactive_command": True}):
        await say(deployment, command, expect=["started"], check="silent", **options)
        assert (await deployment.runtime.execute(Command(command=look, shell=True))).stdout != "0\n"
        await deployment.runtime.close_session(CloseBashSessionRequest())
        assert (await deployment.runtime.execute(Command(command=look, shell=True))).stdout == "0\n"
        await deployment.runtime.create_session(CreateBashSessionRequest())


async def test_a_container_that_ended_is_an_error_of_the_framework(deployment: Deployment) -> None:
    runtime = deployment.runtime
    waiting = asyncio.create_task(say(deployment, "sleep 1000", timeout=None))
    await wait_started(runtime)
    await asyncio.to_thread(runtime.container.close)
    calls = [waiting, say(deployment, "true"), runtime.execute(Command(command=["true"]))]
    calls.append(runtime.read_file(ReadFileRequest(path="/etc/passwd")))
    for result in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(result, ContainerError), repr(result)
        assert isinstance(result, exceptions.SwerexException)
    assert not await runtime.is_alive()


async def wait_started(runtime: Runtime) -> None:
    """Wait until `sleep 1000` runs."""
    look = (
        "until cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -q 'sleep 100[0]'; do "
        ":; done"
    )
    await runtime.execute(Command(command=look, shell=True, timeout=20, check=True))


async def test_a_deployment_that_is_dropped_ends_its_container(
    base_image: str, runtime_name: str
) -> None:
    deployment = Deployment(image=base_image, runtime=runtime_name)
    await deployment.start()
    container = deployment.runtime.container
    del deployment
    gc.collect()
    assert not container.is_alive


async def test_the_example_of_the_page_runs(
    runtime_name: str, base_image: str, monkeypatch: pytest.MonkeyPatch, with_memory_limit: Any
) -> None:
    monkeypatch.setenv("HYPERRUNTIME_RUNTIME", runtime_name)
    with with_memory_limit:
        assert (await compute()).startswith("42 in /tmp\n")
