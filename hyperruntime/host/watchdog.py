"""Enforce limits from outside the container: wall clock and disk always, memory if the caller asks
for it.

One thread for all containers of a process checks them and ends a container that exceeds a limit.
Between two checks a container can use more than its limit. Design: docs/design/containers.md.
"""

from __future__ import annotations

import os
import posixpath
import sys
import threading
import time
from collections.abc import Callable

import attrs

from hyperruntime.concurrency.per_process import PerProcess
from hyperruntime.driver import CopiesImage, EngineInfo, HasLayer, Launch, LiveContainer
from hyperruntime.errors import UnsupportedOptionError
from hyperruntime.host.disk import DiskWatch, Layer, Use, changes_layer, measure
from hyperruntime.host.process_tree import (
    Namespace,
    container_namespace,
    exact_memory_bytes,
    members,
    rough_memory_bytes,
)
from hyperruntime.logs import get_logger
from hyperruntime.spec import ContainerSpec, Limits
from hyperruntime.units import format_duration, format_size

log = get_logger(__name__)

_CALM_S = 0.1
_NEAR_S = 0.02  # between checks while a container uses more than half of its limit
_NOTHING = Limits(pids=None)


def split_limits(spec: ContainerSpec, info: EngineInfo) -> tuple[Limits, Limits]:
    """Split the limits of a spec into those for the engine and those for the watchdog."""
    limits = spec.limits
    enforced = info.limits.get("memory_bytes", "no") != "no"
    memory = limits.memory_bytes if spec.limits_mode == "watchdog" and not enforced else None
    asked = attrs.evolve(
        limits, wall_s=None, disk_bytes=None, memory_bytes=None if memory else limits.memory_bytes
    )
    return asked, attrs.evolve(
        _NOTHING, memory_bytes=memory, wall_s=limits.wall_s, disk_bytes=limits.disk_bytes
    )


class Watch:
    """The watch over one container.

    Attributes:
        verdict: why the watchdog ended the container, or "".
        limit: name of the field of the limits that it exceeded, or "".
        disk: the watch over its disk use, or None.
        memory_bytes: its memory limit, or None.
        namespace: its processes, or None if they are not visible from here.
        deadline: end of its lifetime, by the monotonic clock, or None.
    """

    def __init__(
        self, watched: Limits, namespace: Namespace | None, remove: Callable[[], None]
    ) -> None:
        """Start the clock.

        Args:
            watched: the limits.
            namespace: its processes, or None if they are not visible from here.
            remove: removes the container; called if ``namespace`` is None.
        """
        self.verdict = self.limit = ""
        self.disk: DiskWatch | None = None
        self.memory_bytes = watched.memory_bytes
        self.namespace = namespace
        self.deadline = None if watched.wall_s is None else time.monotonic() + watched.wall_s
        self._wall_s = watched.wall_s or 0.0
        self._remove = remove
        self._lock = threading.Lock()

    def judge_time(self) -> None:
        """End the container if its time is up."""
        if self.deadline is not None and time.monotonic() >= self.deadline:
            self.end(f"it lived for limits.wall_s={format_duration(self._wall_s)}", "wall_s")

    def judge_memory(self, pids: list[str]) -> bool:
        """End the container if its processes exceed the memory limit; return whether they use more
        than half of it.
        """
        if self.memory_bytes is None or self.namespace is None:
            return False
        used = rough_memory_bytes(pids, self.namespace.tmpfs)
        if used > self.memory_bytes:
            used = exact_memory_bytes(pids, self.namespace.tmpfs)
        if used > self.memory_bytes:
            why = (
                f"it used {used} bytes ({format_size(used)}) of "
                f"limits.memory_bytes={self.memory_bytes}"
            )
            self.end(why, "memory_bytes")
        return used > self.memory_bytes // 2

    def end(self, why: str, limit: str) -> None:
        """End the container; only the first reason is kept.

        Args:
            why: the reason, as part of a sentence.
            limit: name of the field of the limits that was exceeded, or "".
        """
        with self._lock:
            if not self.verdict:
                self.verdict = f"this library's watchdog ended it, because {why}"
                self.limit = limit
                log.warning("container ended by the watchdog", why=why)
            if self.namespace is not None:
                self.namespace.kill()
            else:
                threading.Thread(
                    target=self._remove, name="hyperruntime-watchdog-remove", daemon=True
                ).start()

    def close(self) -> None:
        """Stop the watch over its disk and release its processes."""
        if self.disk is not None:
            self.disk.stop()
        with self._lock:
            if self.namespace is not None:
                self.namespace.close()
                self.namespace = None


class Watcher:
    """The thread that checks all watched containers; it runs while there are any."""

    def __init__(self) -> None:
        """Prepare; no thread runs yet."""
        self._watches: list[Watch] = []
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._uncounted: set[str] = set()

    def say_uncounted(self, driver_name: str) -> None:
        """Say once for each driver that disk limits count only directories and memory."""
        with self._changed:
            if driver_name in self._uncounted:
                return
            self._uncounted.add(driver_name)
        log.warning(
            "disk limit counts no changes to the image's files",
            driver=driver_name,
            why="the engine's store cannot be seen from here",
        )

    def add(self, watch: Watch) -> None:
        """Watch a container from now on."""
        with self._changed:
            self._watches.append(watch)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="hyperruntime-watchdog", daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def drop(self, watch: Watch) -> None:
        """Stop a watch; after the return the thread does not check it."""
        with self._changed:
            if watch in self._watches:
                self._watches.remove(watch)
            self._changed.notify()
            watch.close()

    def _run(self) -> None:
        with self._changed:
            while self._watches:
                pause_s = self._look()
                if self._watches:
                    self._changed.wait(pause_s)
            self._thread = None

    def _look(self) -> float | None:
        """Check every container; return the seconds until the next check, or None to wait for a
        change.
        """
        near = False
        for watch in self._watches:
            watch.judge_time()
        weighed = [
            watch for watch in self._watches if watch.memory_bytes is not None and not watch.verdict
        ]
        if weighed:
            pids = members(watch.namespace for watch in weighed if watch.namespace is not None)
            for watch in weighed:
                if watch.namespace is not None:
                    near = watch.judge_memory(pids[watch.namespace.inode]) or near
        self._watches = [watch for watch in self._watches if not watch.verdict]
        waits = [
            watch.deadline - time.monotonic()
            for watch in self._watches
            if watch.deadline is not None
        ]
        if weighed:
            waits.append(_NEAR_S if near else _CALM_S)
        return max(0.0, min(waits)) if waits else None


_watchers = PerProcess(Watcher)  # a forked child has no threads of its parent


def watch_container(
    watched: Limits,
    launch: Launch,
    driver_name: str,
    live: LiveContainer,
    remove: Callable[[], None],
) -> Watch | None:
    """Watch a running container; return its watch, or None if there is no limit to watch.

    Args:
        watched: its limits.
        launch: the request that started it.
        driver_name: name of the driver, for the error.
        live: the container.
        remove: removes the container if its processes are not visible from here; never raises.

    Raises:
        UnsupportedOptionError: its memory cannot be watched, because its processes are not visible
            from here.
    """
    if watched == _NOTHING:
        return None
    targets = [posixpath.normpath(mount.target) for mount in (launch.exchange, *launch.spec.mounts)]
    # the engine's name changes with a rollback, that of the directory does not
    name = os.path.basename(launch.private_dir)
    namespace = container_namespace(name, launch.exchange.source, targets)
    if namespace is None and watched.memory_bytes is not None:
        why = (
            "its processes are not visible from here (another machine or user), so the watchdog "
            "cannot watch them"
        )
        raise UnsupportedOptionError(driver_name, "limits.memory_bytes", f"{why}; leave it at None")
    watch = Watch(watched, namespace, remove)
    if watched.disk_bytes is not None:
        layer = _layer_of(live, namespace)
        tops = [
            mount.source
            for mount in launch.spec.mounts
            if not mount.read_only and os.path.isdir(mount.source)
        ]
        size = live.copied_bytes if isinstance(live, CopiesImage) else 0
        copied = Use(size, hidden=False)
        if layer is None:
            _watchers.get().say_uncounted(driver_name)
        else:
            tops += layer.paths
            if layer.is_copy:
                copied = measure(layer.paths, None, sys.maxsize)
        watch.disk = DiskWatch(watched.disk_bytes, tops, namespace, watch.end, copied)
    _watchers.get().add(watch)
    return watch


def _layer_of(live: LiveContainer, namespace: Namespace | None) -> Layer | None:
    """Return where the changes of a container to its image are; None if unknown."""
    if isinstance(live, HasLayer):
        return Layer((live.layer,) if live.layer else ())
    return changes_layer(namespace)


def unwatch(watch: Watch | None) -> None:
    """Stop watching a container; None is allowed and does nothing."""
    if watch is not None:
        _watchers.get().drop(watch)
