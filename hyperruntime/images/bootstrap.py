"""Build the root filesystems of the images `base`, `dev`, `science` and `torch` from Debian
packages, without a registry.

``mmdebstrap`` does the work, as root or as an ordinary user in a user namespace. Without
subordinate ids this user is the only one there, and all files are root's. It uses the mirror, proxy
and certificates of the host's apt; none of them stays in the image.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from hyperruntime.errors import ImageBuildError
from hyperruntime.host.batch_job import memory_limit_bytes
from hyperruntime.host.engine_limits import limit_s
from hyperruntime.host.engine_program import ALL_IDS, ONE_ID
from hyperruntime.host.inherited import program_environment
from hyperruntime.host.process import ProcessResult, python_args, run_process, stream_process
from hyperruntime.host.seccomp import owners_program
from hyperruntime.host.temporary import SCRATCH, scratch_directory
from hyperruntime.images.packages.network import proxies
from hyperruntime.logs import get_logger

log = get_logger(__name__)

BASE_PACKAGES: tuple[str, ...] = ("python3", "git", "patch", "procps", "ca-certificates")
# What Python packages need: libstdc++ for their compiled parts, pip, and apt for the rest.
DEV_PACKAGES = (*BASE_PACKAGES, "apt", "libstdc++6", "python3-pip", "python3-venv")
SCIENCE_PACKAGES = (*BASE_PACKAGES, "python3-numpy", "python3-scipy")
TORCH_PACKAGES = (*BASE_PACKAGES, "python3-torch")
PACKAGES = {
    "base": BASE_PACKAGES,
    "dev": DEV_PACKAGES,
    "science": SCIENCE_PACKAGES,
    "torch": TORCH_PACKAGES,
}

_SUITE = "bookworm"
_OFFICIAL_SOURCES = (
    f"deb http://deb.debian.org/debian {_SUITE} main",
    f"deb http://deb.debian.org/debian {_SUITE}-updates main",
    f"deb http://deb.debian.org/debian-security {_SUITE}-security main",
)
_DEBIAN_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_MERGED_USR_HOOK = "/usr/share/mmdebstrap/hooks/merged-usr"
_APT_OPTIONS = (
    "Acquire::http",
    "Acquire::https",
    "Acquire::Check-",
    "Acquire::ForceIPv",
    "Acquire::Proxy",
)
_WORK_BYTES = 1 << 30
_DAY_S = 24 * 60 * 60
_UNNEEDED = tuple(f"/usr/share/{name}" for name in ("info", "lintian", "locale", "man"))

# Written to a configuration file of dpkg: with `--dpkgopt`, every package passes through a slow
# filter (+10 s).
_DPKG_OPTIONS = (
    "force-unsafe-io",
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    *(f"path-exclude={path}/*" for path in _UNNEEDED),
)
# Debian's scipy depends on compilers, which nothing runs: half the image without these files.
_UNUSED = {
    "science": tuple(
        f"path-exclude={path}" for path in ("/usr/include/*", "/usr/lib/gcc/*", "/usr/lib/*.a")
    )
}
_REMOVE_UNNEEDED = (
    'find "$1/usr/share/doc" ! -type d ! -name copyright -delete && rm -rf '
    + " ".join(f'"$1"{path}/*' for path in _UNNEEDED)
)
# The image must not contain the host's mirror, proxy, host name or name servers.
_REMOVE_HOST = (
    'rm -f "$1/etc/apt/apt.conf.d/99mmdebstrap" "$1/etc/dpkg/dpkg.cfg.d/hyperruntime" '
    '&& : > "$1/etc/resolv.conf" && echo localhost > "$1/etc/hostname"'
)

_WRITE_SOURCES = (
    'mkdir -p "$1/etc/apt" && printf "%s\\n" '
    + " ".join(f"'{source}'" for source in _OFFICIAL_SOURCES)
    + ' > "$1/etc/apt/sources.list"'
)

# A container may have only root, so apt cannot switch to its own user; pip may install beside
# Debian's packages.
_ALLOW_APT = (
    'mkdir -p "$1/etc/apt/apt.conf.d" '
    """&& echo 'APT::Sandbox::User "root";' > "$1/etc/apt/apt.conf.d/90root" """
)
_ALLOW_PIP = (
    """printf '[global]\\nbreak-system-packages = true\\nroot-user-action = ignore\\n' """
    '> "$1/etc/pip.conf"'
)

_IGNORE_OWNERS = """
import ctypes, os, sys
class Program(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("lines", ctypes.c_char_p)]
lines = bytes.fromhex(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(22, 2, ctypes.byref(Program(len(lines) // 8, lines)), 0, 0):  # PR_SET_SECCOMP
    sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
os.execvp(sys.argv[2], sys.argv[2:])
"""
# A namespace with one id mounts neither terminals, which need a group, nor sysfs.
_FOR_ONE_ID = (
    "--mode=root",
    "--skip=chroot/mount/dev",
    "--skip=chroot/mount/sys",
    f"--setup-hook={_ALLOW_APT}",
)

_OR_LOAD = "or load what `hyperrun image save` wrote on another machine"
# First match wins: a pattern in the output of mmdebstrap, apt, dpkg or tar, and the message for it.
_CAUSES: tuple[tuple[str, str], ...] = (
    (
        r"No space left on device|Disk quota exceeded",
        f"the disk is full; free 1 GiB in the directory of the image and in that of {SCRATCH}",
    ),
    (
        r"Temporary failure resolving|Could not resolve|Network is unreachable|Unable to connect"
        r"|Could not connect|Connection (timed out|refused|failed)|No route to host",
        f"the Debian package archive cannot be reached; check the network and the proxy, {_OR_LOAD}",
    ),
    (
        r"newuidmap|newgidmap|/etc/sub[ug]id|user namespace|(unable to|cannot) unshare|pick chroot mode",
        "this user cannot create user namespaces; ask the administrator for the package uidmap "
        "and for `usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER`",
    ),
    (
        r"NO_PUBKEY|is not signed|signatures? (couldn't|could not) be verified",
        "the signature of the archive cannot be verified; install debian-archive-keyring",
    ),
    (
        r"not valid yet|has expired|is expired",
        "the dates of the archive do not match the clock of this machine; set the clock",
    ),
    (
        r"Unable to locate package|has no installation candidate|does not have a Release file|404 +Not Found",
        "the archive does not have a package or the suite; check the package names, and the "
        "mirrors of the host's apt",
    ),
)


def build_rootfs(
    name: str,
    target_tar: Path,
    on_output: Callable[[str], None],
    packages: Sequence[str] | None = None,
) -> None:
    """Write a root filesystem with Debian's essential packages and those of the image as an
    uncompressed tar.

    The same packages on the same day give the same bytes: file times are at most
    ``SOURCE_DATE_EPOCH``, or the start of the day (UTC).

    Args:
        name: the image: a key of :data:`PACKAGES`.
        target_tar: the file to write, in a directory of the caller's own.
        on_output: called with each line of progress.
        packages: its packages; None means those of the name.

    Raises:
        ImageBuildError: the build failed; the message gives the reason and the next step.
    """
    if shutil.which("mmdebstrap") is None:
        step = "install it with `apt-get install mmdebstrap`"
        raise ImageBuildError(f"mmdebstrap is missing; {step}, {_OR_LOAD}")
    with _work_directory() as work:
        namespaces, options = _namespaces()
        result = stream_process(
            [
                *namespaces,
                *_mmdebstrap_args(name, packages or PACKAGES[name], target_tar, options),
            ],
            env=_environment(work),
            on_line=on_output,
        )
        if result.exit_code != 0:
            raise ImageBuildError(_failure(name, result))


def _mmdebstrap_args(
    name: str, packages: Sequence[str], tar: Path, options: Iterable[str]
) -> list[str]:
    """Return mmdebstrap's argv, with more options."""
    args = ["mmdebstrap", "--variant=essential", "--format=tar", "--skip=output/dev", *options]
    args += [f"--aptopt={option}" for option in _host_apt_options()]
    included = list(packages)
    if Path(_MERGED_USR_HOOK).is_dir():
        # A tree that is merged from the start needs no conversion of a split /usr.
        args.append(f"--hook-dir={_MERGED_USR_HOOK}")
        included.append("usr-is-merged")
    lines = " ".join(f"'{option}'" for option in (*_DPKG_OPTIONS, *_UNUSED.get(name, ())))
    write_lines = (
        'mkdir -p "$1/etc/dpkg/dpkg.cfg.d" && '
        f'printf "%s\\n" {lines} > "$1/etc/dpkg/dpkg.cfg.d/hyperruntime"'
    )
    args += [f"--include={','.join(included)}", f"--setup-hook={write_lines}"]
    hooks = (
        _REMOVE_UNNEEDED,
        _REMOVE_HOST,
        _WRITE_SOURCES,
        *([_ALLOW_APT, _ALLOW_PIP] if name == "dev" else []),
    )
    args += [f"--customize-hook={hook}" for hook in hooks]
    return [*args, _SUITE, str(tar), *_sources()]


def _namespaces() -> tuple[list[str], Sequence[str]]:
    """Return the command prefix that runs mmdebstrap in its own namespaces, and its options for
    that; both empty if not needed or not possible.

    As root, mmdebstrap mounts the host's /dev/shm and /sys in the tree. If it were killed, the
    mounts would stay, and removing the tree would remove the host's files. In its own namespaces
    the mounts end with it. As an ordinary user with subordinate ids, mmdebstrap creates the
    namespaces itself. With one id, changes of owners do nothing.
    """
    args = ["unshare", "--mount", "--propagation=private", "--pid", "--fork", "--kill-child"]
    args.append("--mount-proc")
    if os.geteuid() == 0:
        return (args, ()) if _works(args) else ([], ())
    args += ONE_ID
    program = owners_program()
    if program is None or _works(["unshare", *ALL_IDS]) or not _works(args):
        return [], ()
    return [*args, *python_args("-I", "-S", "-c", _IGNORE_OWNERS, program.hex())], _FOR_ONE_ID


def _works(prefix: Sequence[str]) -> bool:
    return shutil.which(prefix[0]) is not None and run_process([*prefix, "true"]).exit_code == 0


def _sources() -> list[str]:
    """Return the sources to build from: the host's Debian mirrors, or the official archive."""
    rows = _host_sources() or list(_OFFICIAL_SOURCES)
    if not Path(_DEBIAN_KEYRING).is_file():
        return rows
    return [row.replace("deb ", f"deb [signed-by={_DEBIAN_KEYRING}] ", 1) for row in rows]


def _host_sources() -> list[str]:
    """Return the sources of the suite at the Debian mirrors of the host's apt."""
    columns = "$(ORIGIN)|$(REPO_URI)|$(CODENAME)|$(COMPONENT)"
    targets = _output(["apt-get", "indextargets", "--format", columns, "Created-By: Packages"])
    return parse_index_targets(targets.splitlines(), _SUITE)


def parse_index_targets(lines: Iterable[str], suite: str) -> list[str]:
    """Return one-line sources for ``suite``; empty unless the host has a main archive of Debian.

    A mirror of one Debian suite is assumed to have the others.

    Args:
        lines: apt's index targets, as ``origin|uri|codename|component``.
        suite: the Debian release.
    """
    rows: dict[str, None] = {}
    found_main = False
    for line in lines:
        origin, uri, codename, component = (*line.split("|"), "", "", "")[:4]
        match = re.fullmatch(r"[a-z]+(?P<pocket>|-updates|-security)", codename)
        if origin == "Debian" and component == "main" and match:
            rows[f"deb {uri} {suite}{match['pocket']} main"] = None
            found_main = found_main or not match["pocket"]
    return list(rows) if found_main else []


def _host_apt_options() -> list[str]:
    """Return the settings of the host's apt for access to an archive: proxies, certificates, date
    checks.
    """
    dump = _output(["apt-config", "dump", "--no-empty", "--format", '%f "%v";%n', "Acquire"])
    return [
        'Acquire::Retries "3";',
        *(line for line in dump.splitlines() if line.startswith(_APT_OPTIONS)),
    ]


def _output(args: Sequence[str]) -> str:
    """Return a program's standard output; empty if the program is missing or fails.

    Raises:
        ImageBuildError: it did not end in time.
    """
    if shutil.which(args[0]) is None:
        return ""
    try:
        result = run_process(args, timeout_s=limit_s("", "program"))
    except TimeoutError as error:
        raise ImageBuildError(
            f"{error}; it hangs, or this machine is overloaded: run it by hand"
        ) from error
    return result.stdout.decode(errors="replace") if result.exit_code == 0 else ""


def _environment(work: Path) -> Mapping[str, str]:
    """Return mmdebstrap's environment: the inherited one, with the scratch directory and the date
    of the build.
    """
    defaults = {"SOURCE_DATE_EPOCH": str(int(time.time()) // _DAY_S * _DAY_S)}
    # Packages compile Python files during installation; the Python settings of this process must
    # not affect that.
    known = program_environment(os.environ)
    inherited = {name: value for name, value in known.items() if not name.startswith("PYTHON")}
    fixed = {
        "TMPDIR": str(work),
        "LC_ALL": "C",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
    }
    return {**defaults, **inherited, **proxies(os.environ), **fixed}


@contextmanager
def _work_directory() -> Iterator[Path]:
    """Yield a scratch directory that is removed afterwards.

    Package installation makes thousands of small synced writes; in memory it takes half the time.
    """
    work = Path(tempfile.mkdtemp(prefix="hyperruntime-bootstrap-", dir=_scratch_parent()))
    try:
        work.chmod(0o755)  # in a user namespace, mmdebstrap runs as another user
        yield work
    finally:
        _remove_tree(work)


def _remove_tree(path: Path) -> None:
    """Remove the scratch tree of a build, unless a mount is in it: the mounted files belong to the
    host.
    """
    for _ in range(20):  # processes of a killed build may still be exiting
        mounted = mount_points_under(
            path, Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
        )
        if mounted:
            log.warning(
                "scratch directory left, for something is mounted in it",
                path=str(path),
                mounts=mounted,
            )
            return
        shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            return
        if os.geteuid() != 0:  # an interrupted build left files of users in its namespace
            run_process(
                ["mmdebstrap", "--unshare-helper", "rm", "-rf", "--one-file-system", str(path)]
            )
        time.sleep(0.1)
    log.warning("scratch directory could not be removed", path=str(path))


def mount_points_under(path: Path, mountinfo: str) -> list[str]:
    """Return the mount points at or below ``path``.

    Args:
        path: a directory; links in it are resolved.
        mountinfo: content of ``/proc/self/mountinfo``.

    Source: proc(5), /proc/pid/mountinfo: field 5, with space, tab, newline and backslash as octal
    escapes.
    """
    fields = (line.split(" ") for line in mountinfo.splitlines())
    points = (
        re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field[4]) for field in fields
    )
    top = os.path.realpath(path)
    return [point for point in points if point == top or point.startswith(f"{top}/")]


def _scratch_parent() -> str:
    """Return the directory of the scratch tree: the one that a variable names, /dev/shm if a root
    filesystem fits, else /tmp.

    An ordinary user's build runs as other users of a user namespace, who cannot enter a TMPDIR
    below a private home.
    """
    usual = "/tmp"  # noqa: S108 - the directory in it is made by mkdtemp
    shm = "/dev/shm"  # noqa: S108 - likewise
    wanted = scratch_directory()
    if wanted != usual:
        if os.geteuid() == 0 or _can_others_enter(Path(wanted)):
            return wanted
        log.info(
            "scratch directory elsewhere",
            directory=wanted,
            reason="the users of the build cannot enter it",
        )
    if os.access(shm, os.W_OK | os.X_OK):
        there = os.statvfs(shm)
        forbidden = there.f_flag & (os.ST_NOEXEC | os.ST_NODEV)
        memory = min(psutil.virtual_memory().available, memory_limit_bytes() or sys.maxsize)
        free = min(there.f_bavail * there.f_frsize, memory // 2)
        if not forbidden and free >= _WORK_BYTES:
            return shm
    return usual


def _can_others_enter(path: Path) -> bool:
    path = path.resolve()
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (path, *path.parents))


def _failure(name: str, result: ProcessResult) -> str:
    """Return a one-line message for a failed build."""
    lines = result.stderr.decode(errors="replace").splitlines()
    said = [line.strip() for line in lines if line.strip() and not line.startswith("I:")]
    for pattern, sentence in _CAUSES:
        if any(re.search(pattern, line) for line in said):
            return f"cannot build the image {name}: {sentence}"
    errors = [line.removeprefix("E: ") for line in said if line.startswith("E: ")]
    first = (errors or said[-1:] or [f"mmdebstrap failed with exit code {result.exit_code}"])[0]
    return f"cannot build the image {name}: {first}"
