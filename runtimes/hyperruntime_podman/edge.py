"""Run Podman's program in its environment, and repair what killed processes left to it.

Every command of rootless Podman joins the user namespace of its pause process, or of the conmon of
a container that ran last. If a batch system killed all of a user's processes, or a machine was
restored, the pids in these files are stale: no process has them, or another one does. Then each
command fails ("invalid internal status") or joins the namespaces of the wrong process. The cure is
``podman system migrate``; source: podman-system-migrate(1).
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from hyperruntime.errors import EngineError
from hyperruntime.host.engine_limits import Verb, engine_call, limit_s
from hyperruntime.host.engine_program import program_needed
from hyperruntime.host.inherited import (
    LINKER_VARIABLES,
    is_own_directory,
    own_runtime_directory,
)
from hyperruntime.host.process import (
    PIPE,
    STDOUT,
    HostProcess,
    ProcessResult,
    run_process,
    spawn,
    stream_process,
)
from hyperruntime.host.temporary import NETWORK_FILE_SYSTEMS, file_system
from hyperruntime.logs import get_logger
from hyperruntime_podman.args import NAME, OWN_DIRECTORY
from hyperruntime_podman.program import install_hint, needed_variables, program, pull_variables

log = get_logger(__name__)

_RUN_FILES = "/tmp/podman-run"  # noqa: S108 - private to this user, and its owner is checked
_PAUSE_NAMES = ("catatonit", "podman")
# an image that is not there, and what cannot be the name of one
_UNKNOWN = re.compile(
    r"image not known|no such (image|object)|invalid reference format|must be lowercase",
    re.IGNORECASE,
)


def run_podman(args: Sequence[str], verb: Verb | None = "call") -> ProcessResult:
    """Run Podman to its end; a non-zero exit code is a result.

    Args:
        args: the words behind the program.
        verb: the kind of call, which decides about its time limit; None means no limit.

    Raises:
        EngineUnavailableError: Podman cannot be started.
        SpecError: the argv is too long.
        EngineError: Podman exceeded the limit and was killed.
    """
    argv = [program(), *args]
    with _needed():
        if verb is None:
            return run_process(argv, cwd="/", env=environment())
        with engine_call(NAME, verb) as timeout_s:
            return run_process(argv, timeout_s=timeout_s, cwd="/", env=environment())


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
    result = run_podman(words, verb)
    if result.exit_code != 0:
        raise EngineError(f"{what}: {result.error_text}; see `hyperrun doctor`")
    return result


def inspect_image(reference: str, *store_args: str) -> dict[str, Any] | None:
    """Return what Podman knows about an image, or None if the store does not have it.

    Args:
        reference: the image.
        store_args: the global options that name the store; none for the user's.

    Raises:
        EngineError: Podman fails for another reason, so the image may be there.
    """
    result = run_podman([*store_args, "image", "inspect", "--", reference])
    if result.exit_code == 0:
        return dict(json.loads(result.stdout)[0])
    if _UNKNOWN.search(result.error_text):
        return None
    why = f"image {reference} cannot be inspected: {result.error_text}"
    raise EngineError(f"{why}; {store_step(result.error_text)}")


def stream_podman(
    args: Sequence[str],
    on_output: Callable[[str], None],
    before_kill: Callable[[int], None] | None = None,
) -> ProcessResult:
    """Run a pull or a build to its end and hand on each line of its output.

    Args:
        args: the words behind the program.
        on_output: called with each line.
        before_kill: called with its pid before it is killed.

    Raises:
        EngineUnavailableError: Podman cannot be started.
        SpecError: the argv is too long.
    """
    more = pull_variables() if "pull" in args[:1] else needed_variables(build=True)
    env = {**more, **environment()}
    with _needed():
        return stream_process(
            [program(), *args], on_line=on_output, cwd="/", env=env, before_kill=before_kill
        )


def attach_podman(args: Sequence[str]) -> HostProcess:
    """Start Podman with one pipe for its input and one for both its outputs.

    Args:
        args: the words behind the program.

    Raises:
        EngineUnavailableError: Podman cannot be started.
        SpecError: the argv is too long.
    """
    with _needed():
        return spawn([program(), *args], stdin=PIPE, stderr=STDOUT, cwd="/", env=environment())


def _needed() -> AbstractContextManager[None]:
    return program_needed(NAME, program(), install_hint())


def environment() -> dict[str, str]:
    """Return Podman's environment: those of our variables that it needs, with a locale and a run
    directory.

    conmon accepts names that are not ASCII only in a UTF-8 locale. For the run directory see
    :func:`run_files`. The first call in a process also lets Podman forget processes that were
    killed.
    """
    if files := run_files():
        forget_killed(files["XDG_RUNTIME_DIR"])
    return _variables()


def _variables() -> dict[str, str]:
    locale = next(
        filter(None, (os.environ.get(name) for name in ("LC_ALL", "LC_CTYPE", "LANG"))), "C"
    )
    is_utf8 = locale.lower().replace("-", "").endswith("utf8")
    chosen = {} if is_utf8 else {"LC_ALL": "C.UTF-8"}
    return {**needed_variables(), **chosen, **run_files()}


def environment_args() -> tuple[str, ...]:
    """Return the argv prefix that gives Podman's environment to a command that core starts with its
    own.
    """
    return ("env", "-i", *(f"{name}={value}" for name, value in _variables().items()))


def unshare_args() -> tuple[str, ...]:
    """Return the argv prefix that runs a host program in Podman's user namespace, as root of this
    user's files.

    The program keeps the library settings, which Podman must not have: it may come from an
    environment module.
    """
    kept = [f"{name}={value}" for name in LINKER_VARIABLES if (value := os.environ.get(name))]
    return (*environment_args(), program(), "unshare", *(("env", *kept) if kept else ()))


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


def run_files() -> dict[str, str]:
    """Return the variable that names this user's directory for Podman's run files; empty for root.

    A batch job has no ``XDG_RUNTIME_DIR``, or that of the node where it was submitted. Podman then
    uses a directory in ``TMPDIR``, or ``rundir`` in the home directory, which it does not create.
    Its store remembers the path for later jobs, which may have another ``TMPDIR``. So this function
    makes the choice that Podman makes without ``TMPDIR``.
    """
    if os.geteuid() == 0:
        return {}
    own = own_runtime_directory(os.environ)
    if not own:
        own = f"{_RUN_FILES}-{os.geteuid()}"
        with suppress(OSError):  # it may exist; if it cannot be made, Podman reports that
            os.mkdir(own, 0o700)
        if not is_own_directory(own):
            return {}
    return {"XDG_RUNTIME_DIR": own}


@functools.cache
def forget_killed(directory: str) -> None:
    """Let Podman forget its containers if all its processes were killed; never raises.

    Only the first call in a process looks at the files. It does nothing if the pause process or the
    conmon of a container lives, or if the directory is on a network file system: its processes may
    be another machine's. A failure is logged; Podman's own message then says what is wrong.

    Args:
        directory: the run directory, see :func:`run_files`.
    """
    root = Path(directory)
    with suppress(OSError, Timeout):
        if _are_killed(root) and file_system(directory) not in NETWORK_FILE_SYSTEMS:
            with FileLock(root / "hyperruntime-podman.lock", timeout=limit_s(NAME, "migrate")):
                if _are_killed(root):
                    _migrate(root)


def _are_killed(root: Path) -> bool:
    """Return whether files name processes of Podman, of which none lives."""
    if _lives(_pause_file(root), _PAUSE_NAMES):
        return False
    # of the user's store, and of this library's
    places = ("containers", f"containers/{OWN_DIRECTORY}")
    files = [
        file
        for place in places
        for file in root.glob(f"{place}/*-containers/*/userdata/conmon.pid")
    ]
    return (bool(files) or _pause_file(root).exists()) and not any(
        _lives(file, ("conmon",)) for file in files
    )


def _pause_file(root: Path) -> Path:
    return root / "libpod" / "tmp" / "pause.pid"


def _lives(file: Path, names: tuple[str, ...]) -> bool:
    """Return whether the process whose number a file holds is this user's and has one of these
    names.
    """
    try:
        process = Path("/proc", str(int(file.read_text())))
        is_own = process.stat().st_uid == os.geteuid()
        return is_own and (process / "comm").read_text().startswith(names)
    except (OSError, ValueError):
        return False


def _migrate(root: Path) -> None:
    """Run ``podman system migrate``, and start a new pause process before another Podman of this
    user needs one.
    """
    environment = {**needed_variables(), "XDG_RUNTIME_DIR": str(root)}
    # Podman would kill the process that has this number now
    _pause_file(root).unlink(missing_ok=True)
    for words in (("system", "migrate"), ("ps", "--quiet")):
        try:
            with engine_call(NAME, "migrate") as timeout_s:
                result = run_process(
                    (program(), *words), timeout_s=timeout_s, cwd="/", env=environment
                )
        except (OSError, EngineError) as error:
            log.warning("podman not migrated", error=str(error))
            return
        if result.exit_code != 0:
            log.warning("podman not migrated", error=result.error_text)
            return
    log.info("podman migrated", directory=str(root))
