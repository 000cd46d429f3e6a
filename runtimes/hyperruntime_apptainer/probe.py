"""Probe what Apptainer can do for this user by running containers of the host's userland.

The result is cached per boot, Apptainer binary, user, process limit and scratch directory.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import attrs

from hyperruntime.driver import Enforcement, EngineInfo, Launch
from hyperruntime.errors import EngineUnavailableError
from hyperruntime.host.engine_program import (
    ALL_IDS,
    ONE_ID,
    TRY_USERS,
    TrialResult,
    Trials,
    make_userland,
    namespace_step,
    program_facts,
)
from hyperruntime.host.inherited import process_ceiling
from hyperruntime.host.owner import owned_directory
from hyperruntime.host.probe_cache import ProbeFile
from hyperruntime.host.process import find_program
from hyperruntime.host.temporary import scratch_directory
from hyperruntime.layers.images import has_puller
from hyperruntime.layers.namespace import Layers, trial_args
from hyperruntime.layers.overlays import has_overlay
from hyperruntime.layers.scratch import remove_tree
from hyperruntime.layers.snapshots.freezing import copy_files
from hyperruntime.layers.unpack import make_mount_points
from hyperruntime.spec import ContainerSpec, Limits, Mount
from hyperruntime_apptainer.args import (
    NAME,
    NO_GPUS,
    UNSIZED,
    Gpus,
    Places,
    Settings,
    environment,
    make_job,
)
from hyperruntime_apptainer.files import make_files
from hyperruntime_apptainer.program import program

INSTALL_HINT = (
    "install Apptainer 1.3 or newer (apptainer.org; Debian unstable and Fedora have packages)"
)
NO_PROGRAM = "there is no `apptainer` and no `singularity` on PATH"
_OR_SETUID = "; or for Apptainer's setuid program (package apptainer-suid)"
_ITS_RIGHTS = "rights of its own"
_UTIL_LINUX = "install util-linux"
_CDI_MOUNT = "/run/hyperruntime-cdi"
_PIDS = 64
_MEMORY_BYTES = 64 * 1024**2
_NETWORK_SCRIPT = (
    """
while read -r name rest; do case $name in *:) echo "link ${name%:}";; esac; done </proc/net/dev
while read -r name value rest; do case $name in Seccomp:) echo "seccomp $value";; esac; done </proc/self/status
"""
    + f"""{TRY_USERS}
echo "uid $(id -u)"
echo >/usr-is-writable && echo works
"""
)
# Only the first line of output counts: if sh is bash, it retries a failed fork for 15 s.
_FORK_SCRIPT = """
{ n=0; while [ $n -lt 80 ]; do sleep 600 & n=$((n+1)); done; echo unlimited; } 2>&1 |
    { read -r said; echo "first $said"; kill -9 -1; }
"""
_MEMORY_SCRIPT = "head -c 150000000 /dev/zero | tail -c 150000000 >/dev/null; echo unlimited"


@attrs.frozen(kw_only=True)
class Probe:
    """The result of a probe.

    Attributes:
        version: Apptainer's version.
        root: the type of a container's root file system: ``overlay`` or ``fuse.fuse-overlayfs``.
        settings: how to call Apptainer.
        tried: pairs of a feature that does not work and the reason.
    """

    version: str
    root: str
    settings: Settings
    tried: tuple[tuple[str, str], ...] = ()

    def to_info(self) -> EngineInfo:
        """Return the result in the library's form."""
        sized: Enforcement = "no" if self.settings.setuid else "cgroup"
        can_pull = not self.settings.setuid or has_puller()
        return EngineInfo(
            engine=NAME,
            version=self.version,
            rootless=True,
            storage=self.root,
            networks=("none", "host"),
            limits={**self.settings.limits, **dict.fromkeys(UNSIZED, sized)},
            gpus=True,
            root=not self.settings.setuid,
            users=self.settings.users,
            ignores_modes=self.settings.users,
            image_owners=self.settings.users,
            unfiltered=""
            if self.settings.seccomp
            else "this Apptainer was built without libseccomp",
            snapshots=self.settings.overlay or self.settings.setuid,
            services=not self.settings.setuid,
            reclaim_args=("unshare", *ALL_IDS) if self.settings.users else (),
            refuses=frozenset(() if self.settings.users else ("user",))
            | frozenset(() if self.settings.overlay else ("images.build",))
            | frozenset(() if can_pull else ("images.pull",)),
        )


def cached_probe() -> tuple[Probe, bool]:
    """Return the cached result, or probe; and whether the result came from the cache.

    Raises:
        EngineUnavailableError: Apptainer is missing or cannot run a container.
    """
    found = probe_file().read()
    return (probe(), False) if found is None else (found, True)


def probe() -> Probe:
    """Try a container with all required features, then each limit, and cache the result.

    If a trial did not end in time, nothing is cached.

    Raises:
        EngineUnavailableError: Apptainer is missing or cannot run a container, two trials did not
            end in time, or this process runs as root.
    """
    if os.geteuid() == 0:
        why = (
            "if it is run by root, a container is root on this machine too and can write to "
            "/proc/sys"
        )
        raise EngineUnavailableError(NAME, why, "run as an ordinary user, or use Podman or Docker")
    version = installed_version()
    tried: list[tuple[str, str]] = []
    with owned_directory(short=True) as directory:
        tester = _Tester(directory)
        for settings in _ways(tester.trials, tried):
            result = tester.run(settings, Limits(pids=None), _NETWORK_SCRIPT)
            if _holds(settings, result.stdout.decode(errors="replace").splitlines()):
                root = "copy" if settings.setuid else tester.root
                able = attrs.evolve(settings, cdi=tester.applies_cdi(settings))
                found = Probe(
                    version=version,
                    root=root,
                    settings=tester.limits(able, tried),
                    tried=tuple(tried),
                )
                if not tester.trials.late:
                    probe_file().write(found)
                return found
            wanted = {
                "other users": settings.users,
                "a seccomp filter": settings.seccomp,
                "a private /sys": settings.sysfs,
                _ITS_RIGHTS: settings.setuid,
            }
            what = ", ".join(name for name, is_wanted in wanted.items() if is_wanted)
            tried.append((f"a container with {what or 'none of these'}", result.error_text))
            if tester.trials.is_over:
                raise tester.trials.error(f"it is installed ({version})")
    first = [said for what, said in tried if _ITS_RIGHTS not in what][-1]
    why = f"it is installed ({version}) but no container runs: {first}"
    raise EngineUnavailableError(
        NAME, f"{why}; with rights of its own: {tried[-1][1]}", f"{namespace_step(why)}{_OR_SETUID}"
    )


def _ways(trials: Trials, tried: list[tuple[str, str]]) -> Iterator[Settings]:
    """Yield the ways to call Apptainer, the best first; those without user namespaces are last.

    Args:
        trials: runs trials.
        tried: extended by the reason why there are no namespaces.
    """
    overlays: dict[bool, bool] = {}
    for users, seccomp, sysfs in itertools.product((True, False), repeat=3):
        is_second = users and seccomp and not sysfs
        if is_second and not trials.late:  # else it is not known why the first did not run
            result = trials.run(["unshare", *ONE_ID, "true"])
            if result.exit_code != 0 and not result.is_late:
                tried.append(("a user namespace", result.error_text))
                break
        if users not in overlays:
            overlays[users] = has_overlay(trials, users=users)
        yield Settings(
            nproc=process_ceiling(),
            users=users,
            seccomp=seccomp,
            sysfs=sysfs,
            overlay=overlays[users],
        )
    for seccomp in (True, False):
        yield Settings(setuid=True, seccomp=seccomp, sysfs=False)


def _holds(settings: Settings, lines: list[str]) -> bool:
    """Return whether a trial container printed what its settings promise."""
    wanted = {
        "works",
        f"uid {os.geteuid() if settings.setuid else 0}",
        *(["users"] if settings.users else []),
        *(["seccomp 2"] if settings.seccomp else []),
    }
    return wanted <= set(lines) and [line for line in lines if line.startswith("link ")] == [
        "link lo"
    ]


def installed_version() -> str:
    """Return Apptainer's version.

    Raises:
        EngineUnavailableError: Apptainer, ``unshare`` or ``mount`` is missing or does not run.
    """
    if find_program(name := program()) is None:
        raise EngineUnavailableError(NAME, NO_PROGRAM, INSTALL_HINT)
    for other in ("unshare", "mount"):
        if find_program(other) is None:
            raise EngineUnavailableError(NAME, f"there is no `{other}` on PATH", _UTIL_LINUX)
    result = _trials().run([name, "--version"])
    if result.exit_code != 0:
        why = f"`{name} --version` fails: {result.error_text}"
        raise EngineUnavailableError(NAME, why, INSTALL_HINT)
    return result.stdout.decode().split()[-1].partition("-")[0]


class _Tester:
    """Runs short scripts in containers of the host's userland, which are started exactly as real
    ones.
    """

    def __init__(self, directory: str) -> None:
        self.root = ""
        self.trials = _trials()
        self._directory = directory
        self._rootfs = Path(directory, "rootfs")
        self._rootfs.mkdir()
        self._rootfs.chmod(0o755)
        make_mount_points(self._rootfs)
        userland = make_userland(self._rootfs)
        self._userland = tuple(Mount(source=path, target=path) for path in userland)

    def run(
        self, settings: Settings, limits: Limits, script: str, gpus: Gpus = NO_GPUS
    ) -> TrialResult:
        """Run a script in a container and return its result.

        Args:
            settings: how to call Apptainer.
            limits: the container's limits.
            script: shell commands for the attached shell.
            gpus: devices of the container.
        """
        files = f"{scratch_directory()}/hyperruntime-probe-{secrets.token_hex(8)}"
        places = Places(
            image=str(self._rootfs),
            files=files,
            own_root=settings.overlay,
            copied=settings.setuid,
        )
        spec = ContainerSpec(image="probe", mounts=self._userland, limits=limits)
        exchange = Mount(source=self._directory, target="/run/hyperruntime")
        launch = Launch(
            spec=spec, name="hyperruntime-probe", labels={}, exchange=exchange, private_dir=files
        )
        for directory in (files, f"{files}/upper", f"{files}/work"):
            os.mkdir(directory)
        os.chmod(f"{files}/upper", 0o755)  # it is `/` of other users, whatever the umask is
        make_files(places, spec, gpus)
        if places.copied:
            os.mkdir(places.root)
            copy_files(f"{places.image}/.", places.root, users=None)
        layers = Layers(
            directory=files, layers=(places.image,), upperdir="upper", workdir="work", at="upper"
        )
        mounted = layers if settings.overlay else None
        job = make_job(launch, settings, places, gpus, layers=mounted)
        ids = () if settings.setuid else ALL_IDS if settings.users else ONE_ID
        args = trial_args(job, ids, f"{files}/job")
        show = 'while read -r d p t o; do case $p in /) echo "root $t";; esac; done </proc/mounts\n'
        try:
            result = self.trials.run(args, (show + script + "\n").encode())
        finally:
            remove_tree(files)
        for line in result.stdout.decode(errors="replace").splitlines():
            if line.startswith("root "):
                self.root = line.split()[1]
        return result

    def applies_cdi(self, settings: Settings) -> bool:
        """Return whether ``--device`` applies a CDI spec of any directory; not all that know this
        option do.
        """
        shown = self.trials.run([program(), "exec", "--help"]).stdout
        if b"--cdi-dirs" not in shown:
            return False
        directory = Path(self._directory, "cdi")
        directory.mkdir()
        mount = {"hostPath": str(directory), "containerPath": _CDI_MOUNT, "options": ["ro", "bind"]}
        device = {"name": "one", "containerEdits": {"mounts": [mount]}}
        kind = "hyperruntime.test/trial"
        spec = {"cdiVersion": "0.5.0", "kind": kind, "devices": [device]}
        (directory / "trial.json").write_text(json.dumps(spec))
        gpus = Gpus(
            names=(f"{kind}=one",),
            directories=(str(directory),),
            mounts=(Mount(source=str(directory), target=_CDI_MOUNT),),
        )
        script = f"[ -e {_CDI_MOUNT}/trial.json ] && echo applied"
        return b"applied" in self.run(settings, Limits(pids=None), script, gpus).stdout

    def limits(self, settings: Settings, tried: list[tuple[str, str]]) -> Settings:
        """Return the settings with the limits that work.

        Args:
            settings: how to call Apptainer.
            tried: extended by the limits that do not work.
        """
        kinds: dict[str, Enforcement] = {"pids": "no", "memory_bytes": "no", "cpus": "no"}
        if not settings.setuid:  # the kernel would count all of this user's processes
            kinds["pids"] = self._pids_limit(settings, tried)
        wanted = Limits(pids=None, memory_bytes=_MEMORY_BYTES)
        result = self.run(
            attrs.evolve(settings, limits={"memory_bytes": "cgroup"}), wanted, _MEMORY_SCRIPT
        )
        if b"root " in result.stdout and b"unlimited" not in result.stdout and not result.is_late:
            kinds["memory_bytes"] = "cgroup"
        else:
            tried.append(("a limit on memory", result.error_text))
        return attrs.evolve(settings, limits=kinds)

    def _pids_limit(self, settings: Settings, tried: list[tuple[str, str]]) -> Enforcement:
        settings = attrs.evolve(settings, limits={"pids": "rlimit"})
        result = self.run(settings, Limits(pids=_PIDS), _FORK_SCRIPT)
        if result.is_fork_limited:
            return "rlimit"
        why = "a script started more processes than the limit allows"
        said = why if b"unlimited" in result.stdout else result.error_text
        tried.append(("a limit on processes", said))
        return "no"


def _trials() -> Trials:
    return Trials(NAME, environment(os.environ), INSTALL_HINT)


def probe_file() -> ProbeFile[Probe]:
    """Return the file of what a probe found: for this binary, this limit on processes and this
    scratch directory.
    """
    return ProbeFile(
        NAME,
        (program_facts(program()), process_ceiling(), os.path.realpath(scratch_directory())),
        Probe,
    )
