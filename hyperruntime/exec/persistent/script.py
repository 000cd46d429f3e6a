"""The shell code that a persistent bash reads: its start script and the line for each text; pure, no I/O."""

from __future__ import annotations

import os
from collections.abc import Mapping

from hyperruntime.errors import SpecError
from hyperruntime.exec.exec_marks import Mark
from hyperruntime.exec.exec_script import VARIABLE, quote


def check_text(text: str | bytes) -> bytes:
    """Return a shell text as bytes.

    Raises:
        SpecError: it is neither str nor bytes, or holds NUL.
    """
    if not isinstance(text, (str, bytes)):
        raise SpecError("text", text, "shell code as str or bytes")
    encoded = text if isinstance(text, bytes) else os.fsencode(text)
    if b"\0" in encoded:
        raise SpecError("text", text, "shell code without NUL")
    return encoded


def check_names(env: Mapping[str, str]) -> None:
    """Check that bash accepts the names of variables.

    Raises:
        SpecError: a name is not a valid variable name.
    """
    for name in env:
        if not VARIABLE.fullmatch(name):
            raise SpecError("env", name, "a name that bash accepts for variables: letters, digits and '_'")


def first_script(env: Mapping[str, str], workdir: str | None) -> bytes:
    """Return the script that the first bash of a shell runs before the first text.

    Args:
        env: variables to export; those with invalid names are skipped.
        workdir: working directory; None keeps the container's.
    """
    names = {name: value for name, value in env.items() if VARIABLE.fullmatch(name)}
    lines = [b"builtin export %s=%s" % (name.encode(), quote(value)) for name, value in names.items()]
    if workdir is not None:
        said = b"{ builtin printf '0 dir\\n' >\"$_hr_lane/s\"; builtin exit 126; }"
        lines.append(b"builtin cd -- %s || %s" % (quote(workdir), said))
    return b"\n".join((*lines, b""))


def next_script(state: bytes) -> bytes:
    """Return the script that a later bash of a shell runs first: it restores the state that the previous bash left."""
    return b"builtin unset -v $(builtin compgen -e)\n" + state


def begin_script(prologue: bytes, body: bytes, lane_dir: str, mark: Mark) -> bytes:
    """Return the script that each bash of a shell sources first.

    Args:
        prologue: first commands of every shell of its user.
        body: script from :func:`first_script` or :func:`next_script`.
        lane_dir: directory of its lane in the container; the body may come from a bash with another lane.
        mark: mark of the processes that it starts before the first text.
    """
    end = b"builtin trap '{ _hr_leave \"$@\"; } 2>/dev/null' EXIT\n"
    ready = b"_hr_lane=%s _hr_open=\nbuiltin printf '0 ready\\n' >\"$_hr_lane/s\"\n" % quote(lane_dir)
    return prologue + b"builtin ulimit %s\n" % mark.bash_options + end + body + ready


def text_line(number: int, mark: Mark, exit_code: int, *, has_input: bool) -> bytes:
    """Return the line that makes bash run a text.

    Args:
        number: sequence number of the text.
        mark: mark of the processes that it starts.
        exit_code: value that it sees in ``$?``.
        has_input: whether it reads the lane's input; else ``/dev/null``.
    """
    return b"%d %s %d %s\n" % (number, mark.bash_options, exit_code, b"i" if has_input else b"/dev/null")
