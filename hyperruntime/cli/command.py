"""Base classes of the commands, the state that they share, and the examples in their help."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from hyperruntime.cli.signals import Interruption
from hyperruntime.errors import unknown_name

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from hyperruntime.runtime import Runtime

AGENT_FILE = "hyperrun.toml"
# Short options of `podman run` and `docker run`, and ours with the same meaning.
_OF_ENGINES = {"-e": "--env", "-v": "--mount", "-m": "--memory", "-u": "--user", "-w": "--workdir"}
_NUMBER = re.compile(r"-\d+(\.\d+)?")


class State(Interruption):
    """The global options and the state of interruption, passed to every command.

    Attributes:
        runtime: name of the runtime; None means ``HYPERRUNTIME_RUNTIME``, else ``auto``.
        debug: whether to print the traceback of an error.
        log_level: the lowest level to log.
        log_json: whether log lines are JSON.
        has_live_page: whether ``--watch`` was given.
        loggers: those of ``--logger``.
        runtimes: the runtimes that commands opened.
    """

    def __init__(self) -> None:
        """Start with the defaults."""
        super().__init__()
        self.runtime: str | None = None
        self.debug = False
        self.log_level = "warning"
        self.log_json = False
        self.has_live_page = False
        self.loggers: tuple[str, ...] = ()
        self.runtimes: list[Runtime] = []

    def open_runtime(self, *, run_id: str = "") -> Runtime:
        """Open and return the requested runtime."""
        from hyperruntime.host.inherited import raise_file_limit
        from hyperruntime.runtime import open_runtime

        self.check_interrupted()
        raise_file_limit()  # a container takes descriptors, and jobs begin with few
        runtime = open_runtime(self.runtime, run_id=run_id)
        self.runtimes.append(runtime)
        return runtime

    def late_removals(self) -> str:
        """Return one sentence about the containers that engines did not remove in time, or ""."""
        late = sum(runtime.late_removals for runtime in self.runtimes)
        left = sum(len(runtime.left_containers) for runtime in self.runtimes)
        if not late:
            return ""
        counted = "1 container was" if late == 1 else f"{late} containers were"
        if not left:
            return f"{counted} not removed in time; no container is left"
        then = "it goes" if left == 1 else "they go"
        step = f"{then} when the engine gets there, else with `hyperrun prune`"
        return f"{counted} not removed in time; {left} left: {step}"


class Command(click.Command):
    """A command that configures logging before it runs, but not for its help."""

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's own
        """Configure logging, then run."""
        from hyperruntime.cli.messages import configure_logging

        state = ctx.ensure_object(State)
        # not while the command line is parsed: help and completion must not wait for it
        configure_logging(state.log_level, as_json=state.log_json)
        return super().invoke(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line; a short option of the engines is an error that names the long one
        of this command.
        """
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            known = {name for param in self.get_params(ctx) for name in param.opts}
            if (long := _OF_ENGINES.get(error.option_name)) in known:
                said = f"no such option {error.option_name!r}; did you mean {long!r}?"
                raise click.NoSuchOption(error.option_name, said, ctx=error.ctx) from None
            raise


def whole_name(name: str, known: Collection[str], preferred: Collection[str] = ()) -> str:
    """Return the option that a prefix stands for, as argparse reads it; unknown names are returned
    unchanged.

    Args:
        name: an option or a prefix of one, with dashes.
        known: all options.
        preferred: the options that a prefix stands for if it fits several and only one of these.

    Raises:
        click.UsageError: the prefix fits several options.
    """
    found = sorted(one for one in known if one.startswith(name))
    if name in known or not found:
        return name
    best = [one for one in found if one in preferred] if len(found) > 1 else found
    if len(best) != 1:
        raise click.UsageError(f"{name} is ambiguous; write {', '.join(found[:-1])} or {found[-1]}")
    return best[0]


def spread(
    args: Sequence[str], several: Collection[str], whole: Callable[[str], str] = str
) -> list[str]:
    """Return a command line with dashes in option names and at most one value after each option.

    ``--eval_samples 5 -1`` becomes ``--eval-samples 5 --eval-samples -1``. Words after ``--`` do
    not change.

    Args:
        args: the command line, as the shell passes it.
        several: the options, with dashes, that may have several values.
        whole: returns the option for a name with dashes, which may be a prefix.
    """
    spread_args: list[str] = []
    # the current option with several values, and whether it has no value yet
    option = ""
    waiting = False
    for position, arg in enumerate(args):
        if arg == "--":
            return [*spread_args, *args[position:]]
        if arg.startswith("--"):
            name, equals, value = arg.partition("=")
            name = whole(name.replace("_", "-"))
            option = name if name in several else ""
            waiting = bool(option) and not equals
            spread_args.append(name + equals + value)
            continue
        is_value = not arg.startswith("-") or _NUMBER.fullmatch(arg) is not None
        if option and is_value:
            spread_args += [arg] if waiting else [option, arg]
            waiting = False
        else:
            option = ""
            spread_args.append(arg)
    return spread_args


class SpreadingCommand(Command):
    """A command whose options may be shortened or have underscores, and have several values if they
    are repeatable.
    """

    def __init__(self, *args: Any, preferred: Collection[str] = (), **more: Any) -> None:  # noqa: ANN401
        """Make the command.

        Args:
            args: as for click's commands.
            preferred: see :func:`whole_name`.
            more: as for click's commands.
        """
        super().__init__(*args, **more)
        self._preferred = preferred

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        known = {name for option in options for name in option.opts}
        several = {name for option in options if option.multiple for name in option.opts}
        whole = partial(whole_name, known=known, preferred=self._preferred)
        return super().parse_args(ctx, spread(args, several, whole))


class Group(click.Group):
    """A group of commands that suggests a close match for an unknown name."""

    command_class = Command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command and its arguments; an unknown name is an error that suggests a close
        match.
        """
        if args and not args[0].startswith("-") and args[0] not in self.list_commands(ctx):
            raise click.UsageError(unknown_name("command", args[0], self.list_commands(ctx)), ctx)
        return super().resolve_command(ctx, args)


class LazyGroup(Group):
    """A group that knows the names and short helps of its commands without importing them."""

    def __init__(self, *args: Any, table: Mapping[str, tuple[str, str, str]], **more: Any) -> None:  # noqa: ANN401
        """Make the group.

        Args:
            args: as for click's groups.
            table: ``name: (module below hyperruntime.cli, attribute of the module, short help)``,
                in the order in which a newcomer needs the commands.
            more: as for click's groups.
        """
        super().__init__(*args, **more)
        self.table = table

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

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return what may follow when the user presses Tab: commands, from the table, and
        options.
        """
        from click.shell_completion import CompletionItem

        named = [CompletionItem(name, help=text) for name, (_, _, text) in self.table.items()]
        return [
            item for item in named if item.value.startswith(incomplete)
        ] + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in self.table.items()])


def example(*lines: str) -> str:
    r"""Return an epilog with example command lines; ``\b`` keeps click from wrapping them."""
    return "\n".join(
        ("\b", "Example:" if len(lines) == 1 else "Examples:", *(f"  {line}" for line in lines))
    )
