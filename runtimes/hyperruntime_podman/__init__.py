"""The hyperruntime driver for Podman."""

from __future__ import annotations

from hyperruntime_podman.driver import PodmanDriver

__all__ = ["PodmanDriver"]
