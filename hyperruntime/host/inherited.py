"""What this process inherited from the job that started it, and what of it programs that we start must not have.

Limits, variables and ignored signals pass from a process to its children.
"""

from __future__ import annotations

import os
import resource
import signal
import stat
import sys
from collections.abc import Collection, Mapping, Sequence

# By these a shell reads a file or takes a function for a program. Source: bash(1), "Bash Startup Files", "Functions".
SHELL_VARIABLES = ("BASH_ENV", "ENV")
SHELL_FUNCTION = "BASH_FUNC_"
# By these the dynamic linker takes other libraries than a program was made with. Source: ld.so(8).
LINKER_VARIABLES = ("LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT")
_RESET = (
    "import os, signal, sys\n"
    "for n in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}: signal.signal(n, signal.SIG_DFL)\n"
    "n = int(sys.argv[1]) + 2\n"
    "os.execvpe(sys.argv[n], sys.argv[n:], dict(pair.split('=', 1) for pair in sys.argv[2:n]))"
)
# What Popen restores by itself in every child. Source: Python's subprocess, ``restore_signals``.
_RESTORED = {signal.SIGPIPE, signal.SIGXFSZ}


def shell_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return variables without those that change what a shell script does."""
    return {
        name: value
        for name, value in environ.items()
        if name not in SHELL_VARIABLES and not name.startswith(SHELL_FUNCTION)
    }


def program_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return variables for a program of the system: without those that change what its shells do or its libraries are.

    Environment modules set them for the programs of a module; an engine, its helpers and its OCI runtime are not
    among those.
    """
    return {name: value for name, value in shell_environment(environ).items() if name not in LINKER_VARIABLES}


def process_ceiling() -> int:
    """Return the most processes that may be asked for here, or 0 for no such ceiling: a hard limit cannot be raised."""
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    return 0 if hard == resource.RLIM_INFINITY else hard


def stricter(wanted: int, ceiling: int) -> int:
    """Return the lower of two limits, where a ceiling of 0 is none."""
    return min(wanted, ceiling) if ceiling else wanted


def nproc_option(wanted: int) -> str:
    """Return the option of prlimit(1) for a limit on processes; where this process may have fewer, those count."""
    count = stricter(wanted, process_ceiling())
    return f"--nproc={count}:{count}"


def ignored_signals() -> frozenset[signal.Signals]:
    """Return the signals that this process ignores, and that its children would ignore too.

    ``nohup`` ignores SIGHUP; a shell without job control ignores SIGINT and SIGQUIT in background commands.
    Source: execve(2), POSIX.1 sh, "Asynchronous Lists".
    """
    candidates: Collection[signal.Signals] = set(signal.Signals) - _RESTORED
    return frozenset(number for number in candidates if signal.getsignal(number) is signal.SIG_IGN)


def default_signals_args(args: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """Return the argv of a program that runs another with every signal at its default.

    A shell cannot do it (POSIX.1 sh, ``trap``), and not every ``env`` has ``--default-signal``; so this Python does. It
    may need variables that the other program must not have.

    Args:
        args: of the program to run.
        env: its whole environment; other users may see it for a moment.
    """
    pairs = [f"{name}={value}" for name, value in env.items()]
    return [sys.executable, "-I", "-S", "-c", _RESET, str(len(pairs)), *pairs, *args]


def own_runtime_directory(environ: Mapping[str, str]) -> str:
    """Return this user's directory for run files: ``XDG_RUNTIME_DIR``, else ``/run/user/UID``; "" if neither is usable.

    Source: XDG Base Directory Specification; pam_systemd(8).
    """
    named = environ.get("XDG_RUNTIME_DIR", "")
    candidates = (os.path.realpath(named) if named else "", f"/run/user/{os.geteuid()}")
    return next((path for path in candidates if path and is_own_directory(path)), "")


def is_own_directory(path: str) -> bool:
    """Tell whether a path is a directory of this user's that nobody else can write; a link to one is not."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022
    return is_own and os.access(path, os.W_OK | os.X_OK)
