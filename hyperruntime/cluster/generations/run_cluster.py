"""A cluster for a run of the generate loop, for programs without asyncio."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor
from contextlib import ExitStack
from pathlib import Path

from hyperruntime.cluster.cluster import Cluster
from hyperruntime.cluster.config import ClusterConfig
from hyperruntime.cluster.generations.executor import ClusterExecutor
from hyperruntime.cluster.generations.models import NodeModels
from hyperruntime.cluster.generations.shared_run import remove_unfinished
from hyperruntime.cluster.job_directory import job_directory
from hyperruntime.concurrency.bridge import Bridge, cancel_other_tasks
from hyperruntime.concurrency.closing import Closing
from hyperruntime.driver import EngineInfo
from hyperruntime.errors import ClusterError, EngineUnavailableError
from hyperruntime.host.owner import owned_directory
from hyperruntime.loop.run_files.layout import Layout
from hyperruntime.loop.workbench.open_containers import LoopContainer, LoopImages, LoopRuntime
from hyperruntime.spec import ContainerSpec


class NoEngine:
    """The runtime of a head: it starts no container, and nodes have the images.

    Attributes:
        info: says that there is no engine.
    """

    info = EngineInfo(engine="none", version="", rootless=True)

    @property
    def images(self) -> LoopImages:
        """The images, which each node makes for itself."""
        return self

    def ensure(self, name: str) -> str:
        """Return the name."""
        return name

    def container(
        self, spec: ContainerSpec, *, labels: Mapping[str, str] | None = None
    ) -> LoopContainer:
        """Raise: the head of a cluster starts no container.

        Raises:
            EngineUnavailableError: always.
        """
        raise EngineUnavailableError(
            "none", "the head of a cluster starts no container", "run this on a node"
        )


class RunCluster(Closing):
    """The nodes that make the generations of a run, from ``with`` to :meth:`close`.

    Use it as ``start_run(cluster.runtime, attrs.evolve(plan, make_executor=cluster.executor))``.

    Attributes:
        runtime: for the head, which needs no engine.
    """

    def __init__(self, config: ClusterConfig, run_dir: Path) -> None:
        """Open the cluster, and ask for the first node.

        Args:
            config: which nodes.
            run_dir: the run directory, which need not exist; a directory beside it holds the files
                of jobs meanwhile.

        Raises:
            ClusterError: the head cannot listen, or Parsl is missing or does not start.
            StorageError: the directory cannot be made.
        """
        self.runtime: LoopRuntime = NoEngine()
        self._config = config
        self._stack = ExitStack()
        try:
            jobs = self._stack.enter_context(
                job_directory(run_dir.parent, f".{run_dir.name}.jobs-")
            )
            sockets = Path(self._stack.enter_context(owned_directory(short=True)))
            self._models = NodeModels(sockets)
            self._stack.callback(remove_unfinished, Layout(run_dir))
            self._loop = Bridge(
                "hyperruntime-cluster", lambda why: ClusterError(f"the cluster {why}")
            )
            self._stack.callback(self._loop.close)
            self._cluster = self._loop.run(self._open(jobs))
            self._stack.callback(lambda: self._loop.run(self._end()))
        except BaseException:
            self._stack.close()
            raise

    def executor(self, workers: int) -> Executor:
        """Return an executor for the nodes: each makes at most ``workers`` / ``max_nodes``
        generations, rounded up.
        """
        return ClusterExecutor(
            self._loop, self._cluster, self._models, workers, self._config.max_nodes
        )

    def close(self) -> None:
        """End the work of all nodes, cancel their jobs and remove the jobs' files; may be called
        again.
        """
        self._stack.close()

    async def _open(self, jobs: Path) -> Cluster:
        cluster = Cluster(self._config, jobs, self._models.handlers)
        await cluster.__aenter__()
        cluster.want(1)
        return cluster

    async def _end(self) -> None:
        await self._cluster.__aexit__(None, None, None)
        await cancel_other_tasks()
