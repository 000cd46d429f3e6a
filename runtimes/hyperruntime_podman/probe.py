"""Probe how Podman must be called on this machine by running a container of the host's userland.

``podman info`` succeeds on machines where every ``podman run`` fails, so only a run counts. The result is cached per
boot, Podman binary, user, cgroup version and limits.
"""

from __future__ import annotations

import itertools
import os
import resource
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

from hyperruntime.driver import Enforcement, EngineInfo
from hyperruntime.errors import EngineUnavailableError
from hyperruntime.host.engine_program import (
    SHOW_LIMITS,
    program_facts,
    program_needed,
    run_probe,
    shown_limits,
    userland_links,
)
from hyperruntime.host.inherited import process_ceiling, stricter
from hyperruntime.host.owner import owned_directory
from hyperruntime.host.probe_cache import ProbeFile
from hyperruntime.host.process import ProcessResult, find_program
from hyperruntime_podman.args import NAME, Settings, probe_args
from hyperruntime_podman.edge import INSTALL_HINT, environment, store_step, unshare_args

_RUNTIMES = ("", "runc", "crun")
_NOFILE_CEILING = 1 << 20
_NPROC_CEILING = 32768  # Podman lowers its own limit to this if it may not raise it
_SCRIPT = (
    SHOW_LIMITS
    + r"""
for map in uid gid; do
    sizes=
    while read -r inside outside size; do sizes="$sizes $size"; done </proc/self/${map}_map
    echo "ids$sizes"
done
echo works
"""
)


@attrs.frozen(kw_only=True)
class Probe:
    """The result of a probe.

    Attributes:
        version: Podman's version.
        storage: Podman's storage driver.
        settings: how to call Podman.
        tried: pairs of a combination that failed before and the reason.
    """

    version: str
    storage: str
    settings: Settings
    tried: tuple[tuple[str, str], ...] = ()

    def to_info(self) -> EngineInfo:
        """Return the result in the library's form."""
        return EngineInfo(
            engine=NAME,
            version=self.version,
            rootless=self.settings.rootless,
            oci_runtime=self.settings.oci_runtime or "podman's default",
            storage=self.storage,
            networks=("none", "host", "bridge") if self.settings.bridge else ("none", "host"),
            limits={**self.settings.limits, "tmpfs_bytes": "cgroup", "shm_bytes": "cgroup"},
            gpus=True,
            users=True,
            reclaim_args=unshare_args() if self.settings.rootless else (),
        )


def cached_probe() -> tuple[Probe, bool]:
    """Return the cached result, or probe; and whether the result came from the cache.

    Raises:
        EngineUnavailableError: Podman is missing or cannot run a container.
    """
    found = probe_file().read()
    return (probe(), False) if found is None else (found, True)


def probe() -> Probe:
    """Try OCI runtimes with and without ulimits and limits; cache the first combination that works.

    A busy machine refuses containers for a moment, for example when the user's quota of kernel keys is used up. So when
    a combination works, those before it are tried again.

    Raises:
        EngineUnavailableError: Podman is missing or cannot run a container.
    """
    version, storage = _versions()
    combinations = list(itertools.product(_candidates(), (True, False)))
    with owned_directory(short=True) as directory:  # the value of --rootfs may end with options after a colon
        rootfs, userland = _skeleton(Path(directory))
        candidate, printed, tried = _first(combinations, rootfs, userland)
        if candidate is None:
            why = f"it is installed ({version}) but no container runs: {tried[-1][1]}"
            raise EngineUnavailableError(NAME, why, "see `hyperrun doctor`")
        better, more, tried = _first(combinations[: len(tried)], rootfs, userland)
        if better is not None:
            candidate, printed = better, more
        settings = attrs.evolve(candidate, limits=_limits(printed, candidate))
        if settings.limits["pids"] == "rlimit":
            settings = _apart(settings, printed, rootfs, userland)
        settings = attrs.evolve(settings, bridge=_bridge_works(settings, rootfs, userland))
    found = Probe(version=version, storage=storage, settings=settings, tried=tuple(tried))
    probe_file().write(found)
    return found


def _first(
    combinations: Sequence[tuple[Settings, bool]], rootfs: str, userland: list[str]
) -> tuple[Settings | None, str, list[tuple[str, str]]]:
    """Return the first combination that works, what its container printed, and those that failed with the reasons."""
    tried: list[tuple[str, str]] = []
    for candidate, limited in combinations:
        result = _try(probe_args(candidate, rootfs, userland, _SCRIPT, limited=limited))
        if b"works" in result.stdout:
            return candidate, result.stdout.decode(errors="replace"), tried
        tried.append((_describe(candidate, limited=limited), result.error_text))
    return None, "", tried


def _versions() -> tuple[str, str]:
    result = _try(["podman", "info", "--format", "{{.Version.Version}} {{.Store.GraphDriverName}}"])
    if result.exit_code != 0:
        raise EngineUnavailableError(NAME, f"`podman info` fails: {result.error_text}", store_step(result.error_text))
    version, _, storage = result.stdout.decode(errors="replace").strip().partition(" ")
    return version, storage


def _candidates() -> Iterator[Settings]:
    rootless = os.geteuid() != 0
    nofile, nproc = _hard_limits()
    for runtime in _RUNTIMES:
        if runtime and find_program(runtime) is None and not Path("/usr/sbin", runtime).exists():
            continue
        yield Settings(oci_runtime=runtime, rootless=rootless, nofile=nofile, nproc=nproc)
        yield Settings(oci_runtime=runtime, rootless=rootless)


def _hard_limits() -> tuple[int, int]:
    """Return the highest limits on open files and on processes that a container may set."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    nofile = _NOFILE_CEILING if hard == resource.RLIM_INFINITY else min(hard, _NOFILE_CEILING)
    return nofile, stricter(_NPROC_CEILING, process_ceiling())


def _skeleton(directory: Path) -> tuple[str, list[str]]:
    """Make a root file system of links to the host's userland; return its path and the paths to mount."""
    rootfs = directory / "rootfs"
    rootfs.mkdir()
    for name in ("proc", "sys", "dev", "etc", "run", "tmp", "usr"):
        (rootfs / name).mkdir()
    links, directories = userland_links()
    for name, target in links.items():
        (rootfs / name).symlink_to(target)
    for path in directories:
        (rootfs / path[1:]).mkdir()
    return str(rootfs), ["/usr", *directories]


def _limits(printed: str, settings: Settings) -> dict[str, Enforcement]:
    limits = shown_limits(printed)
    if limits["pids"] == "no" and settings.rootless and settings.nproc:
        limits["pids"] = "rlimit"
    return limits


def _apart(settings: Settings, printed: str, rootfs: str, userland: list[str]) -> Settings:
    """Return the settings with a user namespace per container if that works; else all containers share one limit."""
    maps = [line.split()[1:] for line in printed.splitlines() if line.startswith("ids ")]
    uids, gids = (sum(int(word) for word in words) for words in maps)
    apart = attrs.evolve(settings, uids=uids, gids=gids)
    works = b"works" in _try(probe_args(apart, rootfs, userland, _SCRIPT, limited=False)).stdout
    return apart if works else settings


def _bridge_works(settings: Settings, rootfs: str, userland: list[str]) -> bool:
    args = probe_args(settings, rootfs, userland, "echo works", limited=False)
    args[args.index("none")] = "slirp4netns" if settings.rootless else "bridge"
    return any(b"works" in _try(args).stdout for _ in range(2))  # the result is cached, so one failure is retried


def _describe(settings: Settings, *, limited: bool) -> str:
    parts = [settings.oci_runtime or "default OCI runtime"]
    parts.append("with ulimits" if settings.nofile else "without ulimits")
    parts.append("with limits" if limited else "without limits")
    return ", ".join(parts)


def _try(args: list[str]) -> ProcessResult:
    with program_needed(NAME, NAME, INSTALL_HINT):
        return run_probe(NAME, args, env=environment())


def probe_file() -> ProbeFile[Probe]:
    """Return the file of what a probe found: for this binary, this cgroup version and these limits."""
    cgroups = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    return ProbeFile(NAME, (program_facts(NAME), cgroups, *_hard_limits()), Probe)
