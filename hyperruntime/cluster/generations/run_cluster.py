"""A cluster for a run of the generate loop, for programs without asyncio."""

from __future__ import annotations

import json
import secrets
import shutil
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import Executor
from contextlib import ExitStack, suppress
from pathlib import Path

import attrs

from hyperruntime.cluster.cluster import Cluster
from hyperruntime.cluster.config import ClusterConfig
from hyperruntime.cluster.generations.executor import ClusterExecutor
from hyperruntime.cluster.generations.models import NodeModels
from hyperruntime.cluster.generations.shared_run import remove_unfinished
from hyperruntime.concurrency.background_loop import BackgroundLoop, cancel_other_tasks
from hyperruntime.concurrency.closing import Closing
from hyperruntime.driver import EngineInfo
from hyperruntime.errors import ClusterError, EngineUnavailableError
from hyperruntime.host.owner import OwnerIdentity, owned_directory
from hyperruntime.json_values import json_object_of_file
from hyperruntime.loop.run_files.layout import Layout
from hyperruntime.loop.workbench.open_containers import LoopContainer, LoopImages, LoopRuntime
from hyperruntime.spec import ContainerSpec
from hyperruntime.storage.atomic import make_directory

_OWNER = "owner.json"
_NO_RECORD_S = 60.0  # until a directory without its owner's record counts as left


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

    def container(self, spec: ContainerSpec, *, labels: Mapping[str, str] | None = None) -> LoopContainer:
        """Raise: the head of a cluster starts no container.

        Raises:
            EngineUnavailableError: always.
        """
        raise EngineUnavailableError("none", "the head of a cluster starts no container", "run this on a node")


class RunCluster(Closing):
    """The nodes that make the generations of a run, from ``with`` to :meth:`close`.

    Use it as ``start_run(cluster.runtime, attrs.evolve(plan, make_executor=cluster.executor))``.

    Attributes:
        runtime: for the head, which needs no engine.
    """

    def __init__(self, config: ClusterConfig, run_dir: Path) -> None:
        """Connect to nothing, and ask for the first node.

        Args:
            config: which nodes.
            run_dir: the run directory, which need not exist; a directory beside it holds the files of jobs meanwhile.

        Raises:
            ClusterError: the head cannot listen, or Parsl is missing or does not start.
            StorageError: the directory cannot be made.
        """
        self.runtime: LoopRuntime = NoEngine()
        self._config = config
        self._stack = ExitStack()
        try:
            jobs = self._jobs_directory(run_dir)
            sockets = Path(self._stack.enter_context(owned_directory(short=True)))
            self._models = NodeModels(sockets)
            self._stack.callback(remove_unfinished, Layout(run_dir))
            self._loop = BackgroundLoop("hyperruntime-cluster", lambda why: ClusterError(f"the cluster {why}"))
            self._stack.callback(self._loop.close)
            self._cluster = self._loop.run(self._open(jobs))
            self._stack.callback(lambda: self._loop.run(self._end()))
        except BaseException:
            self._stack.close()
            raise

    def executor(self, workers: int) -> Executor:
        """Return an executor that runs at most ``workers`` generations at once on the nodes."""
        return ClusterExecutor(self._loop, self._cluster, self._models, workers, self._config.max_nodes)

    def close(self) -> None:
        """End the work of all nodes, cancel their jobs and remove the jobs' files; may be called again."""
        self._stack.close()

    async def _open(self, jobs: Path) -> Cluster:
        cluster = Cluster(self._config, jobs, self._models.handlers)
        await cluster.__aenter__()
        cluster.want(1)
        return cluster

    async def _end(self) -> None:
        await self._cluster.__aexit__(None, None, None)
        await cancel_other_tasks()

    def _jobs_directory(self, run_dir: Path) -> Path:
        """Return a new directory for the files of jobs; those of heads that were killed go now and at the end."""
        parent, prefix = make_directory(run_dir.parent), f".{run_dir.name}.jobs-"
        _remove_left(parent, prefix)
        self._stack.callback(_remove_left, parent, prefix)
        jobs = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        self._stack.callback(shutil.rmtree, jobs, ignore_errors=True)
        (jobs / _OWNER).write_text(json.dumps(attrs.asdict(OwnerIdentity.current())))
        return jobs


def _remove_left(parent: Path, prefix: str) -> None:
    """Remove the directories of jobs whose head is dead. Their jobs may still write: a name that is gone stops that."""
    for left in parent.glob(f"{prefix}*"):
        with suppress(OSError, TypeError, ValueError):
            if (left / _OWNER).exists():
                is_left = OwnerIdentity.from_record(json_object_of_file(left / _OWNER) or {}).state() == "dead"
            else:
                is_left = time.time() - left.stat().st_mtime > _NO_RECORD_S
            if is_left:
                gone = left.with_name(f"{prefix}gone-{secrets.token_hex(8)}")
                left.rename(gone)
                shutil.rmtree(gone, ignore_errors=True)
