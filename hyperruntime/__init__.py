"""hyperruntime: safe containers on any available engine, and thousands of commands per second in them.

Public names are imported on first use: importing the package starts no process, reads no environment variable and loads
no SDK.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hyperruntime.container import Container
    from hyperruntime.domain import Domain, Score, Split, Task
    from hyperruntime.driver import EngineInfo, PostMortem
    from hyperruntime.errors import HyperRuntimeError
    from hyperruntime.exec.persistent.shell import Shell
    from hyperruntime.gateway import Access, Budget, Gateway, GatewayConfig, ModelRule, Upstream
    from hyperruntime.pool.lease import Lease
    from hyperruntime.pool.manager import PoolManager
    from hyperruntime.pool.pool import SlotPool
    from hyperruntime.pool.sync import SyncPool, open_pool
    from hyperruntime.pool.values.config import PoolConfig
    from hyperruntime.pool.values.policy import ToolPolicy
    from hyperruntime.pool.values.profiles import Profiles, load_profiles
    from hyperruntime.pool.values.result import ExecutionResult, ToolResult
    from hyperruntime.pool.values.slot import Slot
    from hyperruntime.rollout.models import ModelOptions
    from hyperruntime.rollout.run.options import RolloutOptions
    from hyperruntime.rollout.run.runner import run_rollouts
    from hyperruntime.run_as import RunAs
    from hyperruntime.runtime import Runtime, open_runtime
    from hyperruntime.spec import ContainerSpec, ExecResult, Limits, Mount

__version__ = "0.1.0"

_HOMES = {
    "Access": "gateway",
    "Budget": "gateway",
    "Container": "container",
    "ContainerSpec": "spec",
    "Domain": "domain",
    "EngineInfo": "driver",
    "ExecResult": "spec",
    "ExecutionResult": "pool.values.result",
    "Gateway": "gateway",
    "GatewayConfig": "gateway",
    "HyperRuntimeError": "errors",
    "Lease": "pool.lease",
    "Limits": "spec",
    "ModelOptions": "rollout.models",
    "ModelRule": "gateway",
    "Mount": "spec",
    "PoolConfig": "pool.values.config",
    "PoolManager": "pool.manager",
    "PostMortem": "driver",
    "Profiles": "pool.values.profiles",
    "RolloutOptions": "rollout.run.options",
    "RunAs": "run_as",
    "Runtime": "runtime",
    "Score": "domain",
    "Shell": "exec.persistent.shell",
    "Slot": "pool.values.slot",
    "SlotPool": "pool.pool",
    "SyncPool": "pool.sync",
    "Split": "domain",
    "Task": "domain",
    "ToolPolicy": "pool.values.policy",
    "ToolResult": "pool.values.result",
    "Upstream": "gateway",
    "load_profiles": "pool.values.profiles",
    "open_pool": "pool.sync",
    "open_runtime": "runtime",
    "run_rollouts": "rollout.run.runner",
}

__all__ = [
    "Access",
    "Budget",
    "Container",
    "ContainerSpec",
    "Domain",
    "EngineInfo",
    "ExecResult",
    "ExecutionResult",
    "Gateway",
    "GatewayConfig",
    "HyperRuntimeError",
    "Lease",
    "Limits",
    "ModelOptions",
    "ModelRule",
    "Mount",
    "PoolConfig",
    "PoolManager",
    "PostMortem",
    "Profiles",
    "RolloutOptions",
    "RunAs",
    "Runtime",
    "Score",
    "Shell",
    "Slot",
    "SlotPool",
    "Split",
    "SyncPool",
    "Task",
    "ToolPolicy",
    "ToolResult",
    "Upstream",
    "load_profiles",
    "open_pool",
    "open_runtime",
    "run_rollouts",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any public name
    """Return a public name from the module that holds it."""
    if name not in _HOMES:
        raise AttributeError(f"module 'hyperruntime' has no attribute {name!r}")
    return getattr(import_module(f"hyperruntime.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
