"""Pilot jobs: Parsl asks the batch system for nodes, and runs one node server on each."""

from __future__ import annotations

import importlib
import logging
import os
import re
import signal
import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from hyperruntime.cluster import with_children, with_parent
from hyperruntime.cluster.config import ClusterConfig
from hyperruntime.cluster.head import Invitation
from hyperruntime.cluster.node_services import NodeSettings
from hyperruntime.errors import ClusterError, NodeLostError
from hyperruntime.logs import get_logger

log = get_logger(__name__)

LABEL = "nodes"
_POOL = "parsl.executors.high_throughput.process_worker_pool"  # by module: it may not be on the PATH of a job
_INTERCHANGE = "parsl.executors.high_throughput.interchange"
_JOB = re.compile(r"EXIT CODE: (-?\d+)(?: STDOUT: .*?)?(?: STDERR: (.*?))?(?= Error \d+:|$)")  # of Parsl's error
_POLL_S = 0.5  # between two looks at the queue
_HEARTBEAT_S, _HEARTBEATS_S = 30, 120  # Parsl's own, between its interchange and its managers


class Pilots:
    """The nodes' jobs of one cluster, from :meth:`start` to :meth:`stop`."""

    def __init__(self, config: ClusterConfig, directory: Path) -> None:
        """Ask for nothing yet.

        Args:
            config: which nodes.
            directory: for Parsl's files: job scripts, and the logs of jobs and of its processes. Nodes must see it.
        """
        self._config, self._directory = config, directory
        self._kernel: Any = None

    def start(self) -> None:
        """Start Parsl; the batch system is asked for nodes when node servers are submitted.

        Raises:
            ClusterError: Parsl is not installed, or does not start.
        """
        logging.getLogger("parsl").propagate = False  # it writes parsl.log in the directory
        try:
            from parsl.dataflow.dflow import DataFlowKernel
        except ImportError as error:
            raise ClusterError("many nodes need Parsl: `pip install 'hyperruntime[hpc]'`") from error
        try:
            self._kernel = DataFlowKernel(self._parsl_config())
        except ClusterError:
            raise
        except Exception as error:
            raise ClusterError(f"Parsl does not start: {type(error).__name__}: {error}") from error

    def submit(self, invitation: Invitation) -> Future[None]:
        """Ask for a node, on which a node server accepts an invitation; the future ends with the node server."""
        future: Future[None] = self._kernel.submit(
            serve_node,
            app_args=(invitation, self._settings()),
            executors=self._labels(),
            cache=False,
            ignore_for_cache=[],
            app_kwargs={},
        )
        return future

    def stop(self) -> None:
        """Cancel all jobs and end Parsl; may be called again."""
        kernel, self._kernel = self._kernel, None
        if kernel is not None:
            kernel.cleanup()

    def _settings(self) -> NodeSettings:
        return NodeSettings(self._config.runtime, self._config.scratch, str(self._directory))

    def _labels(self) -> list[str]:
        return [label for label in self._kernel.executors if label != "_parsl_internal"]

    def _parsl_config(self) -> Any:  # noqa: ANN401 - Parsl has no types
        if self._config.parsl:
            return _own_config(self._config.parsl)
        from parsl.config import Config
        from parsl.executors import HighThroughputExecutor
        from parsl.executors.high_throughput.executor import DEFAULT_LAUNCH_CMD

        executor = HighThroughputExecutor(
            label=LABEL,
            provider=self._provider(),
            address=self._config.address or None,
            max_workers_per_node=1,
            cores_per_worker=0.001,  # the one worker of a node has all of them
            launch_cmd=DEFAULT_LAUNCH_CMD.replace(
                "process_worker_pool.py", f"{sys.executable} -m {with_children.__name__} {_POOL}"
            ),
            interchange_launch_cmd=[sys.executable, "-m", with_parent.__name__, _INTERCHANGE],
            heartbeat_period=_HEARTBEAT_S,
            heartbeat_threshold=_HEARTBEATS_S,
            poll_period=100,
            encrypted=True,
        )
        return Config(
            executors=[executor],
            run_dir=str(self._directory),
            strategy="simple",
            strategy_period=_POLL_S,
            max_idletime=self._config.idle_s,
            retries=0,
            usage_tracking=0,
        )

    def _provider(self) -> Any:  # noqa: ANN401
        from parsl import providers
        from parsl.launchers import SimpleLauncher

        config = self._config
        setup = "\n".join((*config.setup, f"export PATH={os.path.dirname(sys.executable)}:$PATH"))
        blocks = {"init_blocks": 0, "min_blocks": 0, "max_blocks": config.max_nodes, "nodes_per_block": 1}
        common = {**blocks, "worker_init": setup, "launcher": SimpleLauncher()}
        named = {"account": config.account or None, "walltime": config.walltime}
        lines = "\n".join(config.options)
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
            cores = {} if config.cores_per_node is None else {"cpus_per_node": config.cores_per_node}
            return providers.PBSProProvider(
                **common, **named, **cores, queue=config.partition or None, scheduler_options=lines
            )
        if config.provider == "lsf":
            named["project"] = named.pop("account")
            return providers.LSFProvider(
                **common,
                **named,
                queue=config.partition or None,
                scheduler_options=lines,
                cores_per_node=config.cores_per_node,
            )
        return providers.LocalProvider(**common)


def _own_config(name: str) -> Any:  # noqa: ANN401
    module, _, function = name.partition(":")
    try:
        return getattr(importlib.import_module(module), function)()
    except Exception as error:
        raise ClusterError(f"parsl={name!r} makes no config: {type(error).__name__}: {error}") from error


def why_job_ended(error: BaseException) -> str:
    """Return the reason in an error of a node's future: for a job that failed, its exit code and what it wrote."""
    text = " ".join(str(error).split())
    if (job := _JOB.search(text)) is not None:
        return f"exit code {job[1]}" + (f", {job[2]!r}" if job[2] else "")
    return text if isinstance(error, ClusterError) else f"{type(error).__name__}: {text}"


def serve_node(invitation: Invitation, settings: NodeSettings) -> None:
    """Run a node server until its head is gone; the task of a pilot job.

    Parsl runs it in a child of the job's process, which would wait for another task. Without a head there is none, so
    the job is ended.
    """
    import asyncio

    from hyperruntime.cluster.node_server import run_node

    job = os.getppid()
    try:
        asyncio.run(run_node(invitation, settings))
    except NodeLostError:
        os.kill(job, signal.SIGTERM)
        raise
