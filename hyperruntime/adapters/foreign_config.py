"""Pool configurations from the configuration objects of other programs, by the names of their
fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from hyperruntime.errors import SpecError
from hyperruntime.pool_values.config import PoolConfig, ToolPolicy
from hyperruntime.pool_values.profiles import Profiles, parse_profile
from hyperruntime.settings.reader import fields_of, read
from hyperruntime.settings.texts import of_text
from hyperruntime.spec import ContainerSpec, Limits, Network
from hyperruntime.units import MIB

_CPU = 1.0
_MEMORY = 2048


@attrs.frozen(kw_only=True)
class _Foreign:
    """The fields of a sandbox profile of hermes-agent, with its defaults; those of ``cpu`` and
    ``memory`` mean no limit, as there.
    """

    name: str = "default"
    app_name: str | None = None
    image: str = "python:3.11"
    gpu: Any = None
    cpu: float = _CPU
    memory: float = _MEMORY
    slots_per_sandbox: int = 10
    min_sandboxes: int = 1
    max_sandboxes: int = 5
    idle_timeout: float = 120
    max_lifetime: float = 3600
    acquire_timeout_s: float = 60.0
    execution_timeout_s: float = 30.0
    secrets: Any = ()
    env_vars: Mapping[str, str] = attrs.field(factory=dict)
    workspace_base: str = "/data"


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
    known = {field: getattr(value, field) for field in fields_of(_Foreign) if hasattr(value, field)}
    given = {**getattr(value, "__dict__", {}), **known}
    return _translated(name, read(_Foreign, given, path=f"profiles.{name}"), network)


def profiles_of(value: object) -> Profiles:
    """Return the profiles that a value describes: profiles as they are, a configuration as the only
    profile.

    Raises:
        SpecError: as for :func:`pool_config`.
    """
    if isinstance(value, Profiles):
        return value
    name = getattr(value, "name", None) or _Foreign().name
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
    names = {_ENV_PREFIX + _ENV_NAMES.get(field, field): field for field in fields_of(_Foreign)}
    given = {
        field: getattr(value, name)
        for name, field in names.items()
        if field != "name" and hasattr(value, name)
    }
    if isinstance(pairs := given.get("env_vars"), str):
        given["env_vars"] = of_text(Mapping[str, str], pairs, f"{_ENV_PREFIX}env_vars")
    made = read(_Foreign, given, path=f"profiles.{_Foreign().name}")
    network: Network = "bridge" if getattr(value, "allow_network", False) else "none"
    return _translated(made.name, made, network), made.app_name or "hyperruntime"


def _translated(name: str, given: _Foreign, network: Network) -> PoolConfig:
    where = f"profiles.{name}"
    if given.gpu:
        allowed = "None: it names a GPU of a cloud; give a PoolConfig whose spec has gpus='auto:1'"
        raise SpecError(f"{where}.gpu", given.gpu, allowed)
    if given.secrets:
        raise SpecError(
            f"{where}.secrets", "...", "empty: there is no store of secrets here; give env_vars"
        )
    usual = ToolPolicy()
    timeout_s = given.execution_timeout_s
    try:
        limits = Limits(
            cpus=None if given.cpu == _CPU else given.cpu,
            memory_bytes=None if given.memory == _MEMORY else int(given.memory * MIB),
        )
        return PoolConfig(
            name=name,
            spec=ContainerSpec(
                image=given.image, network=network, env=given.env_vars, limits=limits
            ),
            slots_per_container=given.slots_per_sandbox,
            min_containers=given.min_sandboxes,
            max_containers=given.max_sandboxes,
            idle_timeout_s=given.idle_timeout,
            max_lifetime_s=given.max_lifetime,
            acquire_timeout_s=given.acquire_timeout_s,
            workspace_base=given.workspace_base,
            tools=attrs.evolve(
                usual,
                default_timeout_s=timeout_s,
                min_timeout_s=min(timeout_s, usual.min_timeout_s),
                max_timeout_s=max(timeout_s, usual.max_timeout_s),
            ),
        )
    except SpecError as error:
        raise SpecError(f"{where}.{error.field}", error.value, error.allowed) from None
