"""Read a command line as other tools write it: options with underscores, and several values after one option."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

import click

from hyperruntime.cli.command import Command

_NUMBER = re.compile(r"-\d+(\.\d+)?")


def spread(args: Sequence[str], several: Collection[str]) -> list[str]:
    """Return a command line in which each option has dashes and takes one value.

    ``--eval_samples 5 -1`` becomes ``--eval-samples 5 --eval-samples -1``; what follows ``--`` stays as it is.

    Args:
        args: as the shell hands them over. several: the options, with dashes, that may be followed by several values.
    """
    spread_args: list[str] = []
    option, waiting = "", False  # the option that what follows belongs to, and whether it has no value yet
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
    """A command without arguments whose options may have underscores, and several values where they are repeatable."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line."""
        options = [param for param in self.params if isinstance(param, click.Option) and param.multiple]
        return super().parse_args(ctx, spread(args, {name for option in options for name in option.opts}))
