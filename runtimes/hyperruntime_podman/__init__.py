"""Podman as an engine of hyperruntime."""

from __future__ import annotations

from hyperruntime_podman.driver import PodmanDriver

__all__ = ["PodmanDriver"]
