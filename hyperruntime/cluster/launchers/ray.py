"""Nodes as long tasks of a Ray cluster, for those whose training already runs on one.

Source: docs.ray.io, "ray.remote", "ray.cancel", "Scheduling".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from hyperruntime.cluster.config import ClusterConfig
from hyperruntime.cluster.launchers.launcher import JobState, Launcher
from hyperruntime.errors import ClusterError
from hyperruntime.host.process import DEVNULL, spawn
from hyperruntime.units import GIB

_LOOK_S = 2.0
# ends with the worker of Ray, which `ray.cancel` kills
_WITH_WORKER = ("setpriv", "--pdeathsig", "TERM", "bash", "-c")


def run_script(script: str) -> int:
    """Run the script of a node, and return its exit code; runs in a worker of Ray."""
    return spawn([*_WITH_WORKER, script], stdin=DEVNULL, stdout=1, stderr=2).wait()


class RayLauncher:
    """Jobs that are tasks of a Ray cluster. A task that waits for a place counts as running.

    Attributes:
        interval_s: seconds between two questions for states.
        walltime_s: None: a task has no limit.
    """

    interval_s: float = _LOOK_S
    walltime_s: float | None = None

    def __init__(self, config: ClusterConfig) -> None:
        """Join the Ray cluster that ``RAY_ADDRESS`` names, or that of this machine.

        Raises:
            ClusterError: Ray is not installed, or there is no cluster.
        """
        try:
            import ray
        except ImportError as error:
            step = "install it: `pip install 'hyperruntime[ray]'`"
            raise ClusterError(f"provider 'ray' needs Ray; {step}") from error
        if not ray.is_initialized():
            try:
                ray.init(address="auto", log_to_driver=False, configure_logging=False)
            except Exception as error:
                step = "start one by `ray start --head`, or set RAY_ADDRESS"
                raise ClusterError(f"no Ray cluster can be joined: {error}; {step}") from error
        asked: dict[str, Any] = {"num_cpus": config.cores_per_node or 1}
        if config.gpus_per_node:
            asked["num_gpus"] = config.gpus_per_node
        if config.memory_gb_per_node:
            asked["memory"] = config.memory_gb_per_node * GIB
        self._ray = ray
        self._task = ray.remote(max_retries=0, scheduling_strategy="SPREAD", **asked)(run_script)
        self._refs: dict[str, Any] = {}

    def start(self, script: str, name: str, *, excluded: Collection[str]) -> str:
        """Start a job; see :class:`~hyperruntime.cluster.launchers.launcher.Launcher`. The script
        itself ends on hosts that are excluded.
        """
        try:
            ref = self._task.options(name=name).remote(script)
        except Exception as error:
            raise ClusterError(f"Ray starts no task: {error}") from error
        self._refs[ref.hex()] = ref
        return str(ref.hex())

    def states(self, jobs: Collection[str]) -> Mapping[str, JobState]:
        """Return the states of jobs."""
        return {job: self._state(self._refs[job]) for job in jobs}

    def _state(self, ref: Any) -> JobState:  # noqa: ANN401 - Ray's types
        done, _ = self._ray.wait([ref], timeout=0)
        if not done:
            return JobState(phase="running")
        try:
            return JobState(phase="ended", exit_code=self._ray.get(ref))
        except Exception as error:  # noqa: BLE001 - cancelled, or its node or worker is gone
            return JobState(phase="cancelled", words=" ".join(str(error).split())[:500])

    def cancel(self, jobs: Collection[str]) -> None:
        """End jobs."""
        for job in jobs:
            self._ray.cancel(self._refs[job], force=True)


def ray_launcher(config: ClusterConfig, _: Path) -> Launcher:
    """Return the launcher of a Ray cluster.

    Raises:
        ClusterError: Ray is not installed, or there is no cluster.
    """
    return RayLauncher(config)
