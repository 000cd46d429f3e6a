"""The hyperruntime driver for Docker."""

from __future__ import annotations

from hyperruntime_docker.driver import DockerDriver

__all__ = ["DockerDriver"]
