"""Inherited limits, variables and ignored signals that must not reach the programs that this
process starts.
"""

from __future__ import annotations

import os
import resource
import signal
import stat
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from hyperruntime.host.python import find_program, make_safe, python_args
from hyperruntime.host.temporary import SCRATCH, temporary_directory

# Variables that make a shell read a file or define functions. Source: bash(1), "Bash Startup
# Files", "Functions".
SHELL_VARIABLES = ("BASH_ENV", "ENV")
SHELL_FUNCTION = "BASH_FUNC_"
# Variables that make the dynamic linker load other libraries. Source: ld.so(8).
LINKER_VARIABLES = ("LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT")
_RESET = (
    "import os, signal, sys\nfor n in signal.valid_signals() - {signal.SIGKILL, "
    "signal.SIGSTOP}: signal.signal(n, signal.SIG_DFL)\nn = int(sys.argv[1]) + "
    "2\nos.execvpe(sys.argv[n], sys.argv[n:], dict(pair.split('=', 1) for pair in "
    "sys.argv[2:n]))"
)
# Signals that Popen restores in every child. Source: Python's subprocess, ``restore_signals``.
_RESTORED = {signal.SIGPIPE, signal.SIGXFSZ}
# some programs close every descriptor below their limit, which takes seconds for a million
_MOST_FILES = 1 << 16
_soft_file_limit: int | None = None  # the caller's own, before it was raised


def shell_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without variables that change how a shell script runs.

    No program of the current directory runs because of it, no library of it is loaded, and a Python
    process imports nothing from there: see :func:`~hyperruntime.host.python.make_safe`.
    """
    kept = {
        name: value
        for name, value in environ.items()
        if name not in SHELL_VARIABLES and not name.startswith(SHELL_FUNCTION)
    }
    make_safe(kept)
    return kept


def english_environment() -> dict[str, str]:
    """Return the environment for a program whose messages are read here."""
    return {**shell_environment(os.environ), "LC_ALL": "C.UTF-8", "LANGUAGE": ""}


def program_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a system program: without variables that change its shells or its
    libraries.

    Environment modules set these variables for their own programs, but not for an engine, its
    helpers and its OCI runtime. Their temporary files are where ours are: see
    :data:`~hyperruntime.host.temporary.SCRATCH`.
    """
    kept = {
        name: value
        for name, value in shell_environment(environ).items()
        if name not in LINKER_VARIABLES
    }
    if environ.get(SCRATCH):
        kept["TMPDIR"] = temporary_directory()
    return kept


def named_environment(environ: Mapping[str, str], names: Sequence[str]) -> dict[str, str]:
    """Return only the variables that a system program needs.

    For programs that hand variables on to containers, or whose images can ask for them.

    Args:
        environ: the environment.
        names: names of variables; ``*`` stands for any text. Shell and linker variables are never
            returned.
    """
    return {
        name: value
        for name, value in program_environment(environ).items()
        if any(fnmatchcase(name, pattern) for pattern in names)
    }


def process_ceiling() -> int:
    """Return this process's hard limit on processes, which it cannot raise; 0 is no limit."""
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    return 0 if hard == resource.RLIM_INFINITY else hard


def stricter(wanted: int, ceiling: int) -> int:
    """Return the lower of two limits; a ceiling of 0 is no limit."""
    return min(wanted, ceiling) if ceiling else wanted


def raise_file_limit() -> int:
    """Raise this process's soft limit on open files to its hard limit, at most 65,536; return the
    new soft limit.

    An idle container holds three descriptors and a running command about five more; the usual soft
    limit is 1024. Call it once, before the first container. ``hyperrun`` does it itself. Commands
    in containers keep the old limit. Programs that this process starts inherit the new one.
    """
    global _soft_file_limit  # noqa: PLW0603 - the limit is one per process too
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    _soft_file_limit = soft if _soft_file_limit is None else _soft_file_limit
    return wanted


def file_limit_args(args: Sequence[str]) -> list[str]:
    """Return an argv that runs ``args`` with the soft limit on open files from before
    :func:`raise_file_limit`.

    For drivers whose engine passes our limits on to the processes of a container. Source:
    prlimit(1).
    """
    program = None if _soft_file_limit is None else find_program("prlimit")
    return list(args) if program is None else [program, f"--nofile={_soft_file_limit}:", *args]


def ignored_signals() -> frozenset[signal.Signals]:
    """Return the signals that this process ignores and its children would ignore too.

    ``nohup`` ignores SIGHUP; a shell without job control ignores SIGINT and SIGQUIT in background
    commands. Source: execve(2), POSIX.1 sh, "Asynchronous Lists".
    """
    candidates = set(signal.Signals) - _RESTORED
    return frozenset(number for number in candidates if signal.getsignal(number) is signal.SIG_IGN)


def default_signals_args(args: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Return the argv of a program that runs ``args`` with all signals at their defaults.

    A shell cannot reset ignored signals (POSIX.1 sh, ``trap``), and not every ``env`` has
    ``--default-signal``; so a Python process does it, which may need variables that the program
    must not have.

    Args:
        args: argv of the program to run.
        env: whole environment of the program; on the command line, so other users can see it for a
            moment.
    """
    pairs = [f"{name}={value}" for name, value in env.items()]
    return [*python_args("-I", "-S", "-c", _RESET), str(len(pairs)), *pairs, *args]


def own_runtime_directory(environ: Mapping[str, str]) -> str:
    """Return this user's runtime directory: ``XDG_RUNTIME_DIR``, else ``/run/user/UID``; "" if
    neither is usable.

    Source: XDG Base Directory Specification; pam_systemd(8).
    """
    named = environ.get("XDG_RUNTIME_DIR", "")
    candidates = (os.path.realpath(named) if named else "", f"/run/user/{os.geteuid()}")
    return next((path for path in candidates if path and is_own_directory(path)), "")


def is_own_directory(path: str) -> bool:
    """Return whether a path is a directory of this user that no other user can write; a link is
    not.
    """
    try:
        status = os.lstat(path)
    except OSError:
        return False
    is_own = (
        stat.S_ISDIR(status.st_mode)
        and status.st_uid == os.geteuid()
        and not status.st_mode & 0o022
    )
    return is_own and os.access(path, os.W_OK | os.X_OK)
