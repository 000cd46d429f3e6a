"""A shell as a keyboard and a screen: what it shows, and the check of a text."""

from __future__ import annotations

import pytest

import hyperruntime as hr
from hyperruntime.errors import ContainerStateError
from hyperruntime_swe_rex.shell_session import ShellSession

pytestmark = pytest.mark.engine


async def test_output_that_does_not_fit_has_a_line_about_what_was_dropped(
    container: hr.Container,
) -> None:
    session = ShellSession(container)
    try:
        seen = await session.run("head -c 11000000 /dev/zero | tr '\\0' x; echo; echo the end")
        notice, _, rest = seen.text.partition("\n")
        assert (notice, rest[-9:]) == ("[514249 bytes of output dropped here]", "\nthe end\n")
        assert len(rest) == 10 * 1024**2
        assert (await session.run("echo short")).text == "short\n"
    finally:
        await session.close()


async def test_the_check_of_a_text_runs_nothing(container: hr.Container) -> None:
    session = ShellSession(container)
    try:
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
    with pytest.raises(ContainerStateError):
        await session.run("true")
