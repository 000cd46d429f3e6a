"""Load named pool configurations from TOML, YAML or the environment; an unknown key is an error."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from hyperruntime.errors import SpecError, name_hint
from hyperruntime.json_values import parse_toml, parse_yaml
from hyperruntime.pool_values.config import PoolConfig, ToolPolicy
from hyperruntime.settings.reader import check_known, fields_of, read
from hyperruntime.settings.texts import of_text
from hyperruntime.spec import ContainerSpec, Limits
from hyperruntime.units import parse_size

PREFIX = "HYPERRUNTIME_POOL_"
DEFAULT = "default"
_SPEC = fields_of(ContainerSpec)
_KEYS = {
    **_SPEC,
    **{key: kind for key, kind in fields_of(PoolConfig).items() if key not in ("spec", "name")},
}
_TABLES = {"limits": fields_of(Limits), "tools": fields_of(ToolPolicy)}
_GENERAL = ("PROFILES", "DEFAULT_PROFILE")
# By the end of a variable's name: the table in a profile ("" for the profile itself), and the key
# in it.
_PLACES = {key.upper(): ("", key) for key in _KEYS if key not in _TABLES} | {
    f"{table}_{key}".upper(): (table, key) for table, keys in _TABLES.items() for key in keys
}


@attrs.frozen(kw_only=True)
class _File:
    """The content of a file."""

    profiles: Mapping[str, Any]
    default_profile: Any = None


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
    top = read(_File, data, "profiles")
    configs = {name: parse_profile(name, table) for name, table in top.profiles.items()}
    first = DEFAULT if DEFAULT in configs else next(iter(configs), DEFAULT)
    return Profiles(
        configs=configs, default=first if top.default_profile is None else top.default_profile
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
    check_known(data, _KEYS, where)
    assert isinstance(data, Mapping)
    if "image" not in data:
        raise SpecError(f"{where}.image", None, "an image reference such as localhost/name:tag")
    spec = read(ContainerSpec, {key: data[key] for key in data if key in _SPEC}, path=where)
    pool = {key: data[key] for key in data if key not in _SPEC}
    return read(PoolConfig, {**pool, "name": name, "spec": spec}, path=where)


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
    place[name] = _value(field, key, text)


def _value(field: str, key: str, text: str) -> Any:  # noqa: ANN401 - any TOML value
    table, name = _PLACES[key]
    kind = (_TABLES[table] if table else _KEYS)[name].type
    none = ("none", "never")
    if name.endswith("_bytes") and text.strip().lower() not in none:
        return parse_size(text, field)
    if name == "mounts":
        return [_mount_words(field, part) for part in text.split(",") if part.strip()]
    return of_text(kind, text, field, none=none)


def _mount_words(field: str, text: str) -> dict[str, Any]:
    source, _, rest = text.strip().partition(":")
    target, _, mode = rest.partition(":")
    if not source or not target or mode not in ("", "ro", "rw"):
        raise SpecError(field, text, "source:target or source:target:rw, separated by commas")
    return {"source": source, "target": target, "read_only": mode != "rw"}
