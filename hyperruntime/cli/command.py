"""What every command is made of: the state that global options leave, the classes of commands, their examples."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

import click

from hyperruntime.errors import unknown_name

if TYPE_CHECKING:
    from hyperruntime.cli.signals import SignalWatch
    from hyperruntime.runtime import Runtime

AGENT_FILE = "hyperrun.toml"


class State:
    """What the global options say, handed to every command.

    Attributes:
        runtime: the engine's name, or None for ``HYPERRUNTIME_RUNTIME``, else ``auto``.
        debug: whether errors show where they happened.
        log_level: the least serious level that is logged.
        log_json: whether log lines are JSON.
        signal: number of the signal that interrupts are reported as.
        ending: whether such a signal came: what fails from then on fails because of it.
        watch: knows which ending signals came; None outside of :func:`hyperruntime.cli.main` and of the main thread.
    """

    def __init__(self) -> None:
        """Start with the defaults."""
        self.runtime: str | None = None
        self.debug = False
        self.log_level = "warning"
        self.log_json = False
        self.signal: int = signal.SIGINT
        self.ending = False
        self.watch: SignalWatch | None = None

    def check_interrupted(self) -> None:
        """Interrupt once more where that was lost, as an exception of a handler is in a finalizer or a callback.

        Raises:
            KeyboardInterrupt: an ending signal has come.
        """
        if self.ending:
            raise KeyboardInterrupt

    def open_runtime(self, *, run_id: str = "") -> Runtime:
        """Return the runtime that was asked for, opened."""
        from hyperruntime.runtime import open_runtime

        self.check_interrupted()
        return open_runtime(self.runtime, run_id=run_id)


class Command(click.Command):
    """A command that has logging configured before it runs, and not for its help."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - click's own
        """Keep the lines of examples as they are."""
        super().__init__(*args, **kwargs)
        self.epilog = keep_lines(self.epilog)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's own
        """Configure logging, then run."""
        from hyperruntime.cli.logs import configure_logging

        state = ctx.ensure_object(State)
        configure_logging(state.log_level, as_json=state.log_json)
        return super().invoke(ctx)


class Group(click.Group):
    """A group of such commands, with a close match for an unknown one."""

    command_class = Command

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - click's own
        """Keep the lines of examples as they are."""
        super().__init__(*args, **kwargs)
        self.epilog = keep_lines(self.epilog)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command and its arguments; refuse an unknown one with its close match."""
        if args and not args[0].startswith("-") and args[0] not in self.list_commands(ctx):
            raise click.UsageError(unknown_name("command", args[0], self.list_commands(ctx)), ctx)
        return super().resolve_command(ctx, args)


class LazyGroup(Group):
    """A group whose commands' names and short helps are known without importing any.

    Its class attribute ``table`` has ``name: (module below hyperruntime.cli, name in it, short help)``, in the order in
    which a newcomer needs them.
    """

    table: ClassVar[Mapping[str, tuple[str, str, str]]] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the table's order."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command's module and return it."""
        if cmd_name not in self.table:
            return None
        module, name, _ = self.table[cmd_name]
        command: click.Command = getattr(import_module(f"hyperruntime.cli.{module}"), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in self.table.items()])


def keep_lines(epilog: str | None) -> str | None:
    r"""Return an epilog that click does not fill: each paragraph marked with ``\b``."""
    if epilog is None or "\b" in epilog:
        return epilog
    return "\n\n".join(f"\b\n{paragraph}" for paragraph in epilog.strip().split("\n\n"))


def example(*lines: str) -> str:
    """Return the epilog that shows how a command is called."""
    return "\n".join(("Example:" if len(lines) == 1 else "Examples:", *(f"  {line}" for line in lines)))
