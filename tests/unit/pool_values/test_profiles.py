"""W26: profiles from files and from variables have the same schema, and unknown keys are
rejected.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hyperruntime as hr
from hyperruntime.errors import SpecError
from hyperruntime.pool_values.config import make_layout
from hyperruntime.pool_values.profiles import (
    PREFIX,
    parse_profile,
    parse_profiles,
    parse_texts,
    profiles_from_environment,
)

TOML = """
default_profile = "small"

[profiles.small]
image = "localhost/a:1"
max_containers = 2
idle_timeout_s = 5.5
network = "bridge"
env = { A = "1", B = "x y" }
mounts = [{ source = "/data", target = "/in", read_only = false }]

[profiles.small.limits]
memory_bytes = 67108864
cpus = 0.5

[profiles.small.tools]
tools = ["bash"]
allow_network = true

[profiles.large]
image = "localhost/b:1"
slots_per_container = 20
max_lifetime_s = 60
"""

YAML = """
default_profile: small
profiles:
  small:
    image: localhost/a:1
    max_containers: 2
    idle_timeout_s: 5.5
    network: bridge
    env: {A: "1", B: x y}
    mounts: [{source: /data, target: /in, read_only: false}]
    limits: {memory_bytes: 67108864, cpus: 0.5}
    tools: {tools: [bash], allow_network: true}
  large:
    image: localhost/b:1
    slots_per_container: 20
    max_lifetime_s: 60
"""

VARIABLES = {
    "PROFILES": "small, large",
    "DEFAULT_PROFILE": "small",
    "IMAGE": "localhost/b:1",
    "SMALL_IMAGE": "localhost/a:1",
    "SMALL_MAX_CONTAINERS": "2",
    "SMALL_IDLE_TIMEOUT_S": "5.5",
    "SMALL_NETWORK": "bridge",
    "SMALL_ENV": "A=1;B=x y",
    "SMALL_MOUNTS": "/data:/in:rw",
    "SMALL_LIMITS_MEMORY_BYTES": "64m",
    "SMALL_LIMITS_CPUS": "0.5",
    "SMALL_TOOLS_TOOLS": "bash",
    "SMALL_TOOLS_ALLOW_NETWORK": "true",
    "LARGE_SLOTS_PER_CONTAINER": "20",
    "LARGE_MAX_LIFETIME_S": "60",
}


def of_variables(variables: dict[str, str]) -> hr.Profiles:
    return profiles_from_environment(
        {"HOME": "/", **{PREFIX + key: text for key, text in variables.items()}}
    )


def test_r15_a_toml_file_a_yaml_file_and_variables_give_the_same_profiles(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(TOML)
    (tmp_path / "p.yaml").write_text(YAML)
    profiles = hr.load_profiles(tmp_path / "p.toml")
    assert profiles == hr.load_profiles(tmp_path / "p.yaml") == of_variables(VARIABLES)
    small = profiles.configs[profiles.default]
    assert small.spec.mounts == (hr.Mount(source="/data", target="/in", read_only=False),)
    assert (small.spec.limits.cpus, small.tools.tools, small.max_containers) == (0.5, ("bash",), 2)
    assert profiles.configs["large"].max_lifetime_s == 60


def test_the_profiles_in_the_documentation_load() -> None:
    """Users copy the examples from this page."""
    page = (Path(__file__).parents[3] / "docs" / "pool.md").read_text()
    blocks = [part.partition("```")[0] for part in page.split("```toml\n")[1:]]
    assert blocks
    for block in blocks:
        parse_profiles(tomllib.loads(block))


@pytest.mark.parametrize(
    ("text", "named", "hint"),
    [
        ("[profiles.a]\nimage='x'\nmax_sandboxes=3", "profiles.a.max_sandboxes", "known: "),
        (
            "[profiles.a]\nimage='x'\nmax_container=3",
            "profiles.a.max_container",
            "did you mean 'max_containers'",
        ),
        (
            "[profiles.a]\nimage='x'\n[profiles.a.limits]\nmemory=3",
            "profiles.a.limits.memory",
            "memory_bytes",
        ),
        ("[profile.a]\nimage='x'", "profile", "did you mean 'profiles'"),
        ("[profiles.a]\nmax_containers=3", "profiles.a.image", "an image reference"),
        (
            "[profiles.a]\nimage='x'\nmax_containers='3'",
            "profiles.a.max_containers",
            "a whole number",
        ),
        ("[profiles.a]\nimage='x'\nmounts=[{from='/a'}]", "profiles.a.mounts[0].from", "known: "),
        ("[profiles.a]\nimage='x'\nenv=['A']", "profiles.a.env", "a table"),
        (
            "default_profile='b'\n[profiles.a]\nimage='x'",
            "default_profile",
            "the name of a profile",
        ),
        (
            "[profiles.a]\nimage='x'\ntools={allow_network=0}",
            "profiles.a.tools.allow_network",
            "true or false",
        ),
        ("profiles=3", "profiles", "a table"),
        ("[profiles.a", "profiles", "TOML"),
    ],
)
def test_w26_an_invalid_key_or_value_in_a_file_is_named_with_the_allowed_ones(
    tmp_path: Path, text: str, named: str, hint: str
) -> None:
    (tmp_path / "p.toml").write_text(text)
    with pytest.raises(SpecError) as refusal:
        hr.load_profiles(tmp_path / "p.toml")
    assert refusal.value.field == named
    assert hint in refusal.value.allowed


def test_a_broken_or_missing_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("profiles: [")
    for name in ("p.yaml", "missing.toml"):
        with pytest.raises(SpecError, match="profiles"):
            hr.load_profiles(tmp_path / name)


@pytest.mark.parametrize(
    ("variable", "text", "hint"),
    [
        ("MAX_CONTAINER", "3", "HYPERRUNTIME_POOL_MAX_CONTAINERS"),
        ("BIG_IMAGE", "x", "known"),
        ("MAX_CONTAINERS", "many", "a whole number"),
        ("MAX_CONTAINERS", "2.5", "a whole number"),
        ("READ_ONLY_ROOTFS", "maybe", "true or false"),
        ("ENV", "A", "K=V"),
        ("MOUNTS", "/data", "source:target"),
        ("LIMITS_MEMORY_BYTES", "lots", "bytes"),
        ("PROFILES", "", "profile"),
    ],
)
def test_w26_an_unknown_or_malformed_variable_is_rejected(
    variable: str, text: str, hint: str
) -> None:
    with pytest.raises(SpecError) as refusal:
        of_variables({"IMAGE": "x", variable: text})
    assert hint in str(refusal.value)


def test_a_variable_may_have_the_value_never_or_none() -> None:
    config = of_variables(
        {"IMAGE": "x", "IDLE_TIMEOUT_S": "never", "LEASE_TIMEOUT_S": "none", "NETWORK": "none"}
    )
    assert config.configs["default"].idle_timeout_s is None
    assert config.configs["default"].spec.network == "none"


@given(
    st.sampled_from(sorted(VARIABLES)),
    st.text(alphabet=st.characters(blacklist_characters="\0"), max_size=20),
)
def test_any_content_of_a_variable_is_parsed_or_raises_a_spec_error(
    variable: str, text: str
) -> None:
    try:
        of_variables({**VARIABLES, variable: text})
    except SpecError:
        pass


def test_texts_make_a_table_that_other_tables_can_be_merged_with() -> None:
    table = parse_texts(
        {
            "image": "localhost/a:1",
            "limits_memory_bytes": "64m",
            "env": "A=1",
            "tools_tools": "bash",
        }
    )
    assert table == {
        "image": "localhost/a:1",
        "limits": {"memory_bytes": 2**26},
        "env": {"A": "1"},
        "tools": {"tools": ("bash",)},
    }
    assert parse_profile("x", table).spec.limits.memory_bytes == 2**26
    with pytest.raises(SpecError, match=r"did you mean 'limits_memory_bytes'"):
        parse_texts({"limits_memory_byte": "1"})
    with pytest.raises(SpecError, match="limits_cpus"):
        parse_texts({"limits_cpus": "many"})


def test_services_are_replaced_with_their_container() -> None:
    """A slot with services has its own container, and no reset keeps them."""
    spec = hr.ContainerSpec(image="a", services=(hr.Service(name="db", image="b"),))
    layout = make_layout(hr.PoolConfig(spec=spec), users=True, driver="x", snapshots=True)
    assert (layout.isolation, layout.slots, layout.reset) == ("container", 1, "replace")
    shared: list[dict[str, Any]] = [
        {"slots_per_container": 2},
        {"isolation": "uid"},
        {"reset": "clean"},
    ]
    for fields in shared:
        with pytest.raises(SpecError, match="services"):
            hr.PoolConfig(spec=spec, **fields)
