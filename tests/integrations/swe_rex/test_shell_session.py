"""A shell as a keyboard and a screen: patterns, programs that ask, interrupts, and calls on
different event loops.
"""

from __future__ import annotations

import asyncio

import pytest

import hyperruntime as hr
from hyperruntime.errors import ContainerStateError
from hyperruntime_swe_rex.shell_session import SessionOutput, ShellSession

pytestmark = pytest.mark.engine


async def wait_behind(session: ShellSession) -> None:
    """Check that a command waits for the one that runs."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await session.run("echo never")


def test_a_session_is_used_from_several_event_loops(container: hr.Container) -> None:
    session = ShellSession(container)
    try:
        assert (
            asyncio.run(session.run("cd /usr; word=kept; echo out; echo err >&2")).text
            == "out\nerr\n"
        )
        asyncio.run(session.run("echo has started; sleep 1000", ["has "]))
        asyncio.run(wait_behind(session))
        assert asyncio.run(session.interrupt()) == SessionOutput(text="started\n", exit_code=130)
        assert asyncio.run(session.interrupt()) == SessionOutput(text="", exit_code=130)
        assert asyncio.run(session.run("echo $word $PWD; false")) == SessionOutput(
            text="kept /usr\n", exit_code=1
        )
    finally:
        asyncio.run(session.close())
    with pytest.raises(ContainerStateError):
        asyncio.run(session.run("true"))


def test_output_that_does_not_fit_has_a_line_about_what_was_dropped(
    container: hr.Container,
) -> None:
    session = ShellSession(container)
    try:
        seen = asyncio.run(
            session.run("head -c 11000000 /dev/zero | tr '\\0' x; echo; echo the end")
        )
        notice, _, rest = seen.text.partition("\n")
        assert (notice, rest[-9:]) == ("[514249 bytes of output dropped here]", "\nthe end\n")
        assert len(rest) == 10 * 1024**2
        assert asyncio.run(session.run("echo short")).text == "short\n"
    finally:
        asyncio.run(session.close())


async def answer(container: hr.Container) -> None:
    session = ShellSession(container)
    try:
        asked = await session.run(
            "read -p 'first: ' a; read -p 'second: ' b; test -t 0", ["first: "], on_terminal=True
        )
        assert (asked, session.asks) == (SessionOutput(text="", found="first: "), True)
        assert (await session.run("one", ["second: "])).found == "second: "
        assert (await session.run("two words")).exit_code == 0
        assert not session.asks
        assert (await session.run("echo $a, $b; test -t 0")) == SessionOutput(
            text="one, two words\n", exit_code=1
        )
    finally:
        await session.close()


def test_a_program_that_asks_is_answered_and_the_shell_keeps_its_changes(
    container: hr.Container,
) -> None:
    asyncio.run(answer(container))


async def expect(container: hr.Container) -> None:
    session = ShellSession(container)
    try:
        seen = await session.run("echo port 80 open; sleep 1000", ["open", "port [0-9]+ "])
        assert seen == SessionOutput(text="", found="port [0-9]+ ")
        await wait_behind(session)
        assert (await session.interrupt()).text == "open\n"
        await session.run("trap '' INT; echo is stubborn; while :; do sleep 1; done", ["is "])
        assert (await session.interrupt(tries=1)) == SessionOutput(text="stubborn\n", exit_code=137)
        for wrong in (
            "echo; fi",
            "touch /tmp/ran\n(a",
            "}; touch /tmp/ran; f() {",
            "a='",
            "touch /tmp/ran; set +n; )",
        ):
            assert "bash" in await session.syntax_error(wrong), wrong
        for right in (
            "touch /tmp/ran",
            "set +n\ntouch /tmp/ran",
            "",
            "# it",
            "cat <<END\nno end",
            "exit 3",
            "a='\n'; [[ a ]]",
        ):
            assert await session.syntax_error(right) == "", right
        assert (await session.run("echo $?; ls /tmp/ran")).exit_code == 2
        assert (
            await session.run("printf '\\033[1mbold\\033[0m \\033]0;title\\007%s' end")
        ).text == "bold end"
    finally:
        await session.close()


def test_a_pattern_ends_the_wait_and_an_interrupt_ends_the_command(container: hr.Container) -> None:
    asyncio.run(expect(container))
