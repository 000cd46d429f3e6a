"""hyperruntime: safe containers on any available engine, and about a thousand commands per second
in them.

Public names are imported on first use: importing the package starts no process, reads no
environment variable and loads no SDK.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hyperruntime.cluster.cluster import Cluster as Cluster
    from hyperruntime.cluster.config import ClusterConfig as ClusterConfig
    from hyperruntime.cluster.slots.cluster_pool import ClusterPool as ClusterPool
    from hyperruntime.container import Container as Container
    from hyperruntime.domain import Domain as Domain
    from hyperruntime.domain import Score as Score
    from hyperruntime.domain import Split as Split
    from hyperruntime.domain import Task as Task
    from hyperruntime.driver import EngineInfo as EngineInfo
    from hyperruntime.driver import PostMortem as PostMortem
    from hyperruntime.errors import HyperRuntimeError as HyperRuntimeError
    from hyperruntime.exec.persistent.shell import Shell as Shell
    from hyperruntime.exec.spawn.process import Process as Process
    from hyperruntime.exec.spawn.terminal import Terminal as Terminal
    from hyperruntime.gateway import Access as Access
    from hyperruntime.gateway import Budget as Budget
    from hyperruntime.gateway import Gateway as Gateway
    from hyperruntime.gateway import GatewayConfig as GatewayConfig
    from hyperruntime.gateway import ModelRule as ModelRule
    from hyperruntime.gateway import Upstream as Upstream
    from hyperruntime.host.inherited import raise_file_limit as raise_file_limit
    from hyperruntime.layers.snapshots.snapshot import FileChange as FileChange
    from hyperruntime.layers.snapshots.snapshot import Snapshot as Snapshot
    from hyperruntime.network.egress import Egress as Egress
    from hyperruntime.pool.lease import Lease as Lease
    from hyperruntime.pool.manager import PoolManager as PoolManager
    from hyperruntime.pool.pool import SlotPool as SlotPool
    from hyperruntime.pool.sync import SyncPool as SyncPool
    from hyperruntime.pool.sync import open_pool as open_pool
    from hyperruntime.pool_values.config import PoolConfig as PoolConfig
    from hyperruntime.pool_values.config import ToolPolicy as ToolPolicy
    from hyperruntime.pool_values.profiles import Profiles as Profiles
    from hyperruntime.pool_values.profiles import load_profiles as load_profiles
    from hyperruntime.pool_values.results import ExecutionResult as ExecutionResult
    from hyperruntime.pool_values.results import Slot as Slot
    from hyperruntime.pool_values.results import ToolResult as ToolResult
    from hyperruntime.rollout.models import ModelOptions as ModelOptions
    from hyperruntime.rollout.run.options import RolloutOptions as RolloutOptions
    from hyperruntime.rollout.run.runner import run_rollouts as run_rollouts
    from hyperruntime.run_as import RunAs as RunAs
    from hyperruntime.runtime import Runtime as Runtime
    from hyperruntime.runtime import open_runtime as open_runtime
    from hyperruntime.sandbox import BlockingSandbox as BlockingSandbox
    from hyperruntime.sandbox import Pool as Pool
    from hyperruntime.sandbox import Sandbox as Sandbox
    from hyperruntime.services.group import ServiceContainer as ServiceContainer
    from hyperruntime.spec import ContainerSpec as ContainerSpec
    from hyperruntime.spec import ExecResult as ExecResult
    from hyperruntime.spec import Limits as Limits
    from hyperruntime.spec import Mount as Mount
    from hyperruntime.spec import Ready as Ready
    from hyperruntime.spec import Service as Service
    from hyperruntime.transfer.extract import ExtractLimits as ExtractLimits

__version__ = "0.1.0"

_NAMES = {
    "cluster.cluster": ("Cluster",),
    "cluster.config": ("ClusterConfig",),
    "cluster.slots.cluster_pool": ("ClusterPool",),
    "container": ("Container",),
    "domain": ("Domain", "Score", "Split", "Task"),
    "driver": ("EngineInfo", "PostMortem"),
    "errors": ("HyperRuntimeError",),
    "exec.persistent.shell": ("Shell",),
    "exec.spawn.process": ("Process",),
    "exec.spawn.terminal": ("Terminal",),
    "gateway": ("Access", "Budget", "Gateway", "GatewayConfig", "ModelRule", "Upstream"),
    "host.inherited": ("raise_file_limit",),
    "layers.snapshots.snapshot": ("FileChange", "Snapshot"),
    "network.egress": ("Egress",),
    "pool.lease": ("Lease",),
    "pool.manager": ("PoolManager",),
    "pool.pool": ("SlotPool",),
    "pool.sync": ("SyncPool", "open_pool"),
    "pool_values.config": ("PoolConfig", "ToolPolicy"),
    "pool_values.profiles": ("Profiles", "load_profiles"),
    "pool_values.results": ("ExecutionResult", "Slot", "ToolResult"),
    "rollout.models": ("ModelOptions",),
    "rollout.run.options": ("RolloutOptions",),
    "rollout.run.runner": ("run_rollouts",),
    "run_as": ("RunAs",),
    "runtime": ("Runtime", "open_runtime"),
    "sandbox": ("BlockingSandbox", "Pool", "Sandbox"),
    "services.group": ("ServiceContainer",),
    "spec": ("ContainerSpec", "ExecResult", "Limits", "Mount", "Ready", "Service"),
    "transfer.extract": ("ExtractLimits",),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = list(_HOMES)

if not TYPE_CHECKING:  # a type checker that sees it accepts every name

    def __getattr__(name: str) -> Any:  # noqa: ANN401 - any public name
        """Return a public name from the module that holds it."""
        if name not in _HOMES:
            raise AttributeError(f"module 'hyperruntime' has no attribute {name!r}")
        return getattr(import_module(f"hyperruntime.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
