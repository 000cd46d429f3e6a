"""Docker as an engine of hyperruntime."""

from __future__ import annotations

from hyperruntime_docker.driver import DockerDriver

__all__ = ["DockerDriver"]
