"""The bill of materials is valid, and every dependency has a licence that the project may use."""

from __future__ import annotations

import json

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tests.release.licences import ALLOWED, READ, is_allowed, refused
from tests.release.sbom import (
    PROJECT,
    bill_of_materials,
    installed_parts,
    licence_of,
    required,
    vendored_parts,
)

# The extras that .venv has; scripts/integrations checks those of the frameworks.
EXTRAS = ("report", "tensorboard", "tokens", "hpc", "babyai", "swe", "terminal", "pytest")


def test_the_bill_of_materials_is_valid_and_complete() -> None:
    text = bill_of_materials()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    bill = json.loads(text)
    components = {one["name"]: one for one in bill["components"]}
    direct = set(dict(required(PROJECT)))
    assert {"aiohttp", "stevedore", "pyyaml"} < direct <= set(components)
    assert components["uplot"]["purl"] == f"pkg:npm/uplot@{vendored_parts()[0].version}"
    # aiohttp requires it, we do not
    assert components["multidict"]["purl"].startswith("pkg:pypi/multidict@")
    assert [name for name, one in components.items() if not one.get("licenses")] == []
    below = {entry["ref"]: entry.get("dependsOn", []) for entry in bill["dependencies"]}
    assert components["multidict"]["purl"] in below[components["aiohttp"]["purl"]]


def test_every_dependency_has_an_allowed_licence() -> None:
    parts, missing = installed_parts(EXTRAS)
    assert missing == []
    assert len(parts) > 40
    assert refused(parts | {part.name: part for part in vendored_parts()}) == {}
    base, _ = installed_parts()
    weak = {
        name for name, part in base.items() if not is_allowed(READ.get(name, part.licence), ALLOWED)
    }
    assert weak <= {"certifi"}  # all that `pip install hyperruntime` brings


def test_training_brings_only_allowed_licences_where_it_is_installed() -> None:
    parts, missing = installed_parts(("train",))
    if missing:
        pytest.skip(f"NOT RUN: the extra train is not installed ({', '.join(missing)})")
    assert (
        refused(
            {name: part for name, part in parts.items() if not name.startswith(("nvidia", "cuda"))}
        )
        == {}
    )


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("MIT", True),
        ("Apache-2.0 AND MIT", True),
        ("GPL-3.0-only OR MIT", True),
        ("(MIT OR GPL-2.0-only) AND BSD-3-Clause", True),
        ("GPL-3.0-only", False),
        ("MIT AND AGPL-3.0-only", False),
        ("AGPL-3.0-or-later WITH x", False),
        ("Free for all", False),
        ("", False),
    ],
)
def test_an_expression_of_licences_is_understood(expression: str, allowed: bool) -> None:
    assert is_allowed(expression, ALLOWED) is allowed


def test_a_package_of_the_bill_is_read_from_its_own_metadata() -> None:
    from importlib.metadata import distribution

    assert licence_of(distribution("click")) == "BSD-3-Clause"
    assert "multidict" in dict(required("aiohttp"))
