"""Run the ``podman`` program in its environment."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence

from hyperruntime.errors import EngineError
from hyperruntime.host.engine_limits import Verb, engine_call
from hyperruntime.host.engine_program import program_needed
from hyperruntime.host.inherited import LINKER_VARIABLES, program_environment
from hyperruntime.host.process import (
    PIPE,
    STDOUT,
    HostProcess,
    ProcessResult,
    run_process,
    spawn,
    stream_process,
)
from hyperruntime_podman.args import NAME
from hyperruntime_podman.rootless import forget_killed, run_files

INSTALL_HINT = (
    "install it, on Debian with `apt-get install podman runc uidmap slirp4netns catatonit`"
)


def run_podman(args: Sequence[str], verb: Verb | None = "call") -> ProcessResult:
    """Run Podman to its end; a non-zero exit code is a result.

    Args:
        args: the argv.
        verb: the kind of call, which decides about its time limit; None means no limit.

    Raises:
        EngineUnavailableError: Podman cannot be started.
        SpecError: the argv is too long.
        EngineError: Podman exceeded the limit and was killed.
    """
    with program_needed(NAME, NAME, INSTALL_HINT):
        if verb is None:
            return run_process(args, cwd="/", env=environment())
        with engine_call(NAME, verb) as timeout_s:
            return run_process(args, timeout_s=timeout_s, cwd="/", env=environment())


def ask_podman(what: str, *words: str, verb: Verb | None = "call") -> ProcessResult:
    """Run Podman with some words and return its result.

    Args:
        what: the start of the message of an error, such as "images cannot be listed".
        words: the arguments.
        verb: as for :func:`run_podman`.

    Raises:
        EngineUnavailableError: Podman cannot be started.
        EngineError: Podman fails.
    """
    result = run_podman(["podman", *words], verb)
    if result.exit_code != 0:
        raise EngineError(f"{what}: {result.error_text}; see `hyperrun doctor`")
    return result


def stream_podman(
    args: Sequence[str],
    on_output: Callable[[str], None],
    before_kill: Callable[[int], None] | None = None,
) -> ProcessResult:
    """Run Podman to its end and hand on each line of its output.

    Args:
        args: the argv.
        on_output: called with each line.
        before_kill: called with its pid before it is killed.

    Raises:
        EngineUnavailableError: Podman cannot be started.
        SpecError: the argv is too long.
    """
    with program_needed(NAME, NAME, INSTALL_HINT):
        return stream_process(
            args, on_line=on_output, cwd="/", env=environment(), before_kill=before_kill
        )


def attach_podman(args: Sequence[str]) -> HostProcess:
    """Start Podman with one pipe for its input and one for both its outputs.

    Raises:
        EngineUnavailableError: Podman cannot be started.
        SpecError: the argv is too long.
    """
    with program_needed(NAME, NAME, INSTALL_HINT):
        return spawn(args, stdin=PIPE, stderr=STDOUT, cwd="/", env=environment())


def environment() -> dict[str, str]:
    """Return Podman's environment: ours without library and shell settings, with a locale and a run
    directory.

    conmon accepts names that are not ASCII only in a UTF-8 locale. For the run directory see
    :func:`run_files`. The first call in a process also lets Podman forget processes that were
    killed.
    """
    locale = next(
        filter(None, (os.environ.get(name) for name in ("LC_ALL", "LC_CTYPE", "LANG"))), "C"
    )
    is_utf8 = locale.lower().replace("-", "").endswith("utf8")
    chosen = {} if is_utf8 else {"LC_ALL": "C.UTF-8"}
    files = run_files()
    if files:
        forget_killed(files["XDG_RUNTIME_DIR"])
    return {**program_environment(os.environ), **chosen, **files}


def environment_args() -> tuple[str, ...]:
    """Return the argv prefix that gives Podman's environment to a command that core starts with its
    own.
    """
    unset = [word for name in LINKER_VARIABLES for word in ("-u", name)]
    return ("env", *unset, *(f"{name}={value}" for name, value in run_files().items()))


def unshare_args() -> tuple[str, ...]:
    """Return the argv prefix that runs a host program in Podman's user namespace, as root of this
    user's files.

    The program keeps the library settings, which Podman must not have: it may come from an
    environment module.
    """
    kept = [f"{name}={value}" for name in LINKER_VARIABLES if (value := os.environ.get(name))]
    return (*environment_args(), "podman", "unshare", *(("env", *kept) if kept else ()))


def store_step(error_text: str) -> str:
    """Return the next step for an error text of Podman, which may be about its store."""
    if found := re.search(
        r"mkdir (/run/user/\d+)[^:]*: (permission denied|no such file)", error_text
    ):
        return (
            f"Podman's store was first used in a login session and remembers its {found[1]}, "
            "which does not exist; ask the administrator for `loginctl enable-linger`, or set "
            "XDG_DATA_HOME in jobs to another directory and make the images again"
        )
    return "see `hyperrun doctor`"
