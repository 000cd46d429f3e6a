"""Where Podman's failures become ours: the program itself, and podman-py's errors."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from hyperruntime.errors import EngineError, EngineUnavailableError, SpecError
from hyperruntime.host.inherited import LINKER_VARIABLES, is_own_directory, own_runtime_directory, program_environment
from hyperruntime.host.process import PIPE, HostProcess, ProcessResult, find_program, run_process, spawn
from hyperruntime_podman.args import NAME

_RUN_FILES = "/tmp/podman-run"  # noqa: S108 - made for this user alone, and looked at
INSTALL_HINT = "install it, on Debian with `apt-get install podman runc uidmap slirp4netns catatonit`"


def run_podman(args: Sequence[str], *, timeout_s: float | None = None) -> ProcessResult:
    """Run Podman to its end; a non-zero code is a result.

    Raises:
        EngineUnavailableError: it cannot be started.
        TimeoutError: it ran past ``timeout_s`` and was killed.
    """
    with program_needed():
        return run_process(args, timeout_s=timeout_s, cwd="/", env=environment())


def attach_podman(args: Sequence[str]) -> HostProcess:
    """Start Podman with pipes for its streams.

    Raises:
        EngineUnavailableError: it cannot be started.
        SpecError: what it shall be told is more than an argv can hold.
    """
    with program_needed():
        return spawn(args, stdin=PIPE, cwd="/", env=environment())


def environment() -> dict[str, str]:
    """Return Podman's environment: ours as a program of the system may have it, with what we must choose for it.

    That is a locale in which conmon takes names that are not ASCII, and for an ordinary user a directory for run files.
    """
    locale = next(filter(None, (os.environ.get(name) for name in ("LC_ALL", "LC_CTYPE", "LANG"))), "C")
    is_utf8 = locale.lower().replace("-", "").endswith("utf8")
    chosen = {} if is_utf8 else {"LC_ALL": "C.UTF-8"}
    return {**program_environment(os.environ), **chosen, **run_files()}


def run_files() -> dict[str, str]:
    """Return the variable that names a directory of this user's for Podman's run files; nothing for root.

    A batch job has no ``XDG_RUNTIME_DIR``, or that of the node it was submitted from. Podman then takes a directory in
    ``TMPDIR``, or ``rundir`` in the home, which it does not make. Its store remembers the path for later jobs, whose
    ``TMPDIR`` may be another one. So we choose what Podman chooses where ``TMPDIR`` is not set.
    """
    if os.geteuid() == 0:
        return {}
    own = own_runtime_directory(os.environ)
    if not own:
        own = f"{_RUN_FILES}-{os.geteuid()}"
        with suppress(OSError):  # where it cannot be made Podman says so
            os.mkdir(own, 0o700)
        if not is_own_directory(own):
            return {}
    return {"XDG_RUNTIME_DIR": own}


def environment_args() -> tuple[str, ...]:
    """Return the argv that gives a command Podman's environment where core starts it, with its own."""
    unset = [word for name in LINKER_VARIABLES for word in ("-u", name)]
    return ("env", *unset, *(f"{name}={value}" for name, value in run_files().items()))


def unshare_args() -> tuple[str, ...]:
    """Return the argv before a program of the host that Podman's user namespace makes root of this user's files.

    The program may be from a module: it gets the libraries that Podman must not have.
    """
    kept = [f"{name}={value}" for name in LINKER_VARIABLES if (value := os.environ.get(name))]
    return (*environment_args(), "podman", "unshare", *(("env", *kept) if kept else ()))


def require_program() -> None:
    """Refuse to go on without the program.

    Raises:
        EngineUnavailableError: it is not on PATH.
    """
    if find_program(NAME) is None:
        raise EngineUnavailableError(NAME, "there is no `podman` on PATH", INSTALL_HINT)


def store_step(error_text: str) -> str:
    """Return what to do where Podman cannot open its store."""
    if found := re.search(r"mkdir (/run/user/\d+)[^:]*: (permission denied|no such file)", error_text):
        return (
            f"Podman's store was first used in a login session and remembers its {found[1]}, which is not here; ask "
            "the administrator for `loginctl enable-linger`, or set XDG_DATA_HOME in jobs to another directory, where "
            "images are made anew"
        )
    return "`hyperrun doctor` says more"


@contextmanager
def program_needed() -> Iterator[None]:
    """Translate what starting the program raises; it may have gone since it was probed."""
    try:
        yield
    except FileNotFoundError as error:
        raise EngineUnavailableError(NAME, "there is no `podman` on PATH", INSTALL_HINT) from error
    except TimeoutError:
        raise
    except OSError as error:
        if error.errno == errno.E2BIG:
            allowed = "less text: labels and mounts together are more than a command line holds"
            raise SpecError("labels", "...", allowed) from error
        raise EngineUnavailableError(NAME, f"`podman` cannot be started: {error}", "see `hyperrun doctor`") from error


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn podman-py's two unrelated families of errors, and what its connection raises, into ours."""
    from podman.errors import APIError, PodmanError
    from requests.exceptions import RequestException

    try:
        yield
    except (APIError, PodmanError, RequestException, ConnectionError, TimeoutError) as error:
        text = getattr(error, "explanation", None) or str(error)
        if getattr(error, "response", None) is None and error.__cause__ is not None:
            text += f": {error.__cause__}"  # podman-py tells only that the request failed
        raise EngineError(f"{what}: {text}; see `hyperrun doctor`") from error
