"""Probe how Podman must be called on this machine by running a container of the host's userland.

``podman info`` succeeds on machines where every ``podman run`` fails, so only a run counts. The
result is cached per boot, Podman binary, installed OCI runtimes, user, cgroup version, limits and
configuration of the store.
"""

from __future__ import annotations

import itertools
import os
import re
import resource
import shutil
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

from hyperruntime.driver import Enforcement, EngineInfo
from hyperruntime.errors import EngineLateError, EngineUnavailableError, HyperRuntimeError
from hyperruntime.host.engine_program import (
    SHOW_LIMITS,
    TrialResult,
    Trials,
    make_userland,
    program_facts,
    shown_limits,
)
from hyperruntime.host.inherited import process_ceiling, stricter
from hyperruntime.host.owner import owned_directory
from hyperruntime.host.probe_cache import ProbeFile
from hyperruntime.host.process import find_program
from hyperruntime_podman.args import BRIDGE, NAME, PASTA, SLIRP, Settings, probe_args
from hyperruntime_podman.copies import copy_image, locked
from hyperruntime_podman.edge import environment, run_podman, store_step, unshare_args
from hyperruntime_podman.own_store import (
    SLOW,
    Store,
    chosen_slow,
    slow_step,
    store_facts,
    user_store,
)
from hyperruntime_podman.program import install_hint, program

_RUNTIMES = ("", "runc", "crun")
# what the script prints under a filter, and where Podman's own is. Source: containers.conf(5),
# `seccomp_profile`
_FILTERED = "seccomp 2"
_FILTERS = ("/etc/containers/seccomp.json", "/usr/share/containers/seccomp.json")
_FACTS = (
    "{{.Version.Version}} {{.Store.GraphDriverName}} {{.Host.Security.DefaultCapabilities}}\n"
    "{{.Store.GraphOptions}}"
)
_NETWORK_PROGRAMS = ("pasta", "slirp4netns")
_NOFILE_CEILING = 1 << 20
_TRIAL_IMAGE = "localhost/hyperruntime-trial:latest"
_NPROC_CEILING = 32768  # Podman lowers its own limit to this if it may not raise it
_SCRIPT = (
    SHOW_LIMITS
    + r"""
for map in uid gid; do
    sizes=
    while read -r inside outside size; do sizes="$sizes $size"; done </proc/self/${map}_map
    echo "ids$sizes"
done
while read -r name value; do [ "$name" = Seccomp: ] && echo "seccomp $value"; done </proc/self/status
echo works
"""
)


@attrs.frozen(kw_only=True)
class Probe:
    """The result of a probe.

    Attributes:
        version: Podman's version.
        storage: the storage driver of the user's store.
        settings: how to call Podman.
        tried: pairs of a combination that failed before and the reason.
        slow: why containers run in a slow store, or "".
        step: the command that makes them quick, or "".
        unfiltered: whether containers have no seccomp filter.
        is_fuse: whether a program such as fuse-overlayfs mounts the files of containers.
    """

    version: str
    storage: str
    settings: Settings
    tried: tuple[tuple[str, str], ...] = ()
    slow: str = ""
    step: str = ""
    unfiltered: bool = False
    is_fuse: bool = False

    def to_info(self) -> EngineInfo:
        """Return the result in the library's form."""
        return EngineInfo(
            engine=NAME,
            version=self.version,
            rootless=self.settings.rootless,
            oci_runtime=self.settings.oci_runtime or "podman's default",
            storage="overlay" if self.settings.root else self.storage,
            networks=(
                *(("none",) if self.settings.isolated else ()),
                "host",
                *(("bridge",) if self.settings.bridge else ()),
            ),
            limits={**self.settings.limits, "tmpfs_bytes": "cgroup", "shm_bytes": "cgroup"},
            gpus=True,
            users=self.settings.has_users,
            image_owners=self.settings.has_users,
            # older ones cannot remove an image and leave an unnamed one below it
            snapshots=re.match(r"4\.[0-2]\.", self.version) is None,
            slow_rollbacks=True,
            services=self.settings.isolated,
            unfiltered="no file of a filter works here" if self.unfiltered else "",
            refuses=frozenset(self._refused()),
            reclaim_args=unshare_args() if self.settings.rootless else (),
        )

    def _refused(self) -> Iterator[str]:
        if not self.settings.has_users:
            yield "user"
        # the kernel hides files in a FUSE mount of another namespace from us
        if self.is_fuse and self.settings.rootless:
            yield "terminal"


def cached_probe() -> tuple[Probe, bool]:
    """Return the cached result, or probe; and whether the result came from the cache.

    Raises:
        EngineUnavailableError: Podman is missing or cannot run a container.
    """
    found = probe_file().read()
    return (probe(), False) if found is None else (found, True)


def probe() -> Probe:
    """Try OCI runtimes with and without ulimits and limits; cache the first combination that works.

    A busy machine refuses containers for a moment, for example when the user's quota of kernel keys
    is used up. So when a combination works, those before it are tried again. If a trial did not end
    in time, nothing is cached.

    Raises:
        EngineUnavailableError: Podman is missing or cannot run a container, or two trials did not
            end in time.
    """
    trials = Trials(NAME, environment(), install_hint())
    version, storage, capabilities, is_fuse = _facts(trials)
    combinations = list(itertools.product(_candidates(), (True, False)))
    # the value of --rootfs may end with options after a colon
    with owned_directory(short=True) as directory:
        tester = _Tester(trials, Path(directory, "rootfs"))
        candidate, printed, tried = tester.first(combinations)
        if candidate is None:
            if trials.is_over:
                raise trials.error(f"it is installed ({version})")
            why = f"it is installed ({version}) but no container runs: {tried[-1][1]}"
            raise EngineUnavailableError(NAME, why, "see `hyperrun doctor`")
        better, more, tried = tester.first(combinations[: len(tried)])
        if better is not None:
            candidate = better
            printed = more
        limits = _limits(printed, candidate)
        settings = attrs.evolve(candidate, limits=limits, capabilities=capabilities)
        if settings.limits["pids"] == "rlimit":
            settings = tester.apart(settings, printed)
        if _FILTERED not in printed:  # a site, or a wrapper such as podman-hpc, sets no filter
            settings = tester.filtered(settings)
        bridge, failed = tester.find_bridge(settings)
        settings = attrs.evolve(settings, bridge=bridge)
        place = choose_store(storage, settings, str(tester.rootfs), tester.userland)
    found = Probe(
        version=version,
        storage=storage,
        is_fuse=is_fuse,
        settings=place.settings,
        tried=(*tried, *failed),
        slow=place.slow,
        step=place.step,
        unfiltered=_FILTERED not in printed and not settings.seccomp,
    )
    if not (trials.late or place.is_late):
        probe_file().write(found)
    return found


def _facts(trials: Trials) -> tuple[str, str, tuple[str, ...], bool]:
    """Return Podman's version, its storage driver, its default capabilities, and whether a program
    mounts its layers.
    """
    result = trials.run([program(), "info", "--format", _FACTS])
    if result.exit_code != 0:
        step = store_step(result.error_text)
        why = f"`{program()} info` fails: {result.error_text}"
        raise EngineUnavailableError(NAME, why, step)
    first, _, options = result.stdout.decode(errors="replace").partition("\n")
    version, storage, *more = first.split()
    names = "".join(more).split(",")
    capabilities = tuple(name.removeprefix("CAP_") for name in names if name)
    return version, storage, capabilities, "mount_program" in options


class _Tester:
    """Runs containers of the host's userland for a probe."""

    def __init__(self, trials: Trials, rootfs: Path) -> None:
        self.rootfs = rootfs
        self.userland = make_userland(rootfs)
        self._trials = trials

    def first(
        self, combinations: Sequence[tuple[Settings, bool]]
    ) -> tuple[Settings | None, str, list[tuple[str, str]]]:
        """Return the first combination that works, what its container printed, and those that
        failed with the reasons.

        After two late trials of this probe, no other combination is tried.
        """
        tried: list[tuple[str, str]] = []
        for candidate, limited in combinations:
            result = self._container(candidate, _SCRIPT, limited=limited)
            if b"works" in result.stdout:
                return candidate, result.stdout.decode(errors="replace"), tried
            tried.append((_describe(candidate, limited=limited), result.error_text))
            if self._trials.is_over:
                break
        return None, "", tried

    def apart(self, settings: Settings, printed: str) -> Settings:
        """Return the settings with a user namespace per container if that works; else all
        containers share a limit.
        """
        maps = [line.split()[1:] for line in printed.splitlines() if line.startswith("ids ")]
        uids, gids = (sum(int(word) for word in words) for words in maps)
        apart = attrs.evolve(settings, uids=uids, gids=gids)
        return apart if b"works" in self._container(apart, _SCRIPT).stdout else settings

    def filtered(self, settings: Settings) -> Settings:
        """Return the settings with the first seccomp filter that works; else without one."""
        for file in filter(os.path.isfile, _FILTERS):
            with_filter = attrs.evolve(settings, seccomp=file)
            if _FILTERED.encode() in self._container(with_filter, _SCRIPT).stdout:
                return with_filter
        return settings

    def find_bridge(self, settings: Settings) -> tuple[str, list[tuple[str, str]]]:
        """Return the first private network that works, or "", and those that failed with the
        reasons; a refusal is asked for twice, because the result is cached.
        """
        failed: list[tuple[str, str]] = []
        for network in self._networks(settings):
            result = self._container(settings, "echo works", network=network)
            if b"works" not in result.stdout and not result.is_late:
                result = self._container(settings, "echo works", network=network)
            if b"works" in result.stdout:
                return network, failed
            failed.append((f"network {network}", result.error_text))
        return "", failed

    def _networks(self, settings: Settings) -> tuple[str, ...]:
        """Return the private networks to try; of an ordinary user's, Podman's own default first."""
        if not settings.rootless:
            return (BRIDGE,)
        told = self._trials.run([program(), "info", "--format", "{{.Host.RootlessNetworkCmd}}"])
        both = (SLIRP, PASTA)  # Podman 4 names no default: there it is slirp4netns
        return both[::-1] if told.stdout.strip() == b"pasta" else both

    def _container(
        self,
        settings: Settings,
        script: str,
        *,
        limited: bool = False,
        network: str = "",
    ) -> TrialResult:
        args = probe_args(
            settings,
            str(self.rootfs),
            self.userland,
            script,
            limited=limited,
            network=network or ("none" if settings.isolated else "host"),
        )
        return self._trials.run([program(), *args])


def _candidates() -> Iterator[Settings]:
    rootless = os.geteuid() != 0
    nofile, nproc = _hard_limits()
    limited = Settings(rootless=rootless, nofile=nofile, nproc=nproc)
    runtimes = [name for name in _RUNTIMES if not name or _places(name)]
    for isolated, runtime in itertools.product((True, False), runtimes):
        yield attrs.evolve(limited, oci_runtime=runtime, isolated=isolated)
        yield Settings(oci_runtime=runtime, rootless=rootless, isolated=isolated)


def _places(runtime: str) -> list[str]:
    """Return where an OCI runtime is: on ``PATH``, or where Podman also looks."""
    return list(filter(None, map(find_program, (runtime, f"/usr/sbin/{runtime}"))))


def _hard_limits() -> tuple[int, int]:
    """Return the highest limits on open files and on processes that a container may set."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    nofile = _NOFILE_CEILING if hard == resource.RLIM_INFINITY else min(hard, _NOFILE_CEILING)
    return nofile, stricter(_NPROC_CEILING, process_ceiling())


def _limits(printed: str, settings: Settings) -> dict[str, Enforcement]:
    limits = shown_limits(printed)
    if limits["pids"] == "no" and settings.rootless and settings.nproc:
        limits["pids"] = "rlimit"
    return limits


def _describe(settings: Settings, *, limited: bool) -> str:
    parts = [settings.oci_runtime or "default OCI runtime"]
    parts.append("with ulimits" if settings.nofile else "without ulimits")
    parts.append("with limits" if limited else "without limits")
    parts += [] if settings.isolated else ["with the host's network"]
    return ", ".join(parts)


def probe_file() -> ProbeFile[Probe]:
    """Return the file of what a probe found: for these programs, this cgroup version, these limits
    and this store.
    """
    cgroups = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    programs = [
        program_facts(place)
        for name in (program(), *filter(None, _RUNTIMES), *_NETWORK_PROGRAMS)
        for place in _places(name)[:1]
    ]
    return ProbeFile(NAME, (program(), *programs, cgroups, *_hard_limits(), *store_facts()), Probe)


@attrs.frozen(kw_only=True)
class Place:
    """Where containers run.

    Attributes:
        settings: how to call Podman.
        slow: why containers run in a slow store, or "".
        step: the command that makes them quick, or "".
        is_late: whether the trial did not end in time; it then says nothing about the store.
    """

    settings: Settings
    slow: str = ""
    step: str = ""
    is_late: bool = False


def choose_store(storage: str, settings: Settings, rootfs: str, userland: Sequence[str]) -> Place:
    """Return where containers run.

    Args:
        storage: the driver of the user's store.
        settings: how to call Podman with the user's store.
        rootfs: a root file system of links to the userland.
        userland: the host's directories to mount.
    """
    if storage != SLOW:
        return Place(settings=settings)
    if (store := user_store()) is None:
        return Place(
            settings=settings,
            slow="`podman info` does not name the store",
            step="see `hyperrun doctor`",
        )
    why = _forbidden()
    own = attrs.evolve(settings, root=store.own_root, run_root=store.own_run_root)
    if not why:
        try:
            why = _try_own(store, own, rootfs, userland)
        except EngineLateError as error:
            return Place(
                settings=settings,
                slow=str(error),
                step="try again on a less busy machine",
                is_late=True,
            )
        except (OSError, HyperRuntimeError) as error:
            why = f"an overlay store does not work: {error}"
    if not why:
        return Place(settings=own)
    if not store.has_own:
        shutil.rmtree(store.own_root, ignore_errors=True)
    return Place(settings=settings, slow=why, step=slow_step(store, why))


def _forbidden() -> str:
    # root's containers get addresses from a list in the run directory, one list for all
    if os.geteuid() == 0:
        return "root has one store"
    chosen = chosen_slow()
    return f"{chosen} chooses vfs" if chosen else ""


def _try_own(store: Store, own: Settings, rootfs: str, userland: Sequence[str]) -> str:
    """Do once what each start does: copy an image and run it. Return why that fails, or ""."""
    archive = Path(f"{rootfs}.tar")
    with tarfile.open(archive, "w") as tar:
        tar.add(rootfs, arcname=".")
    args = probe_args(own, rootfs, userland, "echo works >/written && cat /written", limited=False)
    at = args.index("--rootfs")
    with locked(store):
        _forget(store)
        try:
            made = run_podman(["import", "--quiet", str(archive), _TRIAL_IMAGE], "probe")
            if made.exit_code != 0:
                return f"no image can be made for the trial: {made.error_text}"
            identifier = made.stdout.decode().split()[-1].removeprefix("sha256:")
            copy_image(store, identifier, _TRIAL_IMAGE)
            result = run_podman([*args[:at], "--pull=never", identifier, *args[at + 2 :]], "probe")
        finally:
            _forget(store)
    return (
        ""
        if result.stdout == b"works\n"
        else f"an overlay store does not work: {result.error_text}"
    )


def _forget(store: Store) -> None:
    for args in ((), store.own_args):
        run_podman([*args, "rmi", _TRIAL_IMAGE], "probe")
