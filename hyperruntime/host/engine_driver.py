"""Base classes for drivers: a container that ends with its shell, and a driver with a remembered
probe; and the removal of a dead owner's containers.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Generic

from hyperruntime.attached_shell import AttachedShell
from hyperruntime.driver import EngineInfo, Finding, PostMortem
from hyperruntime.errors import HyperRuntimeError
from hyperruntime.host.probe_cache import P, TrustedProbe, forget_probes
from hyperruntime.host.process import python_args
from hyperruntime.host.process_tree import kernel_killed_in, memory_cgroups

_REMOVAL_ROUNDS = 5
_REMOVE = (
    "import sys; from hyperruntime.host.engine_driver import remove_labelled as remove; "
    "remove(*sys.argv[1:])"
)


class ShellContainer:
    """A container whose main process is the shell that is attached to it.

    A driver's class starts it, and adds ``explain_start_failure`` and ``remove``.

    Attributes:
        id: the container's name.
        shell: the shell that is its main process.
        exec_env: environment that every exec needs beyond the spec's.
        user: the user of its commands, to which the shell switches; "" means the shell's own.
        home: ``HOME`` of this user; "" means that of its entry in ``/etc/passwd``.
    """

    id: str
    shell: AttachedShell
    exec_env: Mapping[str, str] = MappingProxyType({})
    user: str = ""
    home: str = ""
    _cgroups: tuple[Path, ...] | None = None
    _oom_killed = False

    def host_pid(self) -> int:
        """Return the host's pid of a process whose cgroup is the container's; 0 if there is none,
        or it is unknown.
        """
        return 0

    def observe(self) -> None:
        """Record whether the kernel killed a process in the container's cgroups, which vanish with
        the container.
        """
        if self._cgroups is None:
            self._cgroups = memory_cgroups(self.host_pid())
        self._oom_killed = self._oom_killed or any(map(kernel_killed_in, self._cgroups))

    def post_mortem(self) -> PostMortem:
        """Return what is known about the container's end."""
        self.observe()
        code = self.shell.wait(0.5)
        state = "running" if code is None else "exited"
        return PostMortem(state=state, exit_code=code, oom_killed=self._oom_killed)


class EngineDriver(Generic[P]):
    """A driver that needs no private directory and starts no service; its probe is remembered.

    Attributes:
        name: the driver's name.
    """

    name: str

    def __init__(
        self, probe: Callable[[], tuple[P, bool]], findings: Callable[[], Iterable[Finding]]
    ) -> None:
        """Probe nothing yet.

        Args:
            probe: returns what was found, and whether it comes from a file.
            findings: probes again and returns the findings; never raises.
        """
        self._probe = TrustedProbe(self.name, probe)
        self._findings = findings

    def open(self, private_dir: str) -> None:
        """Do nothing: the driver needs no private directory."""

    def probe(self) -> EngineInfo:
        """Return what the engine can do on this machine.

        Raises:
            EngineUnavailableError: the engine is missing or cannot run a container.
        """
        return self._probe.info()

    def diagnose(self) -> Sequence[Finding]:
        """Probe again, without the remembered result, and return the findings; never raises."""
        forget_probes(self.name)
        return tuple(self._findings())

    def cleanup_args(self, label: str) -> tuple[str, ...]:
        """Return the argv that removes every container with a label."""
        return removal_args(self, label)

    def close(self) -> None:
        """Do nothing: the driver starts no service."""


def removal_args(driver: object, label: str, empty_lists: int = 0) -> tuple[str, ...]:
    """Return the argv that removes every container with a label, by the driver's own list.

    Args:
        driver: its class is used in the new process.
        label: ``name=value``.
        empty_lists: how many lists in a row must be empty in the end, because the engine may still
            create a container that its owner requested before it died.
    """
    kind = type(driver)
    words = (kind.__module__, kind.__qualname__, label, str(empty_lists))
    return python_args("-c", _REMOVE, *words)


def remove_labelled(module: str, name: str, label: str, empty_lists: str) -> None:
    """Do what :func:`removal_args` says; exit with an error if a container is left.

    Args:
        module: the module of the driver's class.
        name: the name of the driver's class.
        label: ``name=value``.
        empty_lists: as for :func:`removal_args`.
    """
    driver = getattr(importlib.import_module(module), name)()
    key, _, value = label.partition("=")
    quiet = 0
    error: HyperRuntimeError | None = None
    for _ in range(_REMOVAL_ROUNDS):
        try:
            records = driver.containers()
        except HyperRuntimeError as failure:
            sys.exit(str(failure))
        found = [
            one for one in records if one.labels.get(key) == value and one.state != "elsewhere"
        ]
        error = None
        for record in found:
            try:
                driver.remove_container(record.id)
            except HyperRuntimeError as failure:  # the others must go all the same
                error = failure
        quiet = 0 if found else quiet + 1
        if error is None and quiet >= int(empty_lists):
            return
        time.sleep(1.0)
    if error is not None or not quiet:
        sys.exit(str(error or f"there are ever more containers with the label {label}"))
