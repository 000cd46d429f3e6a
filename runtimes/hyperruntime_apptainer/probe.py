"""Find out what Apptainer can do for this user here, by really running a container of the host's own userland.

What was found is remembered per boot, Apptainer binary, user and scratch directory.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.driver import Enforcement, EngineInfo, Launch
from hyperruntime.errors import EngineUnavailableError
from hyperruntime.host.cache_dir import cache_directory
from hyperruntime.host.inherited import process_ceiling
from hyperruntime.host.owner import owned_directory
from hyperruntime.host.process import ProcessResult, boot_id, find_program, run_process
from hyperruntime.logs import get_logger
from hyperruntime.spec import ContainerSpec, Limits, Mount
from hyperruntime_apptainer import records
from hyperruntime_apptainer.args import NAME, Places, Settings, config_text, environment, run_args
from hyperruntime_apptainer.scratch import scratch_directory
from hyperruntime_apptainer.store import make_mount_points

log = get_logger(__name__)

INSTALL_HINT = "install Apptainer 1.3 or newer (apptainer.org; Debian unstable and Fedora have packages)"
HELPERS = ("unshare", "mount")
_TIMEOUT_S = 60.0
_PIDS = 64
_MEMORY_BYTES = 64 * 1024**2
_NETWORK_SCRIPT = """
while read -r name rest; do case $name in *:) echo "link ${name%:}";; esac; done </proc/net/dev
[ "$(id -u)" = 0 ] && echo >/usr-is-writable && echo works
"""
# The first word decides: where sh is bash it tries a fork that failed again for 15 s.
_FORK_SCRIPT = """
{ n=0; while [ $n -lt 80 ]; do sleep 600 & n=$((n+1)); done; echo unlimited; } 2>&1 |
    { read -r said; echo "$said"; kill -9 -1; }
"""
_MEMORY_SCRIPT = "head -c 150000000 /dev/zero | tail -c 150000000 >/dev/null; echo unlimited"


@attrs.frozen(kw_only=True)
class Probe:
    """What probing found.

    Attributes:
        version: Apptainer's.
        root: the root file system's type inside: ``overlay``, or ``fuse.fuse-overlayfs``.
        settings: how to call it.
        tried: what was tried and did not work, with the reason.
    """

    version: str = attrs.field(validator=attrs.validators.instance_of(str))
    root: str = attrs.field(validator=attrs.validators.instance_of(str))
    settings: Settings
    tried: tuple[tuple[str, str], ...] = ()

    def to_info(self) -> EngineInfo:
        """Return it as the library tells it."""
        return EngineInfo(
            engine=NAME,
            version=self.version,
            rootless=True,
            storage=self.root,
            networks=("none", "host"),
            limits={**self.settings.limits, "tmpfs_bytes": "cgroup"},
            gpus=True,
            users=False,
            refuses=frozenset({"user"}),
        )


def cached_probe() -> tuple[Probe, bool]:
    """Return what a probe of this boot, binary and user found, else probe; and whether it was remembered.

    Raises:
        EngineUnavailableError: Apptainer is missing or can run no container.
    """
    refuse_root()
    if find_program(NAME) is None:
        raise EngineUnavailableError(NAME, "there is no `apptainer` on PATH", INSTALL_HINT)
    try:
        return _recall(json.loads(_cache_path().read_bytes())), True
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return probe(), False


def _recall(data: dict[str, Any]) -> Probe:
    """Return what was remembered.

    Raises:
        ValueError, TypeError, KeyError: it is not what this version remembers.
    """
    if set(data["settings"]["limits"]) != {"pids", "memory_bytes", "cpus"}:
        raise ValueError("limits")
    tried = tuple((str(what), str(why)) for what, why in data["tried"])
    return Probe(version=data["version"], root=data["root"], settings=Settings(**data["settings"]), tried=tried)


def probe() -> Probe:
    """Try a container with all we need of it, then each limit, and remember what works.

    Raises:
        EngineUnavailableError: Apptainer is missing or can run no container.
    """
    refuse_root()
    version = installed_version()
    tried: list[tuple[str, str]] = []
    with owned_directory(short=True) as directory:
        tester = _Tester(directory)
        for sysfs in (True, False):
            settings = Settings(nproc=process_ceiling(), sysfs=sysfs)
            result = tester.run(settings, Limits(pids=None), _NETWORK_SCRIPT)
            lines = result.stdout.decode(errors="replace").splitlines()
            if "works" in lines and [line for line in lines if line.startswith("link ")] == ["link lo"]:
                found = Probe(
                    version=version, root=tester.root, settings=tester.limits(settings, tried), tried=tuple(tried)
                )
                _remember(found)
                return found
            what = "a container with a /sys of its own" if settings.sysfs else "a container"
            tried.append((what, result.error_text))
    raise EngineUnavailableError(
        NAME, f"it is installed ({version}) and no container runs: {tried[-1][1]}", "`hyperrun doctor` says more"
    )


def refuse_root() -> None:
    """Refuse to serve root, whose containers would hold root's own power over this machine.

    Raises:
        EngineUnavailableError: this process is root's.
    """
    if os.geteuid() == 0:
        why = "for root a container of it would be root on this machine too: its /proc/sys could be written"
        raise EngineUnavailableError(NAME, why, "run as an ordinary user, or use Podman or Docker")


def forget() -> None:
    """Drop what was remembered, so that the next probe is a real one; never raises."""
    try:
        _cache_path().unlink()
    except OSError:
        pass


def installed_version() -> str:
    """Return Apptainer's version.

    Raises:
        EngineUnavailableError: it, or a program that we call it with, is missing.
    """
    if find_program("apptainer") is None:
        raise EngineUnavailableError(NAME, "there is no `apptainer` on PATH", INSTALL_HINT)
    for program in HELPERS:
        if find_program(program) is None:
            raise EngineUnavailableError(NAME, f"there is no `{program}` on PATH", "install util-linux")
    result = _try(["apptainer", "--version"])
    if result.exit_code != 0:
        raise EngineUnavailableError(NAME, f"`apptainer --version` fails: {result.error_text}", INSTALL_HINT)
    return result.stdout.decode().split()[-1].partition("-")[0]


class _Tester:
    """Runs short scripts in containers of the host's own userland, made exactly as real ones are."""

    def __init__(self, directory: str) -> None:
        self.root = ""
        self._directory, self._count = directory, 0
        self._rootfs = Path(directory, "rootfs")
        self._rootfs.mkdir()
        make_mount_points(self._rootfs)
        self._userland = _userland(self._rootfs)

    def run(self, settings: Settings, limits: Limits, script: str) -> ProcessResult:
        """Return how a script ended in a container."""
        self._count += 1
        files = tempfile.mkdtemp(prefix="hyperruntime-probe-", dir=scratch_directory())
        places = Places(image=str(self._rootfs), files=files, record=f"{files}/record")
        for path in (places.layer, places.sys, places.tmp):
            os.mkdir(path)
        spec = ContainerSpec(image="probe", mounts=self._userland, limits=limits)
        Path(places.config).write_text(config_text(spec))
        exchange = Mount(source=self._directory, target="/run/hyperruntime")
        launch = Launch(spec=spec, name="hyperruntime-probe", labels={}, exchange=exchange, private_dir=files)
        args = run_args(launch, settings, places)
        show = 'while read -r d p t o; do case $p in /) echo "root $t";; esac; done </proc/mounts\n'
        result = _try(args, (show + script + "\n").encode())
        records.remove_tree(files)
        for line in result.stdout.decode(errors="replace").splitlines():
            if line.startswith("root "):
                self.root = line.split()[1]
        return result

    def limits(self, settings: Settings, tried: list[tuple[str, str]]) -> Settings:
        """Return the settings with each limit that held when it was exceeded."""
        kinds: dict[str, Enforcement] = {"pids": "rlimit", "memory_bytes": "no", "cpus": "no"}
        result = self.run(attrs.evolve(settings, limits={"pids": "rlimit"}), Limits(pids=_PIDS), _FORK_SCRIPT)
        if b"unlimited" in result.stdout:
            kinds["pids"] = "no"
            tried.append(("a limit on processes", "more could be made than were allowed"))
        wanted = Limits(pids=None, memory_bytes=_MEMORY_BYTES)
        result = self.run(attrs.evolve(settings, limits={"memory_bytes": "cgroup"}), wanted, _MEMORY_SCRIPT)
        if b"root " in result.stdout and b"unlimited" not in result.stdout:
            kinds["memory_bytes"] = "cgroup"
        else:
            tried.append(("a limit on memory", result.error_text))
        return attrs.evolve(settings, limits=kinds)


def _userland(rootfs: Path) -> tuple[Mount, ...]:
    """Make links in an empty root file system to the host's userland; return what must be mounted."""
    mounts = [Mount(source="/usr", target="/usr")]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        host = Path("/", name)
        if host.is_symlink():
            (rootfs / name).symlink_to(os.readlink(host).lstrip("/"))
        elif host.is_dir():
            mounts.append(Mount(source=str(host), target=str(host)))
    return tuple(mounts)


def _try(args: list[str], script: bytes | None = None) -> ProcessResult:
    try:
        return run_process(args, input=script, timeout_s=_TIMEOUT_S, cwd="/", env=environment(os.environ))
    except (TimeoutError, FileNotFoundError) as error:
        return ProcessResult(args=tuple(args), exit_code=124, stdout=b"", stderr=str(error).encode())


def _cache_path() -> Path:
    try:
        stat = os.stat(find_program("apptainer") or "")
        key = f"{boot_id()[:13]}-{stat.st_mtime_ns:x}-{stat.st_size:x}"
    except OSError:
        key = "unknown"
    place = hashlib.sha256(os.path.realpath(scratch_directory()).encode()).hexdigest()[:12]
    return cache_directory() / f"apptainer-{os.geteuid()}-{key}-{process_ceiling():x}-{place}.json"


def _remember(found: Probe) -> None:
    try:
        path = _cache_path()
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(json.dumps(attrs.asdict(found)))
        os.replace(temporary, path)
    except OSError as error:
        log.debug("probe not remembered", error=str(error))
