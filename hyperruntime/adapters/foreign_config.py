"""Pool configurations from the configuration objects of other programs, by the names of their
fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from hyperruntime.errors import SpecError, name_hint
from hyperruntime.network.egress import Network
from hyperruntime.pool_values.config import PoolConfig, ToolPolicy
from hyperruntime.pool_values.profiles import Profiles, parse_profile
from hyperruntime.spec import ContainerSpec, Limits

_MIB = 1024**2
# Fields of a sandbox profile of hermes-agent. Its defaults of ``cpu`` and ``memory`` mean no limit,
# as there.
_DEFAULTS: Mapping[str, Any] = {
    "name": "default",
    "app_name": None,
    "image": "python:3.11",
    "gpu": None,
    "cpu": 1.0,
    "memory": 2048,
    "slots_per_sandbox": 10,
    "min_sandboxes": 1,
    "max_sandboxes": 5,
    "idle_timeout": 120,
    "max_lifetime": 3600,
    "acquire_timeout_s": 60.0,
    "execution_timeout_s": 30.0,
    "secrets": (),
    "env_vars": {},
    "workspace_base": "/data",
}
_SHAPE = (
    "a PoolConfig, a table with the keys of a profile, or an object with a field slots_per_sandbox"
)
_ENV_PREFIX = "modal_"
_ENV_NAMES = {"acquire_timeout_s": "acquire_timeout", "execution_timeout_s": "execution_timeout"}
MODES = ("default", "slots")


def pool_config(name: str, value: object, *, network: Network = "none") -> PoolConfig:
    """Return the configuration of a pool.

    Args:
        name: name of the profile.
        value: a PoolConfig, a table with the keys of a profile, or an object with the fields of a
            sandbox profile of hermes-agent (``image``, ``slots_per_sandbox``, ``min_sandboxes``,
            ...).
        network: network of the containers; only used for such an object, which has no field for it.

    Raises:
        SpecError: the value has another shape, an unknown field, or a field that this machine
            cannot honour.
    """
    if isinstance(value, (PoolConfig, Mapping)):
        return parse_profile(name, value)
    if not hasattr(value, "slots_per_sandbox"):
        raise SpecError(f"profiles.{name}", value, _SHAPE)
    for field in getattr(value, "__dict__", ()):
        if field not in _DEFAULTS:
            raise SpecError(f"profiles.{name}.{field}", "...", name_hint(field, _DEFAULTS))
    return _translated(
        name,
        {field: getattr(value, field, default) for field, default in _DEFAULTS.items()},
        network,
    )


def profiles_of(value: object) -> Profiles:
    """Return the profiles that a value describes: profiles as they are, a configuration as the only
    profile.

    Raises:
        SpecError: as for :func:`pool_config`.
    """
    if isinstance(value, Profiles):
        return value
    name = getattr(value, "name", None) or _DEFAULTS["name"]
    return Profiles.of(pool_config(str(name), value))


def environment_config(value: object) -> tuple[PoolConfig, str] | None:
    """Return the pool and the name of the application that the settings of a training environment
    describe.

    Args:
        value: an object with a field ``tool_pool_mode`` and, except with ``default``, fields
            ``modal_image``, ``modal_slots_per_sandbox``, ... Its ``allow_network`` chooses between
            the networks ``bridge`` and ``none``.

    Returns:
        None if the mode is ``default``.

    Raises:
        SpecError: the mode is unknown, or as for :func:`pool_config`.
    """
    mode = getattr(value, "tool_pool_mode", None)
    if mode == "default":
        return None
    if mode not in ("slots", "modal"):
        allowed = (
            "default; or slots or modal, for slots on this machine with the fields modal_image "
            "and so on"
        )
        raise SpecError("tool_pool_mode", mode, allowed)
    given = {
        field: getattr(value, _ENV_PREFIX + _ENV_NAMES.get(field, field), default)
        for field, default in _DEFAULTS.items()
        if field != "name"
    }
    pairs = given["env_vars"]
    if isinstance(pairs, str):
        split = (pair.partition("=") for pair in pairs.split(";") if "=" in pair)
        given["env_vars"] = {key.strip(): text.strip() for key, _, text in split}
    network: Network = "bridge" if getattr(value, "allow_network", False) else "none"
    return _translated(_DEFAULTS["name"], given, network), given["app_name"] or "hyperruntime"


def _translated(name: str, given: Mapping[str, Any], network: Network) -> PoolConfig:
    where = f"profiles.{name}"
    if given["gpu"]:
        allowed = "None: it names a GPU of a cloud; give a PoolConfig whose spec has gpus='auto:1'"
        raise SpecError(f"{where}.gpu", given["gpu"], allowed)
    if given["secrets"]:
        raise SpecError(
            f"{where}.secrets", "...", "empty: there is no store of secrets here; give env_vars"
        )
    try:
        limits = Limits(
            cpus=None if given["cpu"] == _DEFAULTS["cpu"] else float(given["cpu"]),
            memory_bytes=None
            if given["memory"] == _DEFAULTS["memory"]
            else int(given["memory"]) * _MIB,
        )
        timeout_s = float(given["execution_timeout_s"])
        usual = ToolPolicy()
        return PoolConfig(
            name=name,
            spec=ContainerSpec(
                image=given["image"], network=network, env=dict(given["env_vars"]), limits=limits
            ),
            slots_per_container=int(given["slots_per_sandbox"]),
            min_containers=int(given["min_sandboxes"]),
            max_containers=int(given["max_sandboxes"]),
            idle_timeout_s=float(given["idle_timeout"]),
            max_lifetime_s=float(given["max_lifetime"]),
            acquire_timeout_s=float(given["acquire_timeout_s"]),
            workspace_base=given["workspace_base"],
            tools=attrs.evolve(
                usual,
                default_timeout_s=timeout_s,
                min_timeout_s=min(timeout_s, usual.min_timeout_s),
                max_timeout_s=max(timeout_s, usual.max_timeout_s),
            ),
        )
    except SpecError as error:
        raise SpecError(f"{where}.{error.field}", error.value, error.allowed) from None
    except (TypeError, ValueError, AttributeError) as error:
        raise SpecError(
            where, "...", f"values of the right types; correct the wrong field ({error})"
        ) from error
