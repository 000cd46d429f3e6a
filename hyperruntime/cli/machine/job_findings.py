"""Check what the process inherited from a job, a login or environment modules; report only what is unusual.

A check is a function from :class:`Surroundings` to a finding, or None if all is usual.
"""

from __future__ import annotations

import os
import resource
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import attrs

from hyperruntime.driver import Finding
from hyperruntime.host.inherited import (
    LINKER_VARIABLES,
    SHELL_FUNCTION,
    SHELL_VARIABLES,
    ignored_signals,
    own_runtime_directory,
)
from hyperruntime.units import GIB, format_size

_LIMITS = {
    "nproc": 6,
    "nofile": 7,
    "fsize": 1,
    "stack": 3,
    "rss": 5,
    "locks": 10,
}  # numbers of Linux; Python does not name all of them
_MARKS = {"locks": 10**15, "rss": 10**18}  # no container starts with both below these, docs/decisions/0002-exec.md
_FEW_PROCESSES, _FEW_FILES = 1024, 1024
_SMALL_FILES = 10 * GIB
_SOCKET_PATH = 60  # a socket's path may have 107 bytes; our file names take the rest
_PYTHON_VARIABLES = ("PYTHONPATH", "PYTHONHOME")


@attrs.frozen(kw_only=True)
class Surroundings:
    """The state that this process inherited.

    Attributes:
        environ: environment variables.
        limits: soft limits by name (``rss`` and ``locks``: hard limits); None means unlimited.
        umask: umask of the process.
        ignored: names of the ignored signals.
        temporary: the directory for temporary files; "" if none is usable.
        noexec: whether ``temporary`` is on a file system mounted with noexec.
        runtime_directory: the directory for sockets and run files, or "".
        is_root: whether the effective user is root.
    """

    environ: Mapping[str, str] = attrs.field(factory=dict)
    limits: Mapping[str, int | None] = attrs.field(factory=dict)
    umask: int = 0o022
    ignored: tuple[str, ...] = ()
    temporary: str = "/tmp"  # noqa: S108
    noexec: bool = False
    runtime_directory: str = "/run/user/1000"
    is_root: bool = False


def look_around() -> Surroundings:
    """Return the surroundings of this process."""
    temporary, noexec = _temporary()
    status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
    return Surroundings(
        environ=dict(os.environ),
        limits={name: _limit(name) for name in _LIMITS},
        umask=int(status.get("Umask", "0022"), 8),
        ignored=tuple(sorted(number.name for number in ignored_signals())),
        temporary=temporary,
        noexec=noexec,
        runtime_directory=own_runtime_directory(os.environ),
        is_root=os.geteuid() == 0,
    )


def _temporary() -> tuple[str, bool]:
    try:
        path = tempfile.gettempdir()
        return path, bool(os.statvfs(path).f_flag & os.ST_NOEXEC)
    except OSError:
        return "", False  # the doctor reports this elsewhere


def _limit(name: str) -> int | None:
    soft, hard = resource.getrlimit(_LIMITS[name])
    value = hard if name in _MARKS else soft
    return None if value == resource.RLIM_INFINITY else value


def job_findings(found: Surroundings) -> Iterator[Finding]:
    """Yield the findings of all checks; none in usual surroundings."""
    for check in CHECKS:
        if (finding := check(found)) is not None:
            yield finding


def slurm_job(found: Surroundings) -> Finding | None:
    """Report a Slurm job."""
    job = found.environ.get("SLURM_JOB_ID")
    if not job:
        return None
    memory = found.environ.get("SLURM_MEM_PER_NODE")
    detail = f"job {job}" + (f" with {memory} MB of memory, which its containers share" if memory else "")
    step = "give --parallel no more than the job's cores; when the job ends, its containers end with it"
    return _note("Slurm", detail, step)


def mark_limits(found: Surroundings) -> Finding | None:
    """Report resource limits that prevent marking the process tree of a command."""
    values = {name: found.limits.get(name) for name in _MARKS}
    if all(value is None for value in values.values()):
        return None
    if any(value is None or value >= _MARKS[name] for name, value in values.items()):
        set_ones = [f"RLIMIT_{name.upper()} is {value}" for name, value in values.items() if value is not None]
        return _note("limits rss and locks", f"{', '.join(set_ones)}: commands are marked with the other limit", "")
    detail = f"RLIMIT_LOCKS is {values['locks']} and RLIMIT_RSS is {values['rss']} bytes: commands cannot be marked"
    step = "raise one of the hard limits to unlimited where this was started (limits.conf, or the job's set-up)"
    return Finding(subject="limits rss and locks", ok=False, detail=detail, next_step=step)


def few_processes(found: Surroundings) -> Finding | None:
    """Report a low limit on processes."""
    count = found.limits.get("nproc")
    if count is None or count >= _FEW_PROCESSES or found.is_root:
        return None
    detail = f"{count} processes of this user (`ulimit -u`); a container gets no more, even if limits.pids is higher"
    return _note("limit nproc", detail, "ask for a higher limit, or run fewer containers at once")


def few_files(found: Surroundings) -> Finding | None:
    """Report a low limit on open files."""
    count = found.limits.get("nofile")
    if count is None or count >= _FEW_FILES:
        return None
    detail = f"{count} open files (`ulimit -n`); a container takes about 10, a command that runs in it about 5"
    return _note(
        "limit nofile", detail, "raise it (`ulimit -n hard`), or ask for more, before many containers run at once"
    )


def small_files(found: Surroundings) -> Finding | None:
    """Report a low limit on the size of files."""
    size = found.limits.get("fsize")
    if size is None or size >= _SMALL_FILES:
        return None
    detail = f"no file may become larger than {format_size(size)} (`ulimit -f`), images and outputs included"
    return _note("limit fsize", detail, "raise it if an image cannot be made or an output is truncated")


def endless_stack(found: Surroundings) -> Finding | None:
    """Report an unlimited stack."""
    if "stack" not in found.limits or found.limits["stack"] is not None:
        return None
    detail = "unlimited (`ulimit -s`), as MPI programs need it; containers have it too; this does no harm"
    return _note("limit stack", detail, "")


def noexec_temporary(found: Surroundings) -> Finding | None:
    """Report a directory for temporary files that is mounted noexec."""
    if not found.noexec:
        return None
    detail = f"{found.temporary} is mounted noexec: no program starts from there, so containers' files go elsewhere"
    return _note("TMPDIR", detail, "set TMPDIR to a directory on a disk without noexec")


def odd_temporary(found: Surroundings) -> Finding | None:
    """Report a path for temporary files that some programs cannot use."""
    path = found.temporary
    words = []
    if len(os.fsencode(path)) > _SOCKET_PATH:
        words.append("too long for a socket in it")
    if any(letter.isspace() for letter in path):
        words.append("with blanks")
    if not words:
        return None
    detail = f"{path} is {' and '.join(words)}: sockets, and files of engines that reject such a path, go elsewhere"
    return _note("TMPDIR", detail, "set TMPDIR to a short path without blanks if they must be on its disk")


def no_runtime_directory(found: Surroundings) -> Finding | None:
    """Report a missing runtime directory."""
    if found.runtime_directory or found.is_root:
        return None
    named = found.environ.get("XDG_RUNTIME_DIR")
    detail = f"{named} is not a directory of this user" if named else "not set, as without a login"
    step = "none needed, or ask the administrator for `loginctl enable-linger`, which makes one without a login"
    return _note("XDG_RUNTIME_DIR", f"{detail}: engines keep run files in /tmp", step)


def odd_umask(found: Surroundings) -> Finding | None:
    """Report a umask that removes the user's own rights, or all rights of others."""
    if not found.umask & 0o700:
        if found.umask & 0o077 != 0o077:
            return None
        return _note("umask", f"{found.umask:04o}: only this user can read new files, results included", "")
    detail = f"{found.umask:04o} removes the user's own rights from new files: stored files cannot be read again"
    return Finding(subject="umask", ok=False, detail=detail, next_step="`umask 077`, or one that is less strict")


def shell_settings(found: Surroundings) -> Finding | None:
    """Report variables that change how shell scripts run."""
    names = [name for name in SHELL_VARIABLES if name in found.environ]
    functions = sum(name.startswith(SHELL_FUNCTION) for name in found.environ)
    names += [f"{functions} exported functions"] if functions else []
    if not names:
        return None
    return _note(", ".join(names), "set here; programs that hyperrun starts, and containers, do not get them", "")


def linker_settings(found: Surroundings) -> Finding | None:
    """Report variables that change the libraries of programs."""
    names = [name for name in LINKER_VARIABLES if name in found.environ]
    if not names:
        return None
    step = "unload the modules that set them if git or Python itself fails"
    return _note(", ".join(names), "set here; engines and containers do not get them, git and Python do", step)


def python_settings(found: Surroundings) -> Finding | None:
    """Report variables that change the modules of this program."""
    names = [name for name in _PYTHON_VARIABLES if name in found.environ]
    if not names:
        return None
    detail = "set here: hyperrun imports modules from there before its own; containers do not get them"
    return _note(", ".join(names), detail, "unset them if hyperrun fails at an import")


def plain_locale(found: Surroundings) -> Finding | None:
    """Report a locale that is not UTF-8."""
    name = next(filter(None, (found.environ.get(key) for key in ("LC_ALL", "LC_CTYPE", "LANG"))), "")
    if name.upper() not in ("C", "POSIX"):
        return None
    return _note("locale", f"{name}: file names are still read as UTF-8", "")


def ignored(found: Surroundings) -> Finding | None:
    """Report ignored signals."""
    if not found.ignored:
        return None
    names = ", ".join(found.ignored)
    detail = f"{names} ignored, as under nohup or in the background; commands in containers have the defaults"
    return _note("signals", detail, "end hyperrun with SIGTERM if SIGINT (Ctrl-C) is ignored")


def _note(subject: str, detail: str, step: str) -> Finding:
    return Finding(subject=subject, ok=None, detail=detail, next_step=step)


CHECKS: tuple[Callable[[Surroundings], Finding | None], ...] = (
    slurm_job,
    mark_limits,
    few_processes,
    few_files,
    small_files,
    endless_stack,
    noexec_temporary,
    odd_temporary,
    no_runtime_directory,
    odd_umask,
    shell_settings,
    linker_settings,
    python_settings,
    plain_locale,
    ignored,
)
