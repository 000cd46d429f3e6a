"""The bill of materials is complete, and every dependency has an allowed licence."""

from __future__ import annotations

import json
import subprocess
from importlib.metadata import distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PIP_LICENSES = ROOT / ".venv" / "bin" / "pip-licenses"


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.slow
def test_the_bill_of_materials_names_all_that_is_required_and_the_vendored_files(
    tmp_path: Path,
) -> None:
    made = run("scripts/bill", ".venv", tmp_path / "bill.json")
    assert made.returncode == 0, made.stderr
    bill = json.loads((tmp_path / "bill.json").read_text())
    components = {one["name"].lower(): one for one in bill["components"]}
    below = {entry["ref"]: entry.get("dependsOn", []) for entry in bill["dependencies"]}
    root = bill["metadata"]["component"]
    assert root["name"] == "hyperruntime"
    direct = {name: components[name]["bom-ref"] for name in ("aiohttp", "stevedore", "pyyaml")}
    assert set(direct.values()) < set(below[root["bom-ref"]])
    # aiohttp requires it, we do not
    assert components["multidict"]["bom-ref"] in below[direct["aiohttp"]]
    assert components["uplot"]["purl"].startswith("pkg:npm/uplot@1.")
    assert components["uplot"]["bom-ref"] in below[root["bom-ref"]]
    assert all(one["licenses"] for one in components.values() if one["bom-ref"] in direct.values())


def test_every_dependency_has_an_allowed_licence() -> None:
    # libraries in the CUDA builds of torch, where the extra train has them
    names = [one.name for one in distributions() if one.name.startswith(("nvidia-", "cuda-"))]
    ignored = ["--ignore-packages", *names] if names else []
    python = ROOT / ".venv" / "bin" / "python"
    found = run(PIP_LICENSES, "--python", python, "--format", "json", *ignored)
    assert found.returncode == 0, f"{found.stderr}; see [tool.pip-licenses] in pyproject.toml"
    assert len(json.loads(found.stdout)) > 40


def test_a_package_with_another_licence_is_named() -> None:
    found = run(PIP_LICENSES, "--allow-only", "Apache-2.0", "--packages", "click")
    assert found.returncode == 1
    assert "BSD-3-Clause not in allow-only licenses was found for package click" in found.stderr
