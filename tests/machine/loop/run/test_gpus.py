"""The loop requests GPUs only for domains that need them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hyperdomain_math.packing import CirclePacking
from hyperruntime.errors import SpecError
from hyperruntime.loop.run.plan import plan_run
from hyperruntime.loop.run.run import start_run
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.option_fields import from_json, to_json
from hyperruntime.spec import ContainerSpec, Limits
from tests.doubles.fake_runtime import FakeRuntime, make_agent_repository
from tests.runs import options_below


def specs_of_a_run(tmp_path: Path, **options: Any) -> list[ContainerSpec]:
    """Return the specs of all containers that a run of one generation starts."""
    seen: list[ContainerSpec] = []
    agent = str(make_agent_repository(tmp_path / "agent"))
    chosen = options_below(tmp_path, agent=agent, max_generation=0, **options)
    summary = start_run(FakeRuntime(before_start=seen.append), plan_run(chosen.settled()), None)
    assert not any(record.failure for record in summary.generations)
    assert seen
    return seen


def test_no_gpu_is_requested_if_no_domain_needs_one(tmp_path: Path) -> None:
    assert {spec.gpus for spec in specs_of_a_run(tmp_path, gpus="all")} == {None}


@pytest.mark.parametrize(
    ("options", "expected"), [({}, "auto:1"), ({"gpus": ["0", "1"]}, ("0", "1"))]
)
def test_a_domain_that_needs_gpus_gets_the_gpus_of_the_run_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], expected: object
) -> None:
    monkeypatch.setattr(CirclePacking, "needs_gpu", True)
    assert {spec.gpus for spec in specs_of_a_run(tmp_path, **options)} == {expected}


def test_limits_and_their_mode_reach_the_containers(tmp_path: Path) -> None:
    limits = Limits(memory_bytes=64 * 1024**2, wall_s=600.0)
    specs = specs_of_a_run(tmp_path, limits=limits, limits_mode="watchdog")
    assert {(spec.limits_mode, spec.limits) for spec in specs} == {("watchdog", limits)}


def test_stored_options_keep_gpus_and_limits() -> None:
    options = GenerateOptions(
        domains="d", gpus=("0",), limits_mode="watchdog", limits=Limits(wall_s=2.5)
    )
    assert (
        from_json(GenerateOptions, json.loads(json.dumps(to_json(options))), strict=False)
        == options
    )
    old = {
        name: value
        for name, value in to_json(options).items()
        if name not in ("gpus", "limits_mode")
    }
    assert from_json(GenerateOptions, old, strict=False).gpus == "auto:1"


@pytest.mark.parametrize("change", [{"gpus": "some"}, {"gpus": ()}, {"limits_mode": "hope"}])
def test_invalid_gpu_and_limit_options_are_rejected(change: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=next(iter(change))):
        GenerateOptions(domains="d", **change)
