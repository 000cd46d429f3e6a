"""Shared parts of drivers that call an engine's program: arguments, a trial container's userland,
and messages.
"""

from __future__ import annotations

import csv
import errno
import io
import os
import posixpath
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import attrs

from hyperruntime.attached_shell import AttachedShell
from hyperruntime.driver import Enforcement
from hyperruntime.errors import (
    EngineError,
    EngineLateError,
    EngineUnavailableError,
    HyperRuntimeError,
    SpecError,
    StorageError,
    StorageFullError,
    UnsupportedOptionError,
    UserNotFoundError,
)
from hyperruntime.host.engine_limits import engine_call
from hyperruntime.host.process import ProcessResult, find_program, run_process
from hyperruntime.host.temporary import SCRATCH
from hyperruntime.spec import ContainerSpec, Limits, Mount

# A root shell in a container needs these: files of any owner and other users, but nothing of the
# host.
CAPABILITIES = (
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "SYS_CHROOT",
)
# Options of unshare(1) that make this user root inside: alone, or with the user's subordinate ids
# as the other users.
# util-linux 2.38
ONE_ID = ("--user", "--map-root-user")
ALL_IDS = ("--user", "--map-root-user", "--map-auto")
# Prints `users` if the supervisor can switch to the highest ids that it tries.
TRY_USERS = (
    "setpriv --reuid 65533 --regid 65533 --clear-groups --inh-caps=-all sh -c : 2>/dev/null && "
    "echo users"
)
# Starts 20 processes, and prints what `is_fork_limited` reads: one line only, because bash retries
# a fork for 15 s.
TRY_FORKS = (
    "{ for n in $(seq 20);do sleep 600& done;echo unlimited;} 2>&1|"
    "{ read s;echo first $s;kill -9 -1;}"
)
ONLY_ROOT_USER = (
    "its main user is root inside, which is you outside; name another user for each exec"
)
NEED_IDS = (
    "other users need `newuidmap`, subordinate ids (/etc/subuid, /etc/subgid) and util-linux 2.38"
)
NO_IDS = f"only root of the container is a user of yours, which is you; {NEED_IDS}"
# Prints the limits of its container for `shown_limits`: a trial has 64 MiB, 100 processes and half
# a processor.
SHOW_LIMITS = r"""
show() { for f in "$@"; do [ -r "$f" ] && { read -r v <"$f"; echo "$n $v"; return; }; done; echo "$n none"; }
c=/sys/fs/cgroup
n=memory show $c/memory.max $c/memory/memory.limit_in_bytes
n=pids show $c/pids.max $c/pids/pids.max
n=cpu show $c/cpu.max $c/cpu/cpu.cfs_quota_us $c/cpu,cpuacct/cpu.cfs_quota_us
"""
ALLOW_NAMESPACES = (
    "ask the administrator to allow user namespaces (sysctl user.max_user_namespaces, "
    "kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns)"
)
HOSTS = "/etc/hosts"
_MOST_LATE = 2  # trials of one probe
NO_WORKDIR = "hyperruntime: the working directory cannot be entered"
IMAGE_OPERATIONS = tuple(
    f"images.{name}" for name in ("remove", "load_rootfs", "load", "save", "pull", "build")
)
_NO_SHELL = re.compile(
    r"/bin/sh\b.*(not found|no such file)|no such file.*/bin/sh\b|failed to exec pid1",
    re.IGNORECASE,
)
_UNKNOWN_USER = re.compile(r"unable to find (user|group)|no matching entries in (passwd|group)")


def has_own_hosts(spec: ContainerSpec) -> bool:
    """Return whether a mount of a spec is ``/etc/hosts``.

    Then nothing of the host may lie below it: if that file is replaced, the kernel takes away what
    is mounted over it.
    """
    return any(posixpath.normpath(mount.target) == HOSTS for mount in spec.mounts)


def shown_limits(printed: str) -> dict[str, Enforcement]:
    """Return how each limit is enforced, from what :data:`SHOW_LIMITS` printed in a limited trial
    container.
    """
    shown = dict(line.split(None, 1) for line in printed.splitlines() if " " in line)
    seen = {
        "memory_bytes": shown.get("memory") == "67108864",
        "pids": shown.get("pids") == "100",
        "cpus": shown.get("cpu", "").split()[:1] == ["50000"],
    }
    return {field: "cgroup" if works else "no" for field, works in seen.items()}


def asked_limits(
    engine: str, limits: Limits, enforced: Mapping[str, Enforcement], why: str
) -> dict[str, Enforcement]:
    """Return how each limit is enforced that a spec sets and an engine needs a kernel's help for.

    Args:
        engine: the driver's name.
        limits: the limits of the spec.
        enforced: how the engine enforces each limit on this machine.
        why: why it cannot enforce one.

    Raises:
        UnsupportedOptionError: the engine does not enforce one of them.
    """
    asked = [
        field for field in ("memory_bytes", "cpus", "pids") if getattr(limits, field) is not None
    ]
    for field in asked:
        if enforced.get(field, "no") == "no":
            step = "set it to None (--pids none)" if field == "pids" else "leave it at None"
            raise UnsupportedOptionError(engine, f"limits.{field}", f"{why}, or {step}")
    return {field: enforced[field] for field in asked}


def is_fork_limited(printed: str) -> bool:
    """Return whether a limit on processes works, from what a trial printed that starts more
    processes than allowed.

    Args:
        printed: has a line with ``first`` and the first line that its children printed: an error
            message, or ``unlimited`` if all of them started. Without this line, nothing is known,
            so no limit counts as enforced.
    """
    said = [
        line.removeprefix("first").strip()
        for line in printed.splitlines()
        if line.startswith("first")
    ]
    return bool(said) and said[0] not in ("", "unlimited")


def userland_links() -> tuple[dict[str, str], list[str]]:
    """Return the host's directories of programs beside ``/usr``: links with their targets, and
    paths of the others.
    """
    links = {}
    directories = []
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        host = Path("/", name)
        if host.is_symlink():
            links[name] = os.readlink(host).lstrip("/")
        elif host.is_dir():
            directories.append(str(host))
    return links, directories


def make_userland(rootfs: Path) -> list[str]:
    """Make a root file system of links to the host's userland; return the host's directories to
    mount into it.
    """
    links, directories = userland_links()
    for name in ("proc", "sys", "dev", "etc", "run", "tmp", "usr", *directories):
        place = rootfs / name.lstrip("/")
        place.mkdir(parents=True, exist_ok=True)
        place.chmod(0o755)  # other users enter it, whatever the umask is
    for name, target in links.items():
        (rootfs / name).symlink_to(target)
    return ["/usr", *directories]


def program_facts(name: str) -> tuple[int, int]:
    """Return the time and size of a program's file, which change with its version; zeros if it is
    missing.
    """
    try:
        stat = os.stat(find_program(name) or "")
    except OSError:
        return (0, 0)
    return (stat.st_mtime_ns, stat.st_size)


@attrs.frozen(kw_only=True)
class TrialResult(ProcessResult):
    """How a trial ended.

    Attributes:
        is_late: whether it did not end in time. It then printed nothing, and says nothing about the
            engine.
    """

    is_late: bool = False

    @property
    def is_fork_limited(self) -> bool:
        """Whether a limit on processes works, see :func:`is_fork_limited`."""
        return is_fork_limited(self.stdout.decode(errors="replace"))


class Trials:
    """The trials of one probe, such as test containers. Safe to use from many threads.

    A late trial is no answer of the engine: what follows from it counts for this process only and
    is not remembered, so a probe writes no file if :attr:`late` is not 0. After two late trials, no
    other one runs: each takes minutes.

    Attributes:
        late: the number of trials that did not end in time.
    """

    def __init__(
        self, engine: str, env: Mapping[str, str] | None = None, install_hint: str = ""
    ) -> None:
        """Begin without trials.

        Args:
            engine: the driver's name.
            env: the whole environment of the programs; None means an empty one.
            install_hint: what to do if a program is missing.
        """
        self._engine = engine
        self._env = env or {}
        self._install_hint = install_hint
        self.late = 0
        self._lock = threading.Lock()

    @property
    def is_over(self) -> bool:
        """Whether no other trial runs."""
        return self.late >= _MOST_LATE

    def note_late(self) -> None:
        """Count a trial that did not end in time."""
        with self._lock:
            self.late += 1

    def run(self, args: Sequence[str], input: bytes | None = None) -> TrialResult:  # noqa: A002 - subprocess's own word
        """Run a program that tests the engine; return its result, with exit code 124 if it did not
        end in time.

        Args:
            args: argv.
            input: data for its standard input; None means an empty one.

        Raises:
            EngineUnavailableError: the program does not exist or cannot be started.
        """
        why = "it was not tried, because two trials did not end in time"
        if not self.is_over:
            try:
                with (
                    program_needed(self._engine, args[0], self._install_hint),
                    engine_call(self._engine, "probe") as timeout_s,
                ):
                    done = run_process(
                        args, input=input, timeout_s=timeout_s, cwd="/", env=self._env
                    )
                return TrialResult(
                    args=done.args, exit_code=done.exit_code, stdout=done.stdout, stderr=done.stderr
                )
            except EngineLateError as error:
                self.note_late()
                why = str(error)
        return TrialResult(
            args=tuple(args), exit_code=124, stdout=b"", stderr=why.encode(), is_late=True
        )

    def error(self, found: str) -> EngineUnavailableError:
        """Return the error for an engine of which no trial worked before some were late.

        Args:
            found: what is known, such as "it is installed (4.3)".
        """
        why = (
            f"{found} but its trial containers did not end in time, so it hangs or this machine "
            "is overloaded"
        )
        return EngineUnavailableError(
            self._engine, why, "try again when the machine is less busy, or restart the engine"
        )


def namespace_step(why: str) -> str:
    """Return what to do if a sandbox cannot be started, by the message of the program that makes
    its namespaces.
    """
    if "temporarily unavailable" in why:
        return "raise `ulimit -u` (processes of this user), or end some of its processes"
    if re.search("unshare|namespace|uid.?map|not permitted", why):
        return ALLOW_NAMESPACES
    return "see `hyperrun doctor`"


def refused_images(engine: str, why: str) -> list[Callable[..., NoReturn]]:
    """Return a method that raises UnsupportedOptionError for each of :data:`IMAGE_OPERATIONS`."""

    def refused(field: str) -> Callable[..., NoReturn]:
        def refuse(self: object, *args: object, **options: object) -> NoReturn:
            raise UnsupportedOptionError(engine, field, why)

        return refuse

    return [refused(field) for field in IMAGE_OPERATIONS]


def needs_own_tmp(spec: ContainerSpec) -> bool:
    """Return whether a read-only container needs a ``/tmp`` of its own, because the spec gives it
    none.
    """
    tmp = "/tmp"  # noqa: S108 - in the container
    return spec.read_only_rootfs and not any(
        posixpath.normpath(mount.target) == tmp for mount in spec.mounts
    )


def mount_option(engine: str, mount: Mount) -> str:
    """Return a ``--mount`` value of Podman and Apptainer: one line of CSV, so nearly every path can
    be quoted.

    Raises:
        UnsupportedOptionError: a path holds a carriage return and newline, which their CSV reader
            changes.
    """
    if "\r\n" in mount.source + mount.target:
        raise UnsupportedOptionError(
            engine, "mounts", "a path must not hold a carriage return and newline; rename it"
        )
    return csv_line(
        [
            "type=bind",
            f"src={mount.source}",
            f"dst={mount.target}",
            *(["ro"] if mount.read_only else []),
        ]
    )


def csv_line(fields: Sequence[str]) -> str:
    """Return fields as one line of CSV."""
    line = io.StringIO()
    # the writer quotes fields that hold its terminator
    csv.writer(line, lineterminator="\n").writerow(fields)
    return line.getvalue().removesuffix("\n")


@contextmanager
def program_needed(engine: str, program: str, install_hint: str) -> Iterator[None]:
    """Translate the errors of starting an engine's program.

    Args:
        engine: the driver's name.
        program: the program's name.
        install_hint: what to do if the program is missing.

    Raises:
        EngineUnavailableError: the program is missing or cannot be started.
        SpecError: the arguments are too long for the kernel.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise EngineUnavailableError(
            engine, f"there is no `{program}` on PATH", install_hint
        ) from error
    except TimeoutError:
        raise
    except OSError as error:
        if error.errno == errno.E2BIG:
            allowed = "shorten labels and mounts; together they are more than a command line holds"
            raise SpecError("labels", "...", allowed) from error
        raise EngineUnavailableError(
            engine, f"`{program}` cannot be started: {error}", "see `hyperrun doctor`"
        ) from error


def shell_args(workdir: str | None, *, is_init: bool = False) -> list[str]:
    """Return the argv of a shell in a directory, which must exist.

    The engines' own options do other things with a missing directory: Docker creates it, and Podman
    refuses it even if it is the image's own ``WORKDIR``, which Podman's builds do not create.

    Args:
        workdir: the directory; None means that of the image.
        is_init: whether the container has no init; then another shell, which waits for the shell,
            is its init.
    """
    start = "/bin/sh; exit $?" if is_init else "exec /bin/sh"
    if workdir is None:
        return ["/bin/sh", "-c", start] if is_init else ["/bin/sh"]
    script = f'cd -- "$1" 2>/dev/null || {{ echo "{NO_WORKDIR}" >&2; exit 1; }}; {start}'
    return ["/bin/sh", "-c", script, "sh", workdir]


def start_refusal(
    error_text: str, spec: ContainerSpec, user: str | None, full: str
) -> HyperRuntimeError | None:
    """Return the error for a container or a shell that did not start; None if the engine's messages
    are unknown.

    Args:
        error_text: the engine's messages.
        spec: the container's spec.
        user: user of the shell; None means the spec's user.
        full: the message if no space is left in the engine's storage.
    """
    if (refusal := _temporary_refusal(error_text)) is not None:
        return refusal
    if NO_WORKDIR in error_text:
        return SpecError(
            "workdir",
            spec.workdir,
            "a directory that exists in the image or in a mount, for this user",
        )
    if _UNKNOWN_USER.search(error_text):
        return UserNotFoundError(user or spec.user)
    if _NO_SHELL.search(error_text):
        return EngineError(
            f"image {spec.image!r} has no /bin/sh, which execs need; use an image that has one"
        )
    if "no space left" not in error_text.lower():
        return None
    found = EngineError(full)
    found.__cause__ = StorageFullError(full)  # never the fault of what ran in the container
    return found


def _temporary_refusal(error_text: str) -> StorageError | None:
    """Return the error if the engine could not write a temporary file; None if it reports something
    else.
    """
    chosen = os.environ.get("TMPDIR")
    if chosen and not os.path.isdir(chosen):
        return StorageError(
            f"TMPDIR={chosen!r} is not a directory; create it, or set TMPDIR to another directory"
        )
    for folder in filter(None, (os.environ.get(SCRATCH), chosen, "/var/tmp", "/tmp")):  # noqa: S108 - the engines' own
        if re.search(
            rf"{re.escape(folder.rstrip('/'))}/\S*: no space left", error_text, re.IGNORECASE
        ):
            return StorageFullError(
                f"no space is left in {folder!r}, the directory of temporary files; free space "
                "there, or set TMPDIR to a directory on another disk"
            )
    return None


def unknown_failure(engine: str, why: str, shell: AttachedShell) -> EngineUnavailableError:
    """Return the error for a container that did not start for an unknown reason.

    Args:
        engine: the driver's name.
        why: the engine's message, or "".
        shell: the container's shell.
    """
    if not why:
        code = shell.wait(1.0)
        why = (
            "the container's shell never answered"
            if code is None
            else f"{engine} ended with exit code {code}"
        )
    return EngineUnavailableError(
        engine, why, "retry (this probes the machine again) or see `hyperrun doctor`"
    )
