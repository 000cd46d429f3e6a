"""``hyperrun completion``: install, remove and print the shell completion of ``hyperrun`` and
``hyperruntime``.

bash and zsh load it from a block in the user's start-up file, fish from its directory of
completions, which has a file for each name.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

import attrs
import click
from click.shell_completion import get_completion_class
from platformdirs import user_data_path

from hyperruntime.cli.app import PROGRAM, app
from hyperruntime.cli.command import Group, example
from hyperruntime.cli.messages import WrongUsageError
from hyperruntime.errors import StorageError
from hyperruntime.storage.atomic import make_directory, storage_errors, write_atomic

_BEGIN, _END = "# >>> completion of hyperrun >>>", "# <<< completion of hyperrun <<<"
_BLOCK = re.compile(rf"\n?{re.escape(_BEGIN)}\n.*?{re.escape(_END)}\n", re.DOTALL)
_ZSH_START = "autoload -Uz compinit\n(( $+functions[compdef] )) || compinit -i\n"
SHELLS = ("bash", "zsh", "fish")
NAMES = (PROGRAM, "hyperruntime")  # of the same program


@attrs.frozen(kw_only=True)
class Files:
    """The files of one shell's completion.

    Attributes:
        scripts: each file of the completion, with the names of the program that it is for.
        startup: the start-up file of the user that loads it; None if the shell finds the scripts by
            itself.
        before: lines of the start-up file before the script is loaded.
    """

    scripts: Mapping[Path, tuple[str, ...]]
    startup: Path | None = None
    before: str = ""


def completion_files(shell: str) -> Files:
    """Return where the completion of a shell belongs for this user.

    Raises:
        StorageError: the user has no home directory.
    """
    try:
        home, data = Path.home(), user_data_path("hyperruntime")
    except RuntimeError as error:
        raise StorageError(f"the user has no home directory: {error}; set HOME") from error
    if shell == "fish":
        folder = (
            Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "fish" / "completions"
        )
        return Files(scripts={folder / f"{name}.fish": (name,) for name in NAMES})
    scripts = {data / f"completion.{shell}": NAMES}
    if shell == "zsh":
        return Files(
            scripts=scripts,
            startup=Path(os.environ.get("ZDOTDIR") or home) / ".zshrc",
            before=_ZSH_START,
        )
    return Files(scripts=scripts, startup=home / ".bashrc")


def completion_script(shell: str, names: tuple[str, ...] = NAMES) -> str:
    """Return the script that defines the completion of the program, under these names, in a
    shell.
    """
    made = get_completion_class(shell)
    assert made is not None
    return "\n".join(made(app, {}, name, f"_{PROGRAM.upper()}_COMPLETE").source() for name in names)


def _this_shell(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str:
    shell = value or Path(os.environ.get("SHELL", "")).name
    if shell not in SHELLS:
        which = f"the shell {shell!r} is not supported" if shell else "SHELL is not set"
        raise WrongUsageError(
            f"{which}; name one of {', '.join(SHELLS)}: `{ctx.command_path} bash`"
        )
    return shell


_shell = click.argument("shell", type=click.Choice(SHELLS), required=False, callback=_this_shell)


@click.group(
    cls=Group, epilog=example("hyperrun completion install", "hyperrun completion install zsh")
)
def completion() -> None:
    """Complete commands and options of hyperrun, also as hyperruntime, with Tab, in bash, zsh or
    fish.
    """


@completion.command(epilog=example("hyperrun completion install zsh"))
@_shell
def install(shell: str) -> None:
    """Install the completion for SHELL (default: that of $SHELL), also over an older one."""
    files = completion_files(shell)
    for script, names in files.scripts.items():
        make_directory(script.parent)
        write_atomic(script, completion_script(shell, names).encode())
        click.echo(f"wrote {script}")
    if files.startup is not None:
        places = map(shlex.quote, map(str, files.scripts))
        loading = "".join(f"[ -r {place} ] && . {place}\n" for place in places)
        block = f"{_BEGIN}\n{files.before}{loading}{_END}\n"
        _change_startup(files.startup, block)
    click.echo(f"start a new {shell} to use it")


@completion.command(epilog=example("hyperrun completion remove zsh"))
@_shell
def remove(shell: str) -> None:
    """Remove the completion for SHELL (default: that of $SHELL)."""
    files = completion_files(shell)
    for script in files.scripts:
        with storage_errors(script):
            script.unlink(missing_ok=True)
        click.echo(f"removed {script}")
    if files.startup is not None:
        _change_startup(files.startup, "")


@completion.command(epilog=example("hyperrun completion show zsh"))
@_shell
def show(shell: str) -> None:
    """Print the script for SHELL (default: that of $SHELL)."""
    click.echo(completion_script(shell))


def _change_startup(startup: Path, block: str) -> None:
    """Make a block the only one of ours in a start-up file; "" removes it. The rest of the file
    stays as it is.
    """
    path = startup.resolve()  # it may be a link into a repository of settings
    with storage_errors(path):
        old = path.read_bytes().decode(errors="surrogateescape") if path.exists() else ""
        kept = _BLOCK.sub("", old)
        new = f"{kept.rstrip(chr(10))}\n\n{block}" if kept.strip() and block else kept + block
        if new == old:
            return
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
        write_atomic(path, new.encode(errors="surrogateescape"), mode=mode)
    click.echo(f"changed {startup}")
