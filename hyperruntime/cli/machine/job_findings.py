"""Check what the process inherited from a job, a login or environment modules; report only what is
unusual.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Mapping
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
from hyperruntime.host.python import LIBRARY_PATH, given_environment, safe_library_path
from hyperruntime.host.temporary import STEP, temporary_directory
from hyperruntime.units import GIB, format_size

# Numbers of Linux; Python does not name all of them.
_LIMITS = {"nproc": 6, "nofile": 7, "fsize": 1, "stack": 3, "rss": 5, "locks": 10}
# no container starts with both below these, docs/design/exec.md#marks
_MARKS = {"locks": 10**15, "rss": 10**18}
_FEW_PROCESSES = 1024
_FEW_FILES = 1024
_SMALL_FILES = 10 * GIB
_SOCKET_PATH = 60  # a socket's path may have 107 bytes; our file names take the rest
_PYTHON_VARIABLES = ("PYTHONPATH", "PYTHONHOME")


@attrs.frozen(kw_only=True)
class Surroundings:
    """The state that this process inherited.

    Attributes:
        environ: environment variables.
        limits: soft limits by name (``rss``, ``locks`` and ``nofile``: hard limits); None means
            unlimited.
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
    status = dict(
        line.split(":\t", 1)
        for line in Path("/proc/self/status").read_text().splitlines()
        if ":\t" in line
    )
    return Surroundings(
        environ=given_environment(),
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
        path = temporary_directory()
        return path, bool(os.statvfs(path).f_flag & os.ST_NOEXEC)
    except OSError:
        return "", False  # the doctor reports this elsewhere


def _limit(name: str) -> int | None:
    soft, hard = resource.getrlimit(_LIMITS[name])
    value = hard if name in _MARKS or name == "nofile" else soft
    return None if value == resource.RLIM_INFINITY else value


def job_findings(found: Surroundings) -> Iterator[Finding]:
    """Yield a finding for all that is unusual; none in usual surroundings."""
    yield from _slurm_job(found)
    yield from _mark_limits(found)
    yield from _other_limits(found)
    yield from _temporary_files(found)
    yield from _own_files(found)
    yield from _variables(found)
    if found.ignored:
        names = ", ".join(found.ignored)
        detail = (
            f"{names} ignored, as under nohup or in the background; commands in containers have "
            "the defaults"
        )
        yield _note("signals", detail, "end hyperrun with SIGTERM if SIGINT (Ctrl-C) is ignored")


def _slurm_job(found: Surroundings) -> Iterator[Finding]:
    if job := found.environ.get("SLURM_JOB_ID"):
        memory = found.environ.get("SLURM_MEM_PER_NODE")
        detail = f"job {job}" + (
            f" with {memory} MB of memory, which its containers share" if memory else ""
        )
        step = (
            "give --parallel no more than the job's cores; when the job ends, its containers "
            "end with it"
        )
        yield _note("Slurm", detail, step)


def _mark_limits(found: Surroundings) -> Iterator[Finding]:
    """Report resource limits that prevent marking the process tree of a command."""
    values = {name: found.limits.get(name) for name in _MARKS}
    set_ones = [
        f"RLIMIT_{name.upper()} is {value}" for name, value in values.items() if value is not None
    ]
    if any(value is None or value >= _MARKS[name] for name, value in values.items()):
        if set_ones:
            yield _note(
                "limits rss and locks",
                f"{', '.join(set_ones)}: commands are marked with the other limit",
                "",
            )
        return
    detail = (
        f"RLIMIT_LOCKS is {values['locks']} and RLIMIT_RSS is {values['rss']} bytes: commands "
        "cannot be marked"
    )
    step = (
        "raise one of the hard limits to unlimited where this was started (limits.conf, or the "
        "job's set-up)"
    )
    yield Finding(subject="limits rss and locks", ok=False, detail=detail, next_step=step)


def _other_limits(found: Surroundings) -> Iterator[Finding]:
    """Report low limits on processes, open files and the size of files, and an unlimited stack."""
    count = found.limits.get("nproc")
    if count is not None and count < _FEW_PROCESSES and not found.is_root:
        detail = (
            f"{count} processes of this user (`ulimit -u`); a container gets no more, even if "
            "limits.pids is higher"
        )
        yield _note(
            "limit nproc", detail, "ask for a higher limit, or run fewer containers at once"
        )
    count = found.limits.get("nofile")
    if count is not None and count < _FEW_FILES:
        detail = (
            f"{count} open files (`ulimit -Hn`); a container takes 3, a command that runs in it "
            "about 5 more"
        )
        step = "ask for a higher hard limit before many containers run at once"
        yield _note("limit nofile", detail, step)
    size = found.limits.get("fsize")
    if size is not None and size < _SMALL_FILES:
        detail = (
            f"no file may become larger than {format_size(size)} (`ulimit -f`), images and "
            "outputs included"
        )
        yield _note(
            "limit fsize", detail, "raise it if an image cannot be made or an output is truncated"
        )
    if found.limits.get("stack", 0) is None:
        detail = (
            "unlimited (`ulimit -s`), as MPI programs need it; containers have it too; this "
            "does no harm"
        )
        yield _note("limit stack", detail, "")


def _temporary_files(found: Surroundings) -> Iterator[Finding]:
    """Report a directory for temporary files that is mounted noexec, or whose path some programs
    cannot use.
    """
    path = found.temporary
    if found.noexec:
        detail = (
            f"{path} is mounted noexec: no program starts from there, so containers' files go "
            "elsewhere"
        )
        yield _note("TMPDIR", detail, f"{STEP} without noexec")
    words = []
    if len(os.fsencode(path)) > _SOCKET_PATH:
        words.append("too long for a socket in it")
    if any(letter.isspace() for letter in path):
        words.append("with blanks")
    if words:
        detail = (
            f"{path} is {' and '.join(words)}: sockets, and files of engines that reject such a "
            "path, go elsewhere"
        )
        yield _note(
            "TMPDIR",
            detail,
            f"{STEP}, with a short path without blanks, if they must be on its disk",
        )


def _own_files(found: Surroundings) -> Iterator[Finding]:
    """Report a missing runtime directory, and a umask that removes the user's own rights or all
    rights of others.
    """
    if not found.runtime_directory and not found.is_root:
        named = found.environ.get("XDG_RUNTIME_DIR")
        detail = (
            f"{named} is not a directory of this user" if named else "not set, as without a login"
        )
        step = (
            "none needed, or ask the administrator for `loginctl enable-linger`, which makes "
            "one without a login"
        )
        yield _note("XDG_RUNTIME_DIR", f"{detail}: engines keep run files in /tmp", step)
    if found.umask & 0o700:
        detail = (
            f"{found.umask:04o} removes the user's own rights from new files: stored files "
            "cannot be read again"
        )
        yield Finding(
            subject="umask",
            ok=False,
            detail=detail,
            next_step="`umask 077`, or one that is less strict",
        )
    elif found.umask & 0o077 == 0o077:
        yield _note(
            "umask", f"{found.umask:04o}: only this user can read new files, results included", ""
        )


def _variables(found: Surroundings) -> Iterator[Finding]:
    """Report variables that change how shells, linkers and Python work, and a locale that is not
    UTF-8.
    """
    names = [name for name in SHELL_VARIABLES if name in found.environ]
    if functions := sum(name.startswith(SHELL_FUNCTION) for name in found.environ):
        names.append(f"{functions} exported functions")
    if names:
        yield _note(
            ", ".join(names),
            "set here; programs that hyperrun starts, and containers, do not get them",
            "",
        )
    if names := [name for name in LINKER_VARIABLES if name in found.environ]:
        step = "unload the modules that set them if git or Python itself fails"
        detail = "set here; engines and containers do not get them, git and Python do"
        path = found.environ.get(LIBRARY_PATH, "")
        if safe_library_path(path) != path:
            detail += (
                f"; {path!r} has an empty or relative element, so Python loads libraries of the "
                "current directory"
            )
            step = (
                "remove that element: an agent may have written the directory in which you call "
                "hyperrun"
            )
        yield _note(", ".join(names), detail, step)
    path = found.environ.get("PATH", "/")
    if not _is_absolute(path):
        detail = (
            f"{path!r} has an empty or relative element, with which a shell runs programs of "
            "the current directory"
        )
        step = "remove that element; hyperrun, and the programs that it starts, ignore it"
        yield _note("PATH", detail, step)
    if names := [name for name in _PYTHON_VARIABLES if name in found.environ]:
        detail = (
            "set here: hyperrun imports modules from there before its own; containers do not "
            "get them"
        )
        step = "unset them if hyperrun fails at an import"
        path = found.environ.get("PYTHONPATH", "")
        if path and not _is_absolute(path):
            detail += (
                f"; {path!r} has an empty or relative element, so hyperrun imports from the "
                "current directory"
            )
            step = (
                "remove that element: an agent may have written the directory in which you call "
                "hyperrun"
            )
        yield _note(", ".join(names), detail, step)
    locale = next(
        filter(None, (found.environ.get(key) for key in ("LC_ALL", "LC_CTYPE", "LANG"))), ""
    )
    if locale.upper() in ("C", "POSIX"):
        yield _note("locale", f"{locale}: file names are still read as UTF-8", "")


def _is_absolute(path: str) -> bool:
    return all(map(os.path.isabs, path.split(os.pathsep)))


def _note(subject: str, detail: str, step: str) -> Finding:
    return Finding(subject=subject, ok=None, detail=detail, next_step=step)
