"""JSON and classes: what the schema of a class allows is what is read, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from hyperruntime.errors import SpecError
from hyperruntime.serve import file_models, models
from hyperruntime.serve.openapi import document
from hyperruntime.wire.typed_json import fields_of, read, schema_of, to_json

KINDS = (
    models.NewContainer,
    models.ExecCommand,
    models.OutputToTake,
    file_models.FileFacts,
    models.ProcessList,
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


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=30)
@given(data=st.data())
def test_a_value_is_read_exactly_if_it_fits_the_schema(kind: type, data: st.DataObject) -> None:
    names = st.sampled_from([*fields_of(kind), "unknown"])
    value = data.draw(st.dictionaries(names, VALUES, max_size=4) | VALUES)
    is_valid = Draft202012Validator({**schema_of(kind), "components": COMPONENTS}).is_valid(value)
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
        ({"image": "a", "env": {"A": 1}}, r"env\[A\]=1 is not allowed: text"),
        ({"image": "a", "cpus": "2"}, "cpus='2' is not allowed: a number or null"),
        (
            {"image": "a", "network": "all"},
            "network='all' is not allowed: one of none, host, bridge",
        ),
        (
            {"image": "a", "mounts": []},
            r"mounts=\[\] is not allowed: no such field; known: image, env",
        ),
        ([], r"the body=\[\] is not allowed: a JSON object"),
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
