"""The arguments that a model sends to a tool are checked before a command runs."""

from __future__ import annotations

import math
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hyperruntime as hr
from hyperruntime.errors import SpecError
from hyperruntime.pool.slots.slot_exec import SlotExec
from hyperruntime.pool.tools import tool_schemas
from hyperruntime.pool.tools.dispatch import TOOLS, check_rights
from hyperruntime.pool.tools.tool import ToolProblemError, check_arguments, choose_timeout
from hyperruntime.pool_values.config import ToolPolicy

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
)


@given(
    name=st.sampled_from(sorted(TOOLS)),
    args=JSON | st.dictionaries(st.sampled_from(["path", "timeout", "old"]), JSON),
)
def test_any_arguments_are_accepted_or_rejected_with_a_one_line_error(name: str, args: Any) -> None:
    tool = TOOLS[name]
    sentence, checked = "", None
    try:
        checked, _ = check_arguments(tool, args)
    except ToolProblemError as problem:
        sentence = str(problem)

    assert bool(sentence) != (checked is not None)
    assert "\n" not in sentence
    assert checked is None or checked.keys() == {param.name for param in tool.params}


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (None, "must be a JSON object, not null"),
        ([], "must be a JSON object, not a list"),
        ({}, "needs 'command'; it takes command, [timeout]"),
        ({"command": None}, "needs 'command'"),
        ({"comand": "x"}, "did you mean 'command'?"),
        ({"command": 3}, "'command' of bash must be text, not 3"),
        ({"command": "x", "timeout": "soon"}, "must be a number, not 'soon'"),
        ({"command": "x", "timeout": math.nan}, "must be a number, not nan"),
        ({"command": "x", "timeout": math.inf}, "must be a number, not inf"),
        ({"command": "x", "timeout": "nan"}, "must be a number"),
        ({"command": "x", "timeout": True}, "must be a number, not True"),
        ({"command": "x", "timeout": 10**400}, "must be a number"),
        ({"command": "\ud800"}, "surrogate"),
        ({"command": "x", 3: 4}, "no argument '3'"),
    ],
)
def test_a_rejection_explains_the_problem(args: Any, words: str) -> None:
    with pytest.raises(ToolProblemError) as caught:
        check_arguments(TOOLS["bash"], args)

    assert words in str(caught.value)


def test_numbers_and_booleans_may_be_strings() -> None:
    args = {"path": "f", "offset": "3", "limit": 2.0, "max_bytes": None}

    checked, _ = check_arguments(TOOLS["read_file"], args)

    assert (checked["offset"], checked["limit"], checked["max_bytes"]) == (3, 2, None)
    assert check_arguments(TOOLS["list_files"], {"recursive": " True "})[0]["recursive"] is True
    for bad in (
        {"path": "f", "offset": 1.5},
        {"path": "f", "offset": 0},
        {"path": "f", "offset": 2**63},
        {"path": "f", "offset": 1e300},
        {"path": "f", "offset": "9" * 20},
        {"path": "f", "offset": "ten"},
    ):
        with pytest.raises(ToolProblemError, match=r"must be (a whole number|at least)"):
            check_arguments(TOOLS["read_file"], bad)
    with pytest.raises(ToolProblemError, match="utf-16"):
        check_arguments(TOOLS["read_file"], {"path": "f", "encoding": "utf-16"})
    with pytest.raises(ToolProblemError, match="recursive"):
        check_arguments(TOOLS["list_files"], {"recursive": "yes"})


def test_settings_that_only_the_configuration_may_change_are_ignored_and_noted() -> None:
    """R19, W20: a model cannot give itself a network or leave the sandbox."""
    args = {"command": "true", "allow_network": True, "require_sandbox": False, "user": "root"}

    checked, noted = check_arguments(TOOLS["bash"], args)

    assert noted == ("allow_network", "require_sandbox", "user")
    assert not checked.keys() & set(noted)


@pytest.mark.parametrize(
    ("network", "wanted", "problem"),
    [
        ("none", False, ""), ("none", None, ""), ("none", True, "requires a network"),
        ("bridge", True, ""), ("bridge", None, ""), ("bridge", False, r"has one \(bridge\)"),
    ],
)  # fmt: skip
def test_a_slot_has_the_network_that_the_policy_requires_or_is_refused(
    network: str, wanted: bool | None, problem: str
) -> None:
    """R19, W20."""
    slot_exec = cast(SlotExec, SimpleNamespace(network=network))
    with pytest.raises(ToolProblemError, match=problem) if problem else nullcontext():
        check_rights(slot_exec, ToolPolicy(allow_network=wanted))


@pytest.mark.parametrize(
    ("asked", "given_s", "expected"),
    [
        (None, None, 300.0), (None, 1800.0, 1800.0), (None, 0.5, 0.5),
        (2.5, None, 2.5), (0, None, 1.0), (-3, None, 1.0), (1e9, None, 600.0),
        (100, 30.0, 30.0), (10, 30.0, 10.0),
    ],
)  # fmt: skip
def test_timeouts_are_clamped_and_fractions_are_kept(
    asked: float | None, given_s: float | None, expected: float
) -> None:
    """W6: ``int(timeout)`` turned half a second into zero; W11: a caller may pass a timeout above
    the default.
    """
    assert choose_timeout(asked, given_s, ToolPolicy()) == expected


@pytest.mark.parametrize(
    "values",
    [
        {"max_timeout_s": math.nan},
        {"default_timeout_s": 1000.0},
        {"output_chars": 0},
        {"artifact_bytes": True},
        {"read_roots": ("etc",)},
        {"tools": ("bsh",)},
    ],
)
def test_an_invalid_policy_is_rejected(values: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        ToolPolicy(**values)


def test_schemas_have_the_format_of_the_chat_api() -> None:
    schemas = tool_schemas()

    names = [schema["function"]["name"] for schema in schemas]
    assert names == [
        "bash",
        "read_file",
        "write_file",
        "edit_file",
        "patch",
        "list_files",
        "search",
    ]
    for schema in schemas:
        parameters = schema["function"]["parameters"]
        assert schema["type"] == parameters["type"].replace("object", "function")
        assert set(parameters["required"]) <= parameters["properties"].keys()
        assert all(value["description"] for value in parameters["properties"].values())
    assert [s["function"]["name"] for s in tool_schemas(["terminal", "read_artifact"])] == [
        "terminal",
        "read_artifact",
    ]
    with pytest.raises(SpecError, match="did you mean 'bash'"):
        tool_schemas(["bsh"])


def test_the_package_exports_tool_policy() -> None:
    assert hr.ToolPolicy is ToolPolicy
