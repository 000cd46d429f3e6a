"""The hyperruntime driver for Apptainer."""

from __future__ import annotations

from hyperruntime_apptainer.driver import ApptainerDriver

__all__ = ["ApptainerDriver"]
