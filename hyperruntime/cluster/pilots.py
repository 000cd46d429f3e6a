"""Pilot jobs: Parsl asks the batch system for nodes, and runs one node server on each."""

from __future__ import annotations

import importlib
import logging
import math
import os
import re
import shlex
import signal
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from hyperruntime.cluster import with_children, with_parent
from hyperruntime.cluster.config import ClusterConfig, seconds_of_walltime
from hyperruntime.cluster.head import Invitation
from hyperruntime.cluster.node_services import NodeSettings
from hyperruntime.errors import ClusterError, NodeLostError
from hyperruntime.host import python
from hyperruntime.host.python import PYTHONPATH, python_args, python_directory, safe_python_path
from hyperruntime.logs import get_logger
from hyperruntime.secrets.env_file import KEY_VARIABLES

log = get_logger(__name__)

LABEL = "nodes"
# by module: it may not be on the PATH of a job
_POOL = "parsl.executors.high_throughput.process_worker_pool"
_INTERCHANGE = "parsl.executors.high_throughput.interchange"
# of Parsl's error
_JOB = re.compile(r"EXIT CODE: (-?\d+)(?: STDOUT: .*?)?(?: STDERR: (.*?))?(?= Error \d+:|$)")
_PLAIN_PATH = re.compile(r"[\w./+,:=@%-]+")  # Parsl writes paths into scripts as they are
_MOST_FAILED_JOBS = 3  # consecutive jobs whose nodes did not connect
# Parsl's states of a job that did not start, or ended before its node connected
_FAILED = ("FAILED", "MISSING")
_PAUSE_S = 60.0  # after so many failed jobs, before more nodes are asked for
_POLL_S = 0.2  # between two looks at whether more jobs are needed
# a new job waits less than a requeued one
_NOT_AGAIN = {"slurm": ("#SBATCH --no-requeue",), "pbs": ("#PBS -r n",)}
_IDLE_S = 2.0  # of a job without a node server, before it is cancelled
# after a node was lost: between two queries of job states, and for how long
_SOON_S = 2.0
_SOON_FOR_S = 120.0
_EARLY_S = 60.0
# of Parsl's managers: seconds from the head's death to the end of a job without a node server
_LEAST_PATIENCE_S = 12


class Pilots:
    """The nodes' jobs of one cluster, from :meth:`start` to :meth:`stop`.

    Attributes:
        walltime_s: the longest time of a job in seconds; None if a Parsl config of the user's own
            names none.
    """

    def __init__(self, config: ClusterConfig, directory: Path) -> None:
        """Ask for nothing yet.

        Args:
            config: which nodes.
            directory: absolute; for Parsl's files: job scripts, and the logs of jobs and of its
                processes. Nodes must see it.
        """
        self._config = config
        self._directory = directory
        self._kernel: Any = None
        self._failed: Sequence[str] = ()
        self._paused_until = 0.0
        self._soon_until = 0.0
        self.walltime_s = None if config.parsl else config.walltime_s

    def start(self) -> None:
        """Start Parsl; the batch system is asked for nodes when node servers are submitted.

        Raises:
            ClusterError: Parsl is not installed, or does not start; or the directory's path cannot
                be in a job script.
        """
        if not _PLAIN_PATH.fullmatch(str(self._directory)):
            step = (
                "put the run in a path without spaces, quotes or other special characters of "
                "the shell"
            )
            raise ClusterError(
                f"{str(self._directory)!r} cannot be named in the scripts of jobs; {step}"
            )
        logging.getLogger("parsl").propagate = False  # it writes parsl.log in the directory
        try:
            from parsl.dataflow.dflow import DataFlowKernel
        except ImportError as error:
            raise ClusterError(
                "a cluster needs Parsl; install it: `pip install 'hyperruntime[hpc]'`"
            ) from error
        try:
            config = self._parsl_config()
            for executor in config.executors:
                if (provider := getattr(executor, "provider", None)) is not None:
                    self._note_walltime(provider)
                    self._withhold(provider)
                    self._ask_soon(provider)
            self._kernel = DataFlowKernel(config)
        except ClusterError:
            raise
        except Exception as error:
            raise ClusterError(f"Parsl does not start: {type(error).__name__}: {error}") from error

    def submit(self, invitation: Invitation) -> Future[None]:
        """Ask for a node, on which a node server accepts an invitation; the future ends with the
        node server.
        """
        future: Future[None] = self._kernel.submit(
            serve_node,
            app_args=(invitation, self._settings()),
            executors=self._labels(),
            cache=False,
            ignore_for_cache=[],
            app_kwargs={},
        )
        return future

    def look_soon(self) -> None:
        """Query job states more often for a while: a node was lost, and Parsl replaces only jobs
        that have ended.
        """
        self._soon_until = time.monotonic() + _SOON_FOR_S

    def stop(self) -> None:
        """Cancel all jobs and end Parsl; may be called again."""
        kernel, self._kernel = self._kernel, None
        if kernel is not None:
            logs = [
                one
                for one in logging.getLogger("parsl").handlers
                if isinstance(one, logging.FileHandler)
            ]
            for executor in kernel.executors.values():
                if getattr(executor, "bad_state_is_set", False):
                    _cancel_jobs(executor)
            kernel.cleanup()
            for open_log in set(logs) - set(logging.getLogger("parsl").handlers):
                open_log.close()  # Parsl removes it only

    def _note_walltime(self, provider: Any) -> None:  # noqa: ANN401
        if not self._config.parsl or not isinstance(
            text := getattr(provider, "walltime", None), str
        ):
            return
        try:
            walltime_s = seconds_of_walltime(text)
        except ValueError as error:
            raise ClusterError(
                f"a provider of parsl={self._config.parsl!r} has a bad walltime: {error}"
            ) from error
        if walltime_s <= self._config.drain_s:
            step = (
                f"name a longer walltime, or a smaller drain_s, which is {self._config.drain_s:g}"
            )
            raise ClusterError(
                f"the walltime {text} in parsl={self._config.parsl!r} leaves no time for work; "
                f"{step}"
            )
        self.walltime_s = min(walltime_s, self.walltime_s or walltime_s)

    def _settings(self) -> NodeSettings:
        return NodeSettings(self._config.runtime, self._config.scratch, str(self._directory))

    def _ask_soon(self, provider: Any) -> None:  # noqa: ANN401
        """Let :meth:`look_soon` shorten the time between two queries, which is a minute for most
        batch systems.
        """
        kind = type(provider)

        def interval(own: Any) -> float:  # noqa: ANN401
            usual = float(kind.status_polling_interval.fget(own))
            return min(usual, _SOON_S) if time.monotonic() < self._soon_until else usual

        provider.__class__ = type(
            kind.__name__, (kind,), {"status_polling_interval": property(interval)}
        )

    def _withhold(self, provider: Any) -> None:  # noqa: ANN401
        """Run the batch system's programs without the withheld variables: jobs get the environment
        of ``sbatch``.
        """
        if hasattr(provider, "execute_wait"):
            run = provider.execute_wait
            unset = [word for name in self._withheld for word in ("-u", name)]
            provider.execute_wait = lambda cmd, *args: run(f"env {shlex.join(unset)} {cmd}", *args)

    @property
    def _withheld(self) -> tuple[str, ...]:
        return (*KEY_VARIABLES, *self._config.withhold)

    def _labels(self) -> list[str]:
        return [label for label in self._kernel.executors if label != "_parsl_internal"]

    def _parsl_config(self) -> Any:  # noqa: ANN401 - Parsl has no types
        if self._config.parsl:
            return _own_config(self._config.parsl)
        from parsl.config import Config
        from parsl.executors import HighThroughputExecutor
        from parsl.executors.high_throughput.executor import DEFAULT_LAUNCH_CMD

        patience_s = max(_LEAST_PATIENCE_S, math.ceil(self._config.patience_s))
        executor = HighThroughputExecutor(
            label=LABEL,
            provider=self._provider(),
            address=self._config.address or None,
            max_workers_per_node=1,
            cores_per_worker=0.001,  # the one worker of a node has all of them
            launch_cmd=launch_command(
                DEFAULT_LAUNCH_CMD, self._config.walltime_s - self._config.drain_s
            ),
            interchange_launch_cmd=_interchange_args(),
            heartbeat_period=patience_s // 4,
            heartbeat_threshold=patience_s,
            poll_period=100,
            encrypted=True,
            block_error_handler=self._judge_jobs,
        )
        return Config(
            executors=[executor],
            run_dir=str(self._directory),
            strategy="htex_auto_scale",
            strategy_period=_POLL_S,
            max_idletime=_IDLE_S,
            retries=0,
            usage_tracking=0,
        )

    def _judge_jobs(self, executor: Any, status: Mapping[str, Any]) -> None:  # noqa: ANN401
        """Ask for no more nodes for a while if the newest jobs all failed before their nodes
        connected.

        If no node is connected, all pending requests for nodes fail. Parsl's own handlers let them
        fail after the first failed job, or even while nodes are connected.
        """
        from parsl.jobs.error_handlers import windowed_error_handler

        newest = sorted(status, key=int)[-_MOST_FAILED_JOBS:]
        failed = [block for block in newest if status[block].status_name in _FAILED]
        if len(failed) < _MOST_FAILED_JOBS or set(failed) & set(executor.connected_blocks()):
            executor.provider.max_blocks = self._config.max_nodes
        elif not any(manager["active"] for manager in executor.connected_managers()):
            windowed_error_handler(
                executor, {block: status[block] for block in newest}, _MOST_FAILED_JOBS
            )
        else:
            if failed != self._failed:
                self._failed = failed
                self._paused_until = time.monotonic() + _PAUSE_S
                log.warning(
                    "jobs of nodes fail",
                    jobs=len(failed),
                    error=status[failed[-1]].message,
                    pause_s=_PAUSE_S,
                )
            alive = sum(not one.terminal for one in status.values())
            paused = time.monotonic() < self._paused_until
            executor.provider.max_blocks = alive if paused else self._config.max_nodes

    def _provider(self) -> Any:  # noqa: ANN401
        from parsl import providers
        from parsl.launchers import SimpleLauncher

        config = self._config
        # also for a provider that does not run `env`
        forget = f"unset {shlex.join(self._withheld)}"
        # the shell replaces variables
        scratch = f'export {with_children.SCRATCH}="{config.scratch}"'
        began = f"export {with_children.JOB_BEGAN}=$(date +%s)"
        jobs = f"export {with_children.JOBS}={shlex.quote(str(self._directory))}"
        programs = f"export PATH={shlex.quote(python_directory())}:$PATH"
        setup = "\n".join(
            (began, *config.setup, forget, scratch, jobs, programs, _safe_python_path_line())
        )
        blocks = {
            "init_blocks": 0,
            "min_blocks": 0,
            "max_blocks": config.max_nodes,
            "nodes_per_block": 1,
        }
        common = {**blocks, "worker_init": setup, "launcher": SimpleLauncher()}
        minutes = math.ceil(config.walltime_s / 60)  # Parsl reads no days, and ignores seconds
        named = {
            "account": config.account or None,
            "walltime": f"{minutes // 60:02}:{minutes % 60:02}:00",
        }
        lines = "\n".join((*_NOT_AGAIN.get(config.provider, ()), *config.options))
        if config.provider == "slurm":
            return providers.SlurmProvider(
                **common,
                **named,
                partition=config.partition or None,
                cores_per_node=config.cores_per_node,
                mem_per_node=config.memory_gb_per_node,
                gpus_per_node=config.gpus_per_node or None,
                scheduler_options=lines,
                exclusive=False,
            )
        if config.provider == "pbs":
            asked = _pbs_resources(config)
            return providers.PBSProProvider(
                **common, **named, **asked, queue=config.partition or None, scheduler_options=lines
            )
        if config.provider == "lsf":
            named["project"] = named.pop("account")
            asked, more = _lsf_resources(config)
            options = "\n".join((lines, *more))
            return providers.LSFProvider(
                **common,
                **named,
                **asked,
                queue=config.partition or None,
                scheduler_options=options,
                bsub_redirection=True,  # bsub reads lines with #BSUB from its input only
            )
        if config.provider == "local":
            return providers.LocalProvider(**common)
        raise ValueError(f"no provider of Parsl is known for {config.provider!r}")  # a new name


def _pbs_resources(config: ClusterConfig) -> dict[str, Any]:
    """Return what Parsl's provider asks for. Source: qsub(1B), -l select."""
    wanted = [f"mem={config.memory_gb_per_node}gb"] if config.memory_gb_per_node else []
    wanted += [f"ngpus={config.gpus_per_node}"] if config.gpus_per_node else []
    cores = {} if config.cores_per_node is None else {"cpus_per_node": config.cores_per_node}
    return {**cores, "select_options": ":".join(wanted)}


def _lsf_resources(config: ClusterConfig) -> tuple[dict[str, Any], list[str]]:
    """Return what Parsl's provider and further lines ask for. Source: IBM Spectrum LSF, ``bsub``
    -n, -R and -gpu.
    """
    # 1 is its default; asking by nodes needs another scheduler, CSM
    cores = config.cores_per_node or 1
    lines = []
    if config.memory_gb_per_node:
        lines.append(f'#BSUB -R "rusage[mem={config.memory_gb_per_node}GB]"')
    if config.gpus_per_node:
        lines.append(f'#BSUB -gpu "num={config.gpus_per_node}"')
    return {"cores_per_block": cores, "cores_per_node": cores, "request_by_nodes": False}, lines


def _cancel_jobs(executor: Any) -> None:  # noqa: ANN401
    """Cancel the jobs of an executor that failed, which Parsl leaves in the queue."""
    alive = [block for block, status in executor.status_facade.items() if not status.terminal]
    if jobs := [
        executor.blocks_to_job_id[block] for block in alive if block in executor.blocks_to_job_id
    ]:
        executor.provider.cancel(jobs)


def _interchange_args() -> list[str]:
    """Return the argv of Parsl's interchange, which Parsl starts with this process's
    environment.
    """
    path = safe_python_path(os.environ.get(PYTHONPATH, ""))
    return ["env", f"{PYTHONPATH}={path}", *python_args("-m", with_parent.__name__, _INTERCHANGE)]


def _safe_python_path_line() -> str:
    """Return the line of a job's script that corrects ``PYTHONPATH``, which the lines before it may
    have changed.
    """
    program = shlex.join(python_args("-I", "-S", python.__file__))
    return f'[ -z "${{{PYTHONPATH}:-}}" ] || export {PYTHONPATH}="$({program})"'


def _own_config(name: str) -> Any:  # noqa: ANN401
    module, _, function = name.partition(":")
    try:
        return getattr(importlib.import_module(module), function)()
    except Exception as error:
        raise ClusterError(
            f"parsl={name!r} does not return a config: {type(error).__name__}: {error}"
        ) from error


def launch_command(usual: str, drains_s: float) -> str:
    """Return the command of a node's job.

    Args:
        usual: Parsl's command, with its placeholders.
        drains_s: seconds from the job's start after which the head wants another node in its place.
            The job must take no other node server then, even if its program started slowly.
    """
    program = shlex.join(python_args("-m", with_children.__name__, _POOL))
    early_s = math.ceil(drains_s - min(_EARLY_S, drains_s / 2))
    drain_period = f"$(({early_s} - $(date +%s) + ${with_children.JOB_BEGAN}))"
    return usual.replace("process_worker_pool.py", program).replace("{drain_period}", drain_period)


def why_job_ended(error: BaseException) -> str:
    """Return the reason in an error of a node's future: for a job that failed, its exit code and
    what it wrote.
    """
    text = " ".join(str(error).split())
    if (job := _JOB.search(text)) is not None:
        return f"exit code {job[1]}" + (f", {job[2]!r}" if job[2] else "")
    return text if isinstance(error, ClusterError) else f"{type(error).__name__}: {text}"


def serve_node(invitation: Invitation, settings: NodeSettings) -> None:
    """Run a node server until its head is gone; the task of a pilot job.

    Parsl runs it in a child of the job's process, which would wait for another task. Without a head
    there is none, so the job is ended.
    """
    import asyncio

    from hyperruntime.cluster.node_server import run_node

    job = os.getppid()
    name = Path("/proc/self/comm")
    before = name.read_text()
    try:
        with_children.restore_tmpdir()
        # the job's process knows it by this name, and lets it finish its work
        name.write_text(with_children.NODE_NAME)
        asyncio.run(run_node(invitation, settings))
    except NodeLostError:
        os.kill(job, signal.SIGTERM)
        raise
    finally:
        name.write_text(before)
