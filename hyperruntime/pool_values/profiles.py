"""Load named pool configurations from TOML, YAML or the environment; an unknown key is an error."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.errors import SpecError, name_hint
from hyperruntime.json_values import parse_toml, parse_yaml
from hyperruntime.pool_values.config import PoolConfig, ToolPolicy
from hyperruntime.spec import ContainerSpec, Limits, Mount
from hyperruntime.units import parse_size

PREFIX = "HYPERRUNTIME_POOL_"
DEFAULT = "default"
_POOL = frozenset(field.name for field in attrs.fields(PoolConfig)) - {"spec", "name", "tools"}
_SPEC = frozenset(field.name for field in attrs.fields(ContainerSpec)) - {"limits"}
_LIMITS = frozenset(field.name for field in attrs.fields(Limits))
_TOOLS = frozenset(field.name for field in attrs.fields(ToolPolicy))
_TABLES = {"limits": _LIMITS, "tools": _TOOLS}
_GENERAL = ("PROFILES", "DEFAULT_PROFILE")
# By the end of a variable's name: the table in a profile ("" for the profile itself), and the key
# in it.
_PLACES = {key.upper(): ("", key) for key in _POOL | _SPEC} | {
    f"{table}_{key}".upper(): (table, key) for table, keys in _TABLES.items() for key in keys
}
# How the text of a variable is parsed. Keys that end with ``_bytes`` are sizes, those that end with
# ``_s`` are numbers; other keys in none of these lists are text.
_WHOLE = (
    "slots_per_container min_containers max_containers spare_containers max_starting "
    "pids_per_slot limits_pids tools_output_chars tools_max_entries".split()
)
_NUMBERS = (*_WHOLE, "limits_cpus")
_FLAGS = ("read_only_rootfs", "tools_allow_network", "image_workdir")
_LISTS = "tools_tools tools_file_roots tools_read_roots".split()
_MAPPINGS = ("env", "labels")


@attrs.frozen(kw_only=True)
class Profiles:
    """Pool configurations by name.

    Attributes:
        configs: the configurations by name.
        default: the profile to use if the caller names none.

    Example:
        >>> profiles = hr.Profiles.of(hr.PoolConfig(name="small", spec=spec))
        >>> profiles.default, list(profiles.configs)
        ('small', ['small'])
    """

    configs: Mapping[str, PoolConfig] = attrs.field(hash=False)
    default: str = DEFAULT

    def __attrs_post_init__(self) -> None:
        """Check that the default profile exists."""
        if self.default not in tuple(self.configs):
            hint = name_hint(str(self.default), self.configs)
            raise SpecError("default_profile", self.default, f"the name of a profile; {hint}")

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
            raise SpecError(
                "profiles",
                [config.name for config in configs],
                "one or more configs with different names",
            )
        return cls(configs=named, default=default or configs[0].name)


def load_profiles(path: Path | str) -> Profiles:
    """Load the profiles of a file: YAML if its suffix is ``.yaml`` or ``.yml``, else TOML.

    Raises:
        SpecError: the file cannot be read, or it contains an unknown key or an invalid value.
    """
    path = Path(path)
    try:
        text = path.read_text()
        data = parse_yaml(text) if path.suffix in (".yaml", ".yml") else parse_toml(text)
    except OSError as error:
        raise SpecError("profiles", str(path), f"a readable file ({error.strerror})") from error
    except ValueError as error:
        raise SpecError(
            "profiles", str(path), f"TOML or YAML ({' '.join(str(error).split())})"
        ) from error
    return parse_profiles(data)


def parse_profiles(data: object) -> Profiles:
    """Return the profiles of a parsed file: a table ``profiles`` by name, and ``default_profile``.

    Raises:
        SpecError: a key is unknown or a value is invalid.
    """
    top = _table("", data, ("default_profile", "profiles"))
    named = _table("profiles", top.get("profiles"))
    configs = {str(name): parse_profile(str(name), table) for name, table in named.items()}
    first = next(iter(configs), DEFAULT)
    return Profiles(
        configs=configs,
        default=top.get("default_profile", DEFAULT if DEFAULT in configs else first),
    )


def parse_profile(name: str, data: object) -> PoolConfig:
    """Return one profile.

    Args:
        name: its name.
        data: a table with keys of PoolConfig and of ContainerSpec, and the tables ``limits`` and
            ``tools``; or a PoolConfig, which gets the name. Instead of a table it may hold a
            Limits, a ToolPolicy or a Mount.

    Raises:
        SpecError: a key is unknown or a value is invalid.
    """
    if isinstance(data, PoolConfig):
        return attrs.evolve(data, name=name)
    where = f"profiles.{name}"
    table = as_tables(_table(where, data, _POOL | _SPEC | set(_TABLES)))
    if "image" not in table:
        raise SpecError(f"{where}.image", None, "an image reference such as localhost/name:tag")
    parts = {
        key: _table(f"{where}.{key}", table.get(key, {}), known) for key, known in _TABLES.items()
    }
    spec = {key: value for key, value in table.items() if key in _SPEC}
    pool = {key: value for key, value in table.items() if key in _POOL}
    try:
        limits = Limits(**parts["limits"])
        policy = ToolPolicy(**parts["tools"])
        return PoolConfig(
            name=name,
            spec=ContainerSpec(**_spec_values(where, spec), limits=limits),
            tools=policy,
            **pool,
        )
    except SpecError as error:
        given = error.field if error.field.startswith(where) else f"{where}.{error.field}"
        raise SpecError(given, error.value, error.allowed) from None
    except (TypeError, ValueError, AttributeError) as error:
        raise SpecError(
            where, "...", f"values of the right types; correct the wrong field ({error})"
        ) from error


def as_tables(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields with a table in place of each :class:`Mount`, :class:`Limits` and
    :class:`ToolPolicy`.

    Args:
        fields: by name, as for :func:`parse_profile`; those of tables are returned as they are.
    """
    found = {key: _as_table(value) for key, value in fields.items()}
    if isinstance(mounts := found.get("mounts"), (list, tuple)):
        found["mounts"] = [_as_table(each) for each in mounts]
    return found


def _as_table(value: Any) -> Any:  # noqa: ANN401 - any value of a configuration
    if not isinstance(value, (Mount, Limits, ToolPolicy)):
        return value
    return attrs.asdict(value, filter=lambda field, given: given != field.default)


def _spec_values(where: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    values = dict(spec)
    for key in _MAPPINGS:
        _table(f"{where}.{key}", values.get(key, {}))
    if not isinstance(values.get("read_only_rootfs", False), bool):
        raise SpecError(f"{where}.read_only_rootfs", values["read_only_rootfs"], "true or false")
    if "mounts" in values:
        mounts = values["mounts"]
        if not isinstance(mounts, list):
            raise SpecError(
                f"{where}.mounts", mounts, "a list of tables with source, target and read_only"
            )
        values["mounts"] = tuple(
            _mount(f"{where}.mounts[{number}]", each) for number, each in enumerate(mounts)
        )
    return values


def _mount(where: str, data: object) -> Mount:
    table = _table(where, data, ("source", "target", "read_only"))
    if not {"source", "target"} <= set(table) or not isinstance(table.get("read_only", True), bool):
        raise SpecError(where, dict(table), "source and target, and read_only as true or false")
    return Mount(**table)


def _table(where: str, data: object, known: Collection[str] | None = None) -> Mapping[str, Any]:
    """Return a table that has only known keys; None allows any."""
    if not isinstance(data, Mapping) or not all(isinstance(key, str) for key in data):
        raise SpecError(where or "profiles", data, "a table of named values")
    for key in data:
        if known is not None and key not in known:
            raise SpecError(
                f"{where}.{key}".lstrip("."), data[key], f"a known key; {name_hint(key, known)}"
            )
    return data


def profiles_from_environment(environ: Mapping[str, str]) -> Profiles:
    """Return the profiles that environment variables describe.

    ``HYPERRUNTIME_POOL_PROFILES`` lists the profile names; without it there is one, ``default``.
    ``HYPERRUNTIME_POOL_<NAME>_<KEY>`` sets a key of one profile. ``HYPERRUNTIME_POOL_<KEY>`` sets
    it for all profiles that do not set it themselves. ``HYPERRUNTIME_POOL_DEFAULT_PROFILE`` names
    the default profile. Keys are those of a file in capital letters; keys of tables begin with
    ``LIMITS_`` or ``TOOLS_``. The value ``none`` or ``never`` means None. Lists are separated by
    commas. ``ENV`` and ``LABELS`` are ``K=V;K=V``. ``MOUNTS`` is a list of ``source:target[:rw]``,
    separated by commas.

    Raises:
        SpecError: a variable is unknown or its value is invalid.
    """
    given = {key[len(PREFIX) :]: value for key, value in environ.items() if key.startswith(PREFIX)}
    names = [name.strip() for name in given.get("PROFILES", DEFAULT).split(",") if name.strip()]
    tables: dict[str, dict[str, Any]] = {name: {} for name in names}
    owners: dict[str, tuple[list[str], str]] = {}
    for name in reversed(names):
        capitals = name.upper().replace("-", "_").replace(".", "_")
        owners |= {f"{capitals}_{key}": ([name], key) for key in _PLACES}
    owners |= {key: (names, key) for key in _PLACES}
    # Shared values first: a profile's own value then replaces them.
    for variable in sorted(
        given.keys() - set(_GENERAL), key=lambda variable: (variable not in _PLACES, variable)
    ):
        if variable not in owners:
            hint = name_hint(PREFIX + variable, [PREFIX + known for known in (*_GENERAL, *owners)])
            raise SpecError(PREFIX + variable, "...", f"a known variable; {hint}")
        profiles, key = owners[variable]
        for name in profiles:
            _put(tables[name], key, given[variable], PREFIX + variable)
    default = {"default_profile": given["DEFAULT_PROFILE"]} if "DEFAULT_PROFILE" in given else {}
    return parse_profiles({"profiles": tables, **default})


def parse_texts(texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the table of a profile, for :func:`parse_profile`, from texts in the form of
    environment variables.

    Args:
        texts: by key; the keys of tables begin with ``limits_`` or ``tools_``.

    Raises:
        SpecError: a key is unknown or a text is invalid.
    """
    table: dict[str, Any] = {}
    for key, text in texts.items():
        if key.upper() not in _PLACES:
            raise SpecError(
                key, text, f"a known key; {name_hint(key, [place.lower() for place in _PLACES])}"
            )
        _put(table, key.upper(), text, key)
    return table


def _put(profile: dict[str, Any], key: str, text: str, field: str) -> None:
    """Set a key of a profile's table from a text; ``field`` names it in errors."""
    table, name = _PLACES[key]
    place = profile.setdefault(table, {}) if table else profile
    place[name] = _value(field, key.lower(), text)


def _value(field: str, key: str, text: str) -> Any:  # noqa: ANN401 - any TOML value
    if text.strip().lower() in ("none", "never") and key not in ("network", "image"):
        return None
    if key.endswith("_bytes"):
        return parse_size(text, field)
    if key in _NUMBERS or key.endswith("_s"):
        try:
            return int(text) if key in _WHOLE else float(text)
        except ValueError:
            raise SpecError(field, text, "a number, or 'none'") from None
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
