"""The configuration object of hermes-agent's slot backend, from its description: fields and
defaults only.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class SandboxConfig:
    """One profile."""

    name: str = "default"
    app_name: str | None = None
    image: str = "python:3.11"
    gpu: str | None = None
    cpu: float = 1.0
    memory: int = 2048  # MB
    slots_per_sandbox: int = 10
    min_sandboxes: int = 1
    max_sandboxes: int = 5
    idle_timeout: int = 120
    max_lifetime: int = 3600
    acquire_timeout_s: float = 60.0
    execution_timeout_s: float = 30.0
    secrets: list[str] = dataclasses.field(default_factory=list)
    env_vars: dict[str, str] = dataclasses.field(default_factory=dict)
    workspace_base: str = "/data"


@dataclasses.dataclass
class TrainingConfig:
    """The part of a training environment's settings that chooses the backend; all values come from
    a command line.
    """

    tool_pool_mode: str = "default"
    allow_network: bool = True
    modal_app_name: str = "atropos-sandbox"
    modal_image: str = "python:3.11"
    modal_gpu: str | None = None
    modal_cpu: float = 1.0
    modal_memory: int = 2048
    modal_slots_per_sandbox: int = 10
    modal_min_sandboxes: int = 1
    modal_max_sandboxes: int = 5
    modal_idle_timeout: int = 120
    modal_max_lifetime: int = 3600
    modal_acquire_timeout: float = 60.0
    modal_execution_timeout: float = 30.0
    modal_secrets: str = ""
    modal_env_vars: str = ""
    modal_workspace_base: str = "/data"
