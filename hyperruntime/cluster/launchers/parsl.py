"""Batch systems by the providers of Parsl, which write, submit, poll and cancel job scripts.

Of Parsl nothing else is used, neither its executors nor its processes.
"""

from __future__ import annotations

import importlib
import logging
import math
import re
import shlex
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from hyperruntime.cluster.config import ClusterConfig, seconds_of_walltime
from hyperruntime.cluster.launchers.launcher import JobRefusedError, JobState, Launcher
from hyperruntime.errors import ClusterError
from hyperruntime.secrets.env_file import KEY_VARIABLES

# by Parsl's names of states
_PHASES = {
    "PENDING": "queued",
    "HELD": "queued",
    "RUNNING": "running",
    "COMPLETED": "ended",
    "FAILED": "ended",
    "TIMEOUT": "ended",
    "CANCELLED": "cancelled",
}
# another try may succeed; by the messages of the batch systems' programs
_PASSING = re.compile(
    r"timed out|unable to contact|cannot connect|connection refused|temporarily|try again"
    r"|not responding|submit limit|communication",
    re.IGNORECASE,
)
# a new job waits less than a requeued one
_NOT_AGAIN = {"slurm": ("#SBATCH --no-requeue",), "pbs": ("#PBS -r n",), "lsf": ("#BSUB -rn",)}
_LOCAL_S = 0.5  # between two looks at processes of this machine


class ParslLauncher:
    """Jobs of one provider of Parsl.

    Attributes:
        interval_s: seconds between two questions for states.
        walltime_s: the longest time of a job in seconds; None if it is not known.
    """

    def __init__(self, provider: Any, directory: Path, config: ClusterConfig) -> None:  # noqa: ANN401 - Parsl has no types
        """Start nothing.

        Args:
            provider: the provider.
            directory: for its files; nodes must see it.
            config: which nodes.
        """
        provider.script_dir = str(directory)
        if config.provider == "local" and not config.parsl:
            self.interval_s = _LOCAL_S
        else:
            self.interval_s = float(provider.status_polling_interval)
        walltime = getattr(provider, "walltime", None)
        own = seconds_of_walltime(walltime) if isinstance(walltime, str) else None
        self.walltime_s = own if config.parsl else config.walltime_s
        self._provider = provider
        self._options = getattr(provider, "scheduler_options", "")
        self._is_slurm = provider.label == "slurm"
        self._withhold((*KEY_VARIABLES, *config.withhold))

    def _withhold(self, names: Collection[str]) -> None:
        """Run the batch system's programs without some variables: jobs get the environment of
        ``sbatch``.
        """
        if hasattr(self._provider, "execute_wait"):
            run = self._provider.execute_wait
            unset = shlex.join(["env", *(word for name in names for word in ("-u", name))])
            self._provider.execute_wait = lambda cmd, *args: run(f"{unset} {cmd}", *args)

    def start(self, script: str, name: str, *, excluded: Collection[str]) -> str:
        """Start a job; see :class:`~hyperruntime.cluster.launchers.launcher.Launcher`."""
        if self._is_slurm and excluded:
            line = f"#SBATCH --exclude={','.join(sorted(excluded))}\n"
            self._provider.scheduler_options = f"{self._options}{line}"
        try:
            return str(self._provider.submit(script, 1, job_name=name))
        except Exception as error:
            said = getattr(error, "stderr", None) or getattr(error, "reason", None) or str(error)
            why = f"the batch system refuses the job: {' '.join(said.split())}"
            if _PASSING.search(said) or not getattr(error, "retcode", 1):
                raise ClusterError(why) from error
            step = "change the table of the cluster, `hyperrun cluster check` tries it"
            raise JobRefusedError(f"{why}; {step}") from error

    def states(self, jobs: Collection[str]) -> Mapping[str, JobState]:
        """Return the states of jobs."""
        wanted = list(jobs)
        try:
            found = self._provider.status(wanted)
        except Exception:  # noqa: BLE001 - its programs fail or take too long
            return dict.fromkeys(wanted, JobState(phase="unknown"))
        return {job: _state(status) for job, status in zip(wanted, found, strict=True)}

    def cancel(self, jobs: Collection[str]) -> None:
        """End jobs."""
        if wanted := list(jobs):
            self._provider.cancel(wanted)


def _state(status: Any) -> JobState:  # noqa: ANN401
    phase: Any = _PHASES.get(status.status_name, "unknown")
    if phase not in ("ended", "cancelled"):
        return JobState(phase=phase)
    words = status.stderr_summary or status.message or ""
    return JobState(phase=phase, exit_code=status.exit_code, words=" ".join(words.split()))


def parsl_launcher(config: ClusterConfig, directory: Path) -> Launcher:
    """Return the launcher of a batch system that Parsl knows.

    Args:
        config: which nodes.
        directory: for job scripts and the output of jobs; nodes must see it.

    Raises:
        ClusterError: Parsl is not installed, or a function of the user's own returns no provider.
    """
    # it warns about each try; what matters is an error of ours
    logging.getLogger("parsl").addHandler(logging.NullHandler())
    logging.getLogger("parsl").propagate = False
    try:
        importlib.import_module("parsl.providers")
    except ImportError as error:
        step = "install it: `pip install 'hyperruntime[hpc]'`"
        raise ClusterError(f"a cluster needs Parsl; {step}") from error
    try:
        provider = _own_provider(config.parsl) if config.parsl else _provider(config)
        return ParslLauncher(provider, directory, config)
    except ClusterError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise ClusterError(f"the provider of Parsl cannot be made: {why}") from error


def _own_provider(name: str) -> Any:  # noqa: ANN401
    """Return the provider that a function makes: it returns one, or a config with one."""
    module, _, function = name.partition(":")
    try:
        made = getattr(importlib.import_module(module), function)()
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise ClusterError(f"parsl={name!r} does not return a config: {why}") from error
    executors = getattr(made, "executors", ())
    provider = next((one.provider for one in executors if getattr(one, "provider", None)), made)
    if not hasattr(provider, "submit"):
        raise ClusterError(f"parsl={name!r} returns no provider, and no config with one")
    walltime = getattr(provider, "walltime", None)
    try:
        if isinstance(walltime, str):
            seconds_of_walltime(walltime)
    except ValueError as error:
        why = f"a provider of parsl={name!r} has a bad walltime: {error}"
        raise ClusterError(why) from error
    return provider


def _provider(config: ClusterConfig) -> Any:  # noqa: ANN401
    from parsl.launchers import SimpleLauncher

    common = {
        "init_blocks": 0,
        "min_blocks": 0,
        "max_blocks": config.max_nodes,
        "nodes_per_block": 1,
        "launcher": SimpleLauncher(),
    }
    if config.provider != "local":
        minutes = math.ceil(config.walltime_s / 60)  # Parsl reads no days, and ignores seconds
        common["walltime"] = f"{minutes // 60:02}:{minutes % 60:02}:00"
        lines = (*_NOT_AGAIN.get(config.provider, ()), *config.options)
        common["scheduler_options"] = "".join(f"{line}\n" for line in lines)
    return _PROVIDERS[config.provider](config, common)


def _slurm(config: ClusterConfig, common: dict[str, Any]) -> Any:  # noqa: ANN401
    from parsl.providers import SlurmProvider

    return SlurmProvider(
        **common,
        account=config.account or None,
        partition=config.partition or None,
        cores_per_node=config.cores_per_node,
        mem_per_node=config.memory_gb_per_node,
        gpus_per_node=config.gpus_per_node or None,
        exclusive=False,
    )


def _pbs(config: ClusterConfig, common: dict[str, Any]) -> Any:  # noqa: ANN401
    """Source: qsub(1B), -l select."""
    from parsl.providers import PBSProProvider

    wanted = [f"mem={config.memory_gb_per_node}gb"] if config.memory_gb_per_node else []
    wanted += [f"ngpus={config.gpus_per_node}"] if config.gpus_per_node else []
    cores = {} if config.cores_per_node is None else {"cpus_per_node": config.cores_per_node}
    return PBSProProvider(
        **common,
        **cores,
        account=config.account or None,
        queue=config.partition or None,
        select_options=":".join(wanted),
    )


def _lsf(config: ClusterConfig, common: dict[str, Any]) -> Any:  # noqa: ANN401
    """Source: IBM Spectrum LSF, ``bsub`` -n, -R and -gpu."""
    from parsl.providers import LSFProvider

    # 1 is its default; asking by nodes needs another scheduler, CSM
    cores = config.cores_per_node or 1
    lines = common.pop("scheduler_options")
    if config.memory_gb_per_node:
        lines += f'#BSUB -R "rusage[mem={config.memory_gb_per_node}GB]"\n'
    if config.gpus_per_node:
        lines += f'#BSUB -gpu "num={config.gpus_per_node}"\n'
    return LSFProvider(
        **common,
        scheduler_options=lines,
        project=config.account or None,
        queue=config.partition or None,
        cores_per_block=cores,
        cores_per_node=cores,
        request_by_nodes=False,
        bsub_redirection=True,  # bsub reads lines with #BSUB from its input only
    )


def _gridengine(config: ClusterConfig, common: dict[str, Any]) -> Any:  # noqa: ANN401
    """Source: qsub(1) of Grid Engine: -q, -A. What a site calls memory, cores and GPUs differs, so
    ``options`` name them.
    """
    from parsl.providers import GridEngineProvider

    _refuse(config, "cores_per_node", "memory_gb_per_node", "gpus_per_node")
    lines = common.pop("scheduler_options")
    lines += f"#$ -q {config.partition}\n" if config.partition else ""
    lines += f"#$ -A {config.account}\n" if config.account else ""
    return GridEngineProvider(**common, scheduler_options=lines)


def _htcondor(config: ClusterConfig, common: dict[str, Any]) -> Any:  # noqa: ANN401
    """Source: condor_submit(1): RequestCpus, RequestMemory, request_gpus, accounting_group."""
    from parsl.providers import CondorProvider

    _refuse(config, "partition")
    lines = common.pop("scheduler_options")
    lines += f"request_gpus = {config.gpus_per_node}\n" if config.gpus_per_node else ""
    lines += f"accounting_group = {config.account}\n" if config.account else ""
    return CondorProvider(
        **common,
        scheduler_options=lines,
        cores_per_slot=config.cores_per_node,
        mem_per_slot=config.memory_gb_per_node,
    )


def _local(config: ClusterConfig, common: dict[str, Any]) -> Any:  # noqa: ANN401
    from parsl.providers import LocalProvider

    return LocalProvider(**common)


def _refuse(config: ClusterConfig, *names: str) -> None:
    """Refuse what a batch system has no word for.

    Raises:
        ClusterError: a key of the table has a value.
    """
    for name in names:
        if getattr(config, name):
            why = f"{config.provider} has no one name for it; use a line of `options`"
            raise ClusterError(f"{name} cannot be asked for: {why}")


_PROVIDERS: dict[str, Callable[[ClusterConfig, dict[str, Any]], Any]] = {
    "slurm": _slurm,
    "pbs": _pbs,
    "lsf": _lsf,
    "gridengine": _gridengine,
    "htcondor": _htcondor,
    "local": _local,
}
