"""State of rootless Podman outside its store: its run directory, and the processes that hold its
user namespace.

Every command of rootless Podman joins the user namespace of its pause process, or of the conmon of
a container that ran last. If a batch system killed all of a user's processes, or a machine was
restored, the pids in these files are stale: no process has them, or another one does. Then each
command fails ("invalid internal status") or joins the namespaces of the wrong process. The cure is
``podman system migrate``; source: podman-system-migrate(1).
"""

from __future__ import annotations

import functools
import os
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from hyperruntime.errors import EngineError
from hyperruntime.host.engine_findings import NETWORK_FILE_SYSTEMS, file_system
from hyperruntime.host.engine_limits import engine_call, limit_s
from hyperruntime.host.inherited import is_own_directory, own_runtime_directory, program_environment
from hyperruntime.host.process import run_process
from hyperruntime.logs import get_logger
from hyperruntime_podman.args import NAME, OWN_DIRECTORY

log = get_logger(__name__)

_RUN_FILES = "/tmp/podman-run"  # noqa: S108 - private to this user, and its owner is checked
_PAUSE_NAMES = ("catatonit", "podman")


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
    environment = {**program_environment(os.environ), "XDG_RUNTIME_DIR": str(root)}
    # Podman would kill the process that has this number now
    _pause_file(root).unlink(missing_ok=True)
    for words in (("system", "migrate"), ("ps", "--quiet")):
        try:
            with engine_call(NAME, "migrate") as timeout_s:
                result = run_process(
                    ("podman", *words), timeout_s=timeout_s, cwd="/", env=environment
                )
        except (OSError, EngineError) as error:
            log.warning("podman not migrated", error=str(error))
            return
        if result.exit_code != 0:
            log.warning("podman not migrated", error=result.error_text)
            return
    log.info("podman migrated", directory=str(root))
