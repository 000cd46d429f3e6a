"""What a shell that lasts reads: its beginning, and each text; pure, no I/O."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from hyperruntime.errors import SpecError
from hyperruntime.exec.exec_marks import Mark
from hyperruntime.exec.exec_script import quote

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def check_text(text: str | bytes) -> bytes:
    """Return a shell text as bytes.

    Raises:
        SpecError: no shell could read it.
    """
    if not isinstance(text, (str, bytes)):
        raise SpecError("text", text, "a shell text, str or bytes")
    encoded = text if isinstance(text, bytes) else os.fsencode(text)
    if b"\0" in encoded:
        raise SpecError("text", text, "a shell text without NUL")
    return encoded


def check_names(env: Mapping[str, str]) -> None:
    """Refuse what bash has no variable for.

    Raises:
        SpecError: a name is none of a variable.
    """
    for name in env:
        if not _NAME.fullmatch(name):
            raise SpecError("env", name, "names of variables, for a shell that lasts: letters, digits and '_'")


def first_script(env: Mapping[str, str], workdir: str | None) -> bytes:
    """Return what the first bash of a shell runs before the first text; names that it cannot have are left out."""
    names = {name: value for name, value in env.items() if _NAME.fullmatch(name)}
    lines = [b"builtin export %s=%s" % (name.encode(), quote(os.fsencode(value))) for name, value in names.items()]
    if workdir is not None:
        said = b"{ builtin printf '0 dir\\n' >\"$_hr_lane/s\"; builtin exit 126; }"
        lines.append(b"builtin cd -- %s || %s" % (quote(os.fsencode(workdir)), said))
    return b"\n".join((*lines, b""))


def next_script(state: bytes) -> bytes:
    """Return what a later bash of a shell runs before it goes on: what the one before had left."""
    return b"builtin unset -v $(builtin compgen -e)\n" + state


def begin_script(prologue: bytes, body: bytes, lane_dir: str, mark: Mark) -> bytes:
    """Return what each bash of a shell sources first.

    Args:
        prologue: what its user's shells begin with.
        body: of :func:`first_script` or :func:`next_script`.
        lane_dir: its lane's directory inside; the body may come from a bash with another one.
        mark: of what it starts before the first text.
    """
    end = b"builtin trap '{ _hr_leave \"$@\"; } 2>/dev/null' EXIT\n"
    ready = b"_hr_lane=%s _hr_open=\nbuiltin printf '0 ready\\n' >\"$_hr_lane/s\"\n" % quote(os.fsencode(lane_dir))
    return prologue + b"builtin ulimit %s\n" % mark.bash_options + end + body + ready


def text_line(number: int, mark: Mark, exit_code: int, *, has_input: bool) -> bytes:
    """Return the line that starts a text."""
    return b"%d %s %d %s\n" % (number, mark.bash_options, exit_code, b"i" if has_input else b"/dev/null")
