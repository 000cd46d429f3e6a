"""Commands beside a model end with all that they started, and their number has a limit."""

from __future__ import annotations

import pytest

import hyperruntime as hr
from hyperruntime_openai_agents.background_commands import BackgroundCommands

pytestmark = pytest.mark.engine


async def test_a_killed_command_has_ended_with_all_it_started(container: hr.Container) -> None:
    for tty in (False, True):
        commands = BackgroundCommands()
        args = ["sh", "-c", "sleep 7654 & sleep 7654"]
        command = commands[await commands.start(container, args, tty=tty)]
        await commands.close()
        assert command.end.result() != 0
    assert container.exec(["pgrep", "-f", "sleep 7654"]).exit_code == 1


async def test_the_number_of_commands_has_a_limit(
    container: hr.Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hyperruntime_openai_agents.background_commands._MOST", 2)

    commands = BackgroundCommands()
    first = await commands.start(container, ["sleep", "7655"], tty=False)
    second = await commands.start(container, ["true"], tty=False)
    ended = commands.get(second)
    assert ended is not None
    await ended.end
    third = await commands.start(container, ["sleep", "7655"], tty=False)
    assert [commands.get(number) is None for number in (first, second, third)] == [
        False,
        True,
        False,
    ]
    fourth = await commands.start(container, ["sleep", "7655"], tty=False)
    assert [commands.get(number) is None for number in (first, third, fourth)] == [
        True,
        False,
        False,
    ]
    await commands.close()
    assert container.exec(["pgrep", "-f", "sleep 7655"]).exit_code == 1
