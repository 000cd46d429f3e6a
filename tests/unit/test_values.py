"""Values and errors survive what other programs do with them: pickling, copying, comparing,
hashing, printing.
"""

from __future__ import annotations

import copy
import inspect
import pickle
import typing
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from types import NoneType, UnionType
from typing import Any

import attrs
import pytest

import hyperruntime as hr
from hyperruntime import errors
from hyperruntime.driver import Launch, PostMortem
from hyperruntime.exec.options import ExecOptions
from hyperruntime.trainers.on_policy import TrainOptions

SECRET = "k-123456"
# Folders and modules whose classes users neither pass nor get. A class in any other place must be a
# value.
INSIDE = (
    "agents", "cli", "cluster.head", "cluster.keys", "wire.peer",
    "exec", "git", "gpu", "host", "images", "option_fields", "reclaim", "registry", "report",
    "storage", "testing", "gateway.answer", "gateway.formats", "gateway.replay", "gateway.request",
    "loop.generation", "loop.hyperagents",
    "loop.workbench.container", "loop.run.opened_run", "loop.run.plan", "loop.run.run",
    "pool.slots", "pool.tools", "rollout.loading", "rollout.run.episode", "storage.tar_reader",
)  # fmt: skip
SPEC = hr.ContainerSpec(
    image="a",
    env={"KEY": SECRET},
    labels={"l": "1"},
    gpus=["0"],
    mounts=[hr.Mount(source="/", target="/m")],
)
UPSTREAM = hr.Upstream(name="u", url="http://u")
EXAMPLES: dict[type, Any] = {
    hr.ContainerSpec: SPEC,
    hr.Mount: SPEC.mounts[0],
    hr.Egress: hr.Egress(allow=["pypi.org"], hosts={"a.test": "10.0.0.1"}, limit_bytes=9),
    hr.Ready: hr.Ready(tcp=1),
    hr.GatewayConfig: hr.GatewayConfig(
        upstreams=[UPSTREAM], models=[hr.ModelRule(name="m", upstream="u")]
    ),
    hr.Upstream: UPSTREAM,
    hr.ModelOptions: hr.ModelOptions(name="m", base_url="http://m", extra={"a": [1]}),
    hr.Profiles: hr.Profiles(configs={"default": hr.PoolConfig(spec=SPEC)}),
    hr.Split: hr.Split(name="train"),
    TrainOptions: TrainOptions(rollouts=hr.RolloutOptions(environment="swe", group_size=2)),
}


def value_classes() -> list[type]:
    """Return every attrs class that users pass or get."""
    found: dict[type, None] = {}
    for module in walk_packages(hr.__path__, "hyperruntime."):
        place = module.name.partition(".")[2]
        if not any(f"{place}.".startswith(f"{inside}.") for inside in INSIDE):
            classes = vars(import_module(module.name)).values()
            found |= dict.fromkeys(
                kind
                for kind in classes
                if inspect.isclass(kind) and kind.__module__ == module.name and is_value(kind)
            )
    return list(found)


def is_value(kind: type) -> bool:
    return (
        attrs.has(kind)
        and kind.__setattr__ is not object.__setattr__
        and not kind.__name__.startswith("_")
    )


def example(kind: Any) -> Any:
    """Return a value of a type, with content in everything that can be empty."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if kind in EXAMPLES:
        return EXAMPLES[kind]
    if origin in (typing.Union, UnionType):
        return example(next(part for part in parts if part is not NoneType))
    if origin is typing.Literal:
        return parts[0]
    if origin is tuple:
        return tuple(example(part) for part in parts if part is not Ellipsis)
    if origin in (Mapping, dict):
        return {"name": example(parts[1])}
    if origin in (Sequence, list):
        return [example(parts[0])]
    if inspect.isclass(kind) and attrs.has(kind):
        return made(kind)
    simple: dict[Any, Any] = {
        str: "x",
        int: 1,
        float: 1.0,
        bool: True,
        bytes: b"x",
        Path: Path("/"),
        Any: {"a": [1]},
    }
    return simple.get(kind, ())


def made(kind: type) -> Any:
    """Return a value of an attrs class; mappings have content, other fields with a default keep
    it.
    """
    if kind in EXAMPLES:
        return EXAMPLES[kind]
    hints = typing.get_type_hints(kind)
    fields = [each for each in attrs.fields(kind) if each.init]
    wanted = [
        each for each in fields if each.default is attrs.NOTHING or has_json(hints[each.name])
    ]
    return kind(**{each.name: example(hints[each.name]) for each in wanted})


def has_json(hint: Any) -> bool:
    return any(word in str(hint) for word in ("Mapping", "dict", "Any"))


@pytest.mark.parametrize("kind", value_classes(), ids=lambda kind: kind.__name__)
def test_values_are_pickled_copied_compared_and_hashed(kind: type) -> None:
    value = made(kind)
    for copied in (
        pickle.loads(pickle.dumps(value)),
        copy.deepcopy(value),
        copy.copy(value),
        attrs.evolve(value),
    ):
        assert type(copied) is kind
        assert copied == value
        assert hash(copied) == hash(value)
        assert {value: "found"}[copied] == "found"


def test_every_exported_value_is_among_them() -> None:
    exported = {getattr(hr, name) for name in hr.__all__}
    assert {kind for kind in exported if inspect.isclass(kind) and attrs.has(kind)} <= set(
        value_classes()
    )
    assert hr.ExtractLimits in exported


def test_values_with_other_mappings_differ_and_the_order_of_names_does_not_count() -> None:
    ab, ba = (
        hr.ContainerSpec(image="a", env=env) for env in ({"A": "1", "B": "2"}, {"B": "2", "A": "1"})
    )
    assert (ab, hash(ab)) == (ba, hash(ba))
    assert ab != attrs.evolve(ab, env={"A": "1"})
    assert dict(pickle.loads(pickle.dumps(ab)).env) == {"A": "1", "B": "2"}
    with pytest.raises(TypeError):
        ab.env["A"] = "2"  # type: ignore[index]


def test_no_repr_shows_the_value_of_a_variable() -> None:
    config = hr.PoolConfig(spec=SPEC)
    options = hr.RolloutOptions(environment="swe", container=SPEC)
    launch = Launch(spec=SPEC, name="n", labels={}, exchange=SPEC.mounts[0], private_dir="/")
    assert SECRET not in repr(attrs.evolve(UPSTREAM, proxy=f"http://me:{SECRET}@proxy:3128"))
    for value in (SPEC, config, options, launch, ExecOptions(env=SPEC.env)):
        assert SECRET not in repr(value)
        assert "'KEY'" in repr(value)
    with pytest.raises(errors.SpecError) as caught:
        hr.ContainerSpec(image="a", env={"KEY": f"{SECRET}\0"})
    assert SECRET not in str(caught.value)


def error_classes() -> list[type[errors.HyperRuntimeError]]:
    found, todo = [], [errors.HyperRuntimeError]
    while todo:
        found.append(kind := todo.pop())
        todo += kind.__subclasses__()
    return [kind for kind in found if kind.__module__.startswith("hyperruntime.")]


@pytest.mark.parametrize("kind", error_classes(), ids=lambda kind: kind.__name__)
def test_errors_are_pickled_and_copied_with_their_fields(
    kind: type[errors.HyperRuntimeError],
) -> None:
    given = {
        name: example(hint)
        for name, hint in typing.get_type_hints(kind.__init__).items()
        if name != "return"
    }
    error = kind(**given) if inspect.isfunction(kind.__init__) else kind("a message")
    error.add_note("a note")
    for copied in (pickle.loads(pickle.dumps(error)), copy.deepcopy(error), copy.copy(error)):
        assert type(copied) is kind
        assert (str(copied), copied.args, vars(copied)) == (str(error), error.args, vars(error))


def test_errors_keep_facts_and_what_cannot_be_pickled_becomes_text() -> None:
    lost = errors.ContainerLostError("gone", PostMortem(state="exited", exit_code=137))
    assert pickle.loads(pickle.dumps(lost)).post_mortem == lost.post_mortem
    error = errors.SpecError("input", value := (lambda: None), "bytes")
    assert pickle.loads(pickle.dumps(error)).value == repr(value)


def test_an_unknown_user_is_also_what_was_raised_before() -> None:
    error = errors.UserNotFoundError("ada")
    assert isinstance(error, errors.SpecError)
    assert isinstance(error, ValueError)
    assert (error.field, error.value) == ("user", "ada")
    assert "no such user" in str(error)
