"""Accept command lines of other tools: options with underscores, and several values after one option."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import click

from hyperruntime.cli.command import Command

_NUMBER = re.compile(r"-\d+(\.\d+)?")


def spread(args: Sequence[str], several: Collection[str]) -> list[str]:
    """Return the command line with dashes in option names and one value after each option.

    ``--eval_samples 5 -1`` becomes ``--eval-samples 5 --eval-samples -1``. Words after ``--`` do not change.

    Args:
        args: the command line, as the shell passes it.
        several: the options, with dashes, that may have several values.
    """
    spread_args: list[str] = []
    option, waiting = "", False  # the current option with several values, and whether it has no value yet
    for position, arg in enumerate(args):
        if arg == "--":
            return [*spread_args, *args[position:]]
        if arg.startswith("--"):
            name, equals, value = arg.partition("=")
            name = name.replace("_", "-")
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
    """A command without arguments; its options may have underscores, and several values if they are repeatable."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line."""
        options = [param for param in self.params if isinstance(param, click.Option) and param.multiple]
        return super().parse_args(ctx, spread(args, {name for option in options for name in option.opts}))
