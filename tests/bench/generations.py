"""Benchmarks of the loop: what a generation costs beyond the agent's own time, and resuming a long run."""

from __future__ import annotations

from hyperruntime.runtime import Runtime
from tests.bench.measure import Row


def overhead_rows(runtime: Runtime, image: str) -> list[Row]:
    return []


def resume_rows(runtime: Runtime, image: str) -> list[Row]:
    return []
