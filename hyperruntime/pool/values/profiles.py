"""Load named pool configurations from TOML, YAML or the environment; an unknown key is an error."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.errors import SpecError, name_hint
from hyperruntime.pool.values.config import PoolConfig
from hyperruntime.pool.values.policy import ToolPolicy
from hyperruntime.spec import ContainerSpec, Limits, Mount
from hyperruntime.units import parse_size

PREFIX = "HYPERRUNTIME_POOL_"
DEFAULT = "default"
_POOL = frozenset(field.name for field in attrs.fields(PoolConfig)) - {"spec", "name", "tools"}
_SPEC = frozenset(field.name for field in attrs.fields(ContainerSpec)) - {"limits"}
_LIMITS = frozenset(field.name for field in attrs.fields(Limits))
_TOOLS = frozenset(field.name for field in attrs.fields(ToolPolicy))
_TABLES = {"limits": _LIMITS, "tools": _TOOLS}
_TOP = ("default_profile", "profiles")
_GENERAL = ("PROFILES", "DEFAULT_PROFILE")
# How the text of a variable is parsed; keys in none of these lists are text.
_WHOLE = (
    "slots_per_container min_containers max_containers spare_containers max_starting pids_per_slot limits_pids"
    " tools_output_chars tools_max_entries".split()
)
_SIZES = "limits_memory_bytes limits_tmpfs_bytes limits_disk_bytes tools_file_bytes tools_artifact_bytes".split()
_NUMBERS = (
    "idle_timeout_s health_interval_s max_lifetime_s acquire_timeout_s lease_timeout_s limits_cpus limits_wall_s"
    " tools_default_timeout_s tools_min_timeout_s tools_max_timeout_s".split()
)
_FLAGS = ("read_only_rootfs", "tools_allow_network")
_LISTS = "tools_tools tools_file_roots tools_read_roots".split()
_MAPPINGS = ("env", "labels")
_NULL = ("none", "never")


@attrs.frozen(kw_only=True)
class Profiles:
    """Pool configurations by name.

    Attributes:
        configs: the configurations by name.
        default: the profile to use if the caller names none.
    """

    configs: Mapping[str, PoolConfig]
    default: str = DEFAULT

    def __attrs_post_init__(self) -> None:
        """Check that the default profile exists."""
        default: Any = self.default
        if not isinstance(default, str) or default not in self.configs:
            raise SpecError("default_profile", self.default, f"the name of a profile; {self._hint()}")

    def _hint(self) -> str:
        return name_hint(str(self.default), self.configs)

    @classmethod
    def of(cls, *configs: PoolConfig, default: str | None = None) -> Profiles:
        """Return profiles named by their configs.

        Args:
            configs: one or more configurations with different names.
            default: name of the default profile; None means the first.

        Raises:
            SpecError: there is no config, two have the same name, or ``default`` is unknown.
        """
        named = {config.name: config for config in configs}
        if not configs or len(named) < len(configs):
            raise SpecError("profiles", [config.name for config in configs], "one or more configs with different names")
        return cls(configs=named, default=default or configs[0].name)


def load_profiles(path: Path | str) -> Profiles:
    """Load the profiles of a file: YAML if its suffix is ``.yaml`` or ``.yml``, else TOML.

    Raises:
        SpecError: the file cannot be read, or it contains an unknown key or an invalid value.
    """
    path = Path(path)
    try:
        text = path.read_text()
        if path.suffix in (".yaml", ".yml"):
            import yaml

            data = yaml.safe_load(text)
        else:
            data = tomllib.loads(text)
    except OSError as error:
        raise SpecError("profiles", str(path), f"a readable file ({error.strerror})") from error
    except ValueError as error:
        raise SpecError("profiles", str(path), f"TOML or YAML ({error})") from error
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "yaml":
            raise
        raise SpecError("profiles", str(path), f"YAML ({' '.join(str(error).split())})") from error
    return parse_profiles(data)


def parse_profiles(data: object) -> Profiles:
    """Return the profiles of a parsed file: a table ``profiles`` by name, and ``default_profile``.

    Raises:
        SpecError: a key is unknown or a value is invalid.
    """
    top = _table("", data)
    _refuse_unknown("", top, _TOP)
    named = _table("profiles", top.get("profiles"))
    configs = {str(name): parse_profile(str(name), table) for name, table in named.items()}
    first = next(iter(configs), DEFAULT)
    return Profiles(configs=configs, default=top.get("default_profile", DEFAULT if DEFAULT in configs else first))


def parse_profile(name: str, data: object) -> PoolConfig:
    """Return one profile.

    Args:
        name: its name.
        data: a table with keys of PoolConfig and of ContainerSpec, and the tables ``limits`` and ``tools``.

    Raises:
        SpecError: a key is unknown or a value is invalid.
    """
    where = f"profiles.{name}"
    table = dict(_table(where, data))
    _refuse_unknown(where, table, _POOL | _SPEC | set(_TABLES))
    if "image" not in table:
        raise SpecError(f"{where}.image", None, "an image reference such as localhost/name:tag")
    parts = {key: dict(_table(f"{where}.{key}", table.pop(key, {}))) for key in _TABLES}
    for key, known in _TABLES.items():
        _refuse_unknown(f"{where}.{key}", parts[key], known)
    tools: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in parts["tools"].items()
    }
    spec = {key: value for key, value in table.items() if key in _SPEC}
    pool = {key: value for key, value in table.items() if key in _POOL}
    return _made(
        where,
        lambda: PoolConfig(
            name=name,
            spec=ContainerSpec(**_spec_values(where, spec), limits=Limits(**parts["limits"])),
            tools=ToolPolicy(**tools),
            **pool,
        ),
    )


def _spec_values(where: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    values = dict(spec)
    for key in _MAPPINGS:
        if key in values:
            values[key] = dict(_table(f"{where}.{key}", values[key]))
    if not isinstance(values.get("read_only_rootfs", False), bool):
        raise SpecError(f"{where}.read_only_rootfs", values["read_only_rootfs"], "true or false")
    if "mounts" in values:
        mounts = values["mounts"]
        if not isinstance(mounts, list):
            raise SpecError(f"{where}.mounts", mounts, "a list of tables with source, target and read_only")
        values["mounts"] = tuple(_mount(f"{where}.mounts[{number}]", each) for number, each in enumerate(mounts))
    return values


def _mount(where: str, data: object) -> Mount:
    table = _table(where, data)
    _refuse_unknown(where, table, ("source", "target", "read_only"))
    if not {"source", "target"} <= set(table) or not isinstance(table.get("read_only", True), bool):
        raise SpecError(where, dict(table), "source and target, and read_only as true or false")
    return Mount(**table)


def _made(where: str, make: Callable[[], PoolConfig]) -> PoolConfig:
    try:
        return make()
    except SpecError as error:
        field = error.field if error.field.startswith(where) else f"{where}.{error.field}"
        raise SpecError(field, error.value, error.allowed) from None
    except (TypeError, ValueError, AttributeError) as error:
        raise SpecError(where, "...", f"values of the right types ({error})") from error


def _table(where: str, data: object) -> Mapping[str, Any]:
    if not isinstance(data, Mapping) or not all(isinstance(key, str) for key in data):
        raise SpecError(where or "profiles", data, "a table of named values")
    return data


def _refuse_unknown(where: str, table: Mapping[str, Any], known: Any) -> None:  # noqa: ANN401 - any collection
    for key in table:
        if key not in known:
            raise SpecError(f"{where}.{key}".lstrip("."), table[key], f"a known key; {name_hint(key, known)}")


def profiles_from_environment(environ: Mapping[str, str]) -> Profiles:
    """Return the profiles that environment variables describe.

    ``HYPERRUNTIME_POOL_PROFILES`` lists the profile names; without it there is one, ``default``.
    ``HYPERRUNTIME_POOL_<NAME>_<KEY>`` sets a key of one profile. ``HYPERRUNTIME_POOL_<KEY>`` sets it for all profiles
    that do not set it themselves. ``HYPERRUNTIME_POOL_DEFAULT_PROFILE`` names the default profile. Keys are those of a
    file in capital letters; keys of tables begin with ``LIMITS_`` or ``TOOLS_``. The value ``none`` or ``never`` means
    None. Lists are separated by commas. ``ENV`` and ``LABELS`` are ``K=V;K=V``. ``MOUNTS`` is a list of
    ``source:target[:rw]``, separated by commas.

    Raises:
        SpecError: a variable is unknown or its value is invalid.
    """
    given = {key[len(PREFIX) :]: value for key, value in environ.items() if key.startswith(PREFIX)}
    names = [name.strip() for name in given.get("PROFILES", DEFAULT).split(",") if name.strip()]
    tables: dict[str, dict[str, Any]] = {name: {} for name in names}
    # Shared values first: a profile's own value then replaces them.
    for variable, text in sorted(given.items(), key=lambda item: _owner_of(item[0], names) is not None):
        if variable in _GENERAL:
            continue
        owner = _owner_of(variable, names)
        key = variable if owner is None else variable[len(_capitals(owner)) + 1 :]
        for name in names if owner is None else [owner]:
            _put(tables[name], variable, key.lower(), text)
    data = {"profiles": tables}
    default = {"default_profile": given["DEFAULT_PROFILE"]} if "DEFAULT_PROFILE" in given else {}
    return parse_profiles({**data, **default})


def _capitals(name: str) -> str:
    return name.upper().replace("-", "_").replace(".", "_")


def _keys() -> frozenset[str]:
    nested = {f"{table}_{key}" for table, keys in _TABLES.items() for key in keys}
    return frozenset(key.upper() for key in _POOL | _SPEC | nested)


def _owner_of(variable: str, names: list[str]) -> str | None:
    """Return the profile that a variable belongs to, or None if it applies to all."""
    if variable in _keys() or variable in _GENERAL:
        return None
    for name in names:
        start = f"{_capitals(name)}_"
        if variable.startswith(start) and variable[len(start) :] in _keys():
            return name
    known = [PREFIX + key for key in (*_GENERAL, *_keys())]
    own = [f"{PREFIX}{_capitals(name)}_{key}" for name in names for key in _keys()]
    raise SpecError(PREFIX + variable, "...", f"a known variable; {name_hint(PREFIX + variable, known + own)}")


def _put(table: dict[str, Any], variable: str, key: str, text: str) -> None:
    value = _value(PREFIX + variable, key, text)
    for name in _TABLES:
        if key.startswith(f"{name}_") and key != "limits_mode":
            table.setdefault(name, {})[key[len(name) + 1 :]] = value
            return
    table[key] = value


def _value(field: str, key: str, text: str) -> Any:  # noqa: ANN401 - any TOML value
    if text.strip().lower() in _NULL and key not in ("network", "image"):
        return None
    if key in (*_WHOLE, *_SIZES, *_NUMBERS):
        return _number(field, key, text)
    if key in _FLAGS:
        if text.lower() not in ("true", "false", "1", "0"):
            raise SpecError(field, text, "true or false")
        return text.lower() in ("true", "1")
    if key in _LISTS:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if key in _MAPPINGS:
        return _pairs(field, text)
    if key == "mounts":
        return [_mount_words(field, part) for part in text.split(",") if part.strip()]
    return tuple(text.split(",")) if key == "gpus" and "," in text else text


def _number(field: str, key: str, text: str) -> float:
    if key in _SIZES:
        return parse_size(text, field)
    try:
        return int(text) if key in _WHOLE else float(text)
    except ValueError:
        raise SpecError(field, text, "a number, or 'none'") from None


def _pairs(field: str, text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.split(";") if part.strip()]
    if any(not equals for _, equals, _ in pairs):
        raise SpecError(field, "...", "K=V;K=V")
    return {name.strip(): value for name, _, value in pairs}


def _mount_words(field: str, text: str) -> dict[str, Any]:
    source, _, rest = text.strip().partition(":")
    target, _, mode = rest.partition(":")
    if not source or not target or mode not in ("", "ro", "rw"):
        raise SpecError(field, text, "source:target or source:target:rw, separated by commas")
    return {"source": source, "target": target, "read_only": mode != "rw"}
