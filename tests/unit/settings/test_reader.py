"""The reader of settings: every class is read by the same rules, and its schema allows exactly what
is read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from hyperdomain_table.definition import Definition
from hyperruntime.cli.rollout.train import TrainSettings
from hyperruntime.cluster.config import ClusterConfig
from hyperruntime.errors import SpecError
from hyperruntime.gateway.config.values import GatewayConfig
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.option_fields import from_json
from hyperruntime.pool_values.config import PoolConfig, ToolPolicy
from hyperruntime.remote import requests
from hyperruntime.rollout.run.options import RolloutOptions
from hyperruntime.serve import models
from hyperruntime.serve.openapi import document
from hyperruntime.settings.reader import fields_of, read, to_json
from hyperruntime.settings.schema import schema_of
from hyperruntime.settings.texts import of_text
from hyperruntime.spec import ContainerSpec, Limits

KINDS = (
    models.NewContainer,
    models.ExecCommand,
    requests.OutputToTake,
    requests.FileFacts,
    requests.ProcessList,
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.sampled_from([0.5, "", "text", "none", "SIGINT"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["A", "end"]), inner, max_size=2)
    ),
    max_leaves=4,
)
# No 1.0: for JSON Schema it is an integer, for the reader it is not.
COMPONENTS = document()["components"]


@cache
def validator_of(kind: type) -> Draft202012Validator:
    return Draft202012Validator({**schema_of(kind), "components": COMPONENTS})


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=30)
@given(data=st.data())
def test_a_value_is_read_exactly_if_it_fits_the_schema(kind: type, data: st.DataObject) -> None:
    names = st.sampled_from([*fields_of(kind), "unknown"])
    value = data.draw(st.dictionaries(names, VALUES, max_size=4) | VALUES)
    is_valid = validator_of(kind).is_valid(value)
    try:
        made: object = read(kind, value)
    except SpecError:
        assert not is_valid
        return
    assert is_valid
    assert read(kind, json.loads(json.dumps(to_json(made)))) == made


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({}, "image=None is not allowed: it must be given"),
        ({"image": 3}, "image=3 is not allowed: text"),
        ({"image": "a", "env": {"A": 1}}, r"env\[A\]='...' is not allowed: text"),
        ({"image": "a", "env": ["KEY=s3cret"]}, r"env='...' is not allowed: a table"),
        ({"image": "a", "cpus": "2"}, "cpus='2' is not allowed: a number or null"),
        (
            {"image": "a", "network": "all"},
            "network='all' is not allowed: one of none, host, bridge",
        ),
        (
            {"image": "a", "mounts": []},
            r"mounts='\.\.\.' is not allowed: a known key; known: cpus, disk_bytes, env",
        ),
        ({"image": "a", "networc": 1}, "a known key; did you mean 'network'?"),
        ([], r"the body=\[\] is not allowed: a table or JSON object"),
    ],
)
def test_what_is_wrong_with_a_value_is_said_by_its_name(value: Any, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        read(models.NewContainer, value)


def test_every_field_of_every_class_has_a_sentence() -> None:
    silent = [
        f"{name}.{field}"
        for name, schema in COMPONENTS["schemas"].items()
        for field, facts in schema["properties"].items()
        if not facts["description"].endswith(".")
    ]
    assert silent == []


SETTINGS = (
    ClusterConfig,
    ContainerSpec,
    Definition,
    GatewayConfig,
    GenerateOptions,
    Limits,
    PoolConfig,
    RolloutOptions,
    ToolPolicy,
    TrainSettings,
)
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


def outcome(call: Callable[[], Any]) -> tuple[Any, SpecError | None]:
    """Return what a call returns, and the SpecError that it raises."""
    try:
        return call(), None
    except SpecError as error:
        return None, error


def inner_names(kind: type) -> list[str]:
    """Return the names of the fields of a class, and of the classes inside."""
    names = list(fields_of(kind))
    for field in fields_of(kind).values():
        for part in (field.type, *get_args(field.type)):
            names += inner_names(part) if attrs.has(part) else []
    return names


@pytest.mark.parametrize("kind", SETTINGS, ids=lambda kind: kind.__name__)
@settings(max_examples=30)
@given(data=st.data(), strict=st.booleans())
def test_any_table_is_read_or_what_is_wrong_with_it_is_named(
    kind: type, data: st.DataObject, strict: bool
) -> None:
    names = st.sampled_from([*inner_names(kind), "unknown"])
    inside = st.dictionaries(names, ANY, max_size=3)
    table = data.draw(st.dictionaries(names, ANY | inside | st.lists(inside, max_size=2)) | ANY)
    made, refusal = outcome(lambda: read(kind, table, path="a.b", strict=strict))
    if refusal is None:
        assert read(kind, json.loads(json.dumps(to_json(made, nulls=True)))) == made
        return
    assert refusal.field.startswith("a.b")
    assert "\n" not in str(refusal)
    if isinstance(table, Mapping) and set(table) - set(fields_of(kind)) and strict:
        assert refusal.value == "..."


@pytest.mark.parametrize("kind", SETTINGS, ids=lambda kind: kind.__name__)
def test_a_name_that_is_spelled_wrong_is_named_with_the_right_one_and_without_its_value(
    kind: type,
) -> None:
    for name in fields_of(kind):
        with pytest.raises(SpecError, match="did you mean") as refusal:
            read(kind, {f"{name}x": "a-key"}, path="t")
        assert refusal.value.field == f"t.{name}x"
        assert "a-key" not in str(refusal.value)


@pytest.mark.parametrize(
    ("kind", "table", "said"),
    [
        (
            PoolConfig,
            {"spec": {"image": "a", "limits": {"pids": "1"}}},
            "spec.limits.pids='1' is not allowed: a whole number, at least 16",
        ),
        (
            ContainerSpec,
            {"image": "a", "mounts": [{"source": "/a", "target": 3}]},
            "mounts[0].target=3 is not allowed: text",
        ),
        (ContainerSpec, {"image": "a", "gpus": ["0", 1]}, "gpus[1]=1 is not allowed: text"),
        (
            GatewayConfig,
            {"models": [], "upstreams": [{"name": "a", "url": "ftp://x"}]},
            "upstreams[0].url='ftp://x' is not allowed: http",
        ),
        (
            RolloutOptions,
            {"environment": "x", "group_size": 0},
            "group_size=0 is not allowed: a whole number, 1 or more",
        ),
        (TrainSettings, {"options": [["a"]]}, "options[0]=['a'] is not allowed: a list of 2"),
        (
            ClusterConfig,
            {"setup": "module load x"},
            "setup='module load x' is not allowed: a list of texts",
        ),
    ],
)
def test_a_value_inside_is_named_by_its_path_with_what_its_class_allows(
    kind: type, table: dict[str, Any], said: str
) -> None:
    with pytest.raises(SpecError) as refusal:
        read(kind, table)
    assert said in str(refusal.value)


def test_unknown_names_are_ignored_at_every_depth_if_a_later_version_may_have_written_them() -> (
    None
):
    stored = {"environment": "x", "colour": 1, "container": {"image": "a", "limits": {"x": 1}}}
    made = from_json(RolloutOptions, stored, strict=False)
    assert made == RolloutOptions(environment="x", container=ContainerSpec(image="a"))


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (str, "none", "none"),
        (int | None, "3", 3),
        (int | None, " None", None),
        (float, "2.5", 2.5),
        (bool, "On", True),
        (bool | None, "0", False),
        (tuple[str, ...] | None, "a, b,", ("a", "b")),
        (tuple[int, ...], "1,2", (1, 2)),
        (str | tuple[str, ...] | None, "all", "all"),
        (str | tuple[str, ...] | None, "0,1", ("0", "1")),
        (Mapping[str, str], "A=1; B = x=y", {"A": "1", "B": " x=y"}),
        (Path, "a", "a"),
    ],
)
def test_a_text_stands_for_a_value_of_its_type(kind: Any, text: str, value: object) -> None:
    assert of_text(kind, text, "x", none=("none",)) == value


@given(kind=st.sampled_from([int, float, bool, int | None, tuple[float, ...]]), text=st.text())
def test_any_text_is_a_value_or_is_refused(kind: Any, text: str) -> None:
    refusal = outcome(lambda: of_text(kind, text, "x"))[1]
    assert refusal is None or refusal.field == "x"


@attrs.frozen
class Parts:
    """Every form of a type that a field of settings may have."""

    table: dict[str, float]
    mapping: Mapping[str, tuple[int, ...]]
    items: list[str]
    pair: tuple[int, str]
    one: Literal["a", "b"] | None = None


def test_every_form_of_a_type_is_read_and_a_wrong_part_is_named() -> None:
    value = {"table": {"a": 0.5}, "mapping": {"b": [1]}, "items": ["c"], "pair": [1, "d"]}
    made = read(Parts, value)
    assert made == Parts({"a": 0.5}, {"b": (1,)}, ["c"], (1, "d"))
    assert read(Parts, to_json(made)) == made
    for name, wrong, place in (
        ("table", {"a": "x"}, "table[a]"),
        ("mapping", {"b": ["x"]}, "mapping[b][0]"),
        ("items", [3], "items[0]"),
        ("pair", ["x", "d"], "pair[0]"),
    ):
        with pytest.raises(SpecError) as refusal:
            read(Parts, {**value, name: wrong})
        assert refusal.value.field == place


@pytest.mark.parametrize("form", ["deep", "long"])
def test_a_deep_or_long_value_is_refused_with_a_short_message(form: str) -> None:
    deep = json.loads("[" * 900 + "]" * 900) if form == "deep" else [["x"] * 10**6] * 3
    with pytest.raises(SpecError) as refusal:
        read(Parts, {"table": deep, "mapping": {}, "items": [], "pair": [1, ""]})
    assert len(str(refusal.value)) < 1000
