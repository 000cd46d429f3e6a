"""Parts of a compose file: variables, health checks, files of variables, volumes and networks.

Source: the Compose Specification, "Interpolation", "Services top-level elements", "Networks".
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from hyperruntime.errors import SpecError, UnsupportedOptionError
from hyperruntime.spec import Ready
from hyperruntime.units import parse_duration

SHELL = ("/bin/sh", "-c")
STARTED = "service_started"
HEALTHY = "service_healthy"
COMPLETED = "service_completed_successfully"
_VARIABLE = re.compile(
    r"\$(?:(?P<dollar>\$)|(?P<plain>[A-Za-z_]\w*)"
    r"|\{(?P<name>[A-Za-z_]\w*)(?:(?P<how>:?[-?+])(?P<more>[^}$]*))?\}|)"
)
_NAMED = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_LINE = re.compile(r"(?:export\s+)?(?P<name>[A-Za-z_][\w.-]*)\s*(?P<equals>=?)\s*(?P<value>.*)")
_DURATION = re.compile(r"(?:[\d.]+(?:us|ms|s|m|h))+")
_CHECK_S = 30.0
_RETRIES = 3
_LONGEST_INTERVAL_S = 1.0  # so that a service is not late because nobody looked
_NETWORK_KEYS = {"driver", "internal", "name", "labels", "attachable"}


def refused(key: str, why: str) -> UnsupportedOptionError:
    """Return the error about a key that cannot be honoured."""
    return UnsupportedOptionError("hyperruntime", key, why)


def interpolated(key: str, value: Any, variables: Mapping[str, str]) -> Any:  # noqa: ANN401 - of YAML
    """Return a value with its variables replaced, in all texts of it.

    Args:
        key: its key, for errors.
        value: the value.
        variables: the variables.

    Raises:
        UnsupportedOptionError: one is not set and has no default, or a `$` is followed by no name.
    """
    if isinstance(value, dict):
        return {name: interpolated(key, one, variables) for name, one in value.items()}
    if isinstance(value, list):
        return [interpolated(key, one, variables) for one in value]
    if not isinstance(value, str):
        return value

    def replace(match: re.Match[str]) -> str:
        if match["dollar"]:
            return "$"
        name = match["plain"] or match["name"]
        how = match["how"] or ""
        more = match["more"] or ""
        if not name:
            raise refused(key, f"`$` begins no variable in {value!r}; write `$$` for a `$`")
        found = variables.get(name)
        is_set = found is not None and (bool(found) or not how.startswith(":"))
        if how.endswith("+"):
            return more if is_set else ""
        if is_set:
            return found or ""
        if how.endswith("-"):
            return more
        why = f"the variable {name} is not set here; write ${{{name}:-VALUE}}, or the value"
        raise refused(key, f"{why} without `$`")

    return _VARIABLE.sub(replace, value)


def words(key: str, value: object) -> tuple[str, ...]:
    """Return the argv of ``command`` or ``entrypoint``: a list, or a text that is split as a shell
    would.

    Raises:
        SpecError: it is neither.
    """
    try:
        found = shlex.split(value) if isinstance(value, str) else value
    except ValueError as error:
        raise SpecError(key, value, f"a text with closed quotes ({error})") from None
    if not isinstance(found, list) or any(isinstance(one, list | dict) for one in found):
        raise SpecError(key, value, "a text, or a list of texts")
    return tuple(map(str, found))


def seconds(key: str, value: object) -> float:
    """Return the seconds of a duration such as ``1m30s``.

    Raises:
        SpecError: it is none.
    """
    text = str(value).replace(" ", "")
    if text != "0" and not _DURATION.fullmatch(text):
        raise SpecError(key, value, "a duration such as 90s or 1m30s")
    parts = re.findall(r"[\d.]+(?:us|ms|s|m|h)", text)
    return sum(
        parse_duration(part.replace("us", "ms"), key) / (1000 if part.endswith("us") else 1)
        for part in parts
    )


def readiness(given: object) -> Ready | None:
    """Return when a service with a ``healthcheck`` is ready; None if the check is disabled.

    The deadline is the time after which it would count as unhealthy.

    Raises:
        SpecError: a value is invalid.
        UnsupportedOptionError: a key of it is unknown.
    """
    if not isinstance(given, dict):
        raise SpecError("healthcheck", given, "a table with the key test")
    known = {"test", "interval", "timeout", "retries", "start_period", "start_interval", "disable"}
    if unknown := sorted(map(str, given.keys() - known)):
        raise refused(f"healthcheck.{unknown[0]}", "this key is not known; remove it")
    test = given.get("test")
    if given.get("disable") or test in ("NONE", ["NONE"]):
        return None
    if isinstance(test, str):
        command: tuple[str, ...] = (*SHELL, test)
    elif isinstance(test, list) and test[:1] == ["CMD-SHELL"] and len(test) == 2:
        command = (*SHELL, str(test[1]))
    elif isinstance(test, list) and test[:1] == ["CMD"] and len(test) > 1:
        command = words("healthcheck.test", test[1:])
    else:
        allowed = "a text, [CMD, program, ...], [CMD-SHELL, text] or [NONE]"
        raise SpecError("healthcheck.test", test, allowed)
    each_s = {
        name: seconds(f"healthcheck.{name}", given[name])
        for name in ("interval", "timeout", "start_period")
        if given.get(name) is not None
    }
    retries = given.get("retries", _RETRIES)
    if not isinstance(retries, int) or isinstance(retries, bool) or retries < 1:
        raise SpecError("healthcheck.retries", retries, "a whole number, 1 or more")
    interval_s = each_s.get("interval") or _CHECK_S
    once_s = interval_s + (each_s.get("timeout") or _CHECK_S)
    return Ready(
        command=command,
        interval_s=min(interval_s, _LONGEST_INTERVAL_S),
        timeout_s=each_s.get("start_period", 0) + retries * once_s,
    )


def conditions(given: object, known: Mapping[str, object]) -> dict[str, str]:
    """Return the services that ``depends_on`` names, each with its condition.

    Raises:
        SpecError: a name or a condition is unknown.
        UnsupportedOptionError: a key of it is unknown.
    """
    if isinstance(given, list):
        given = dict.fromkeys(map(str, given))
    if not isinstance(given, dict):
        raise SpecError("depends_on", given, "a list of services, or a table of them")
    found = {}
    for name, value in given.items():
        table = {} if value is None else value
        if name not in known:
            raise SpecError("depends_on", name, f"one of the services {', '.join(known)}")
        if not isinstance(table, dict) or table.keys() - {"condition", "restart", "required"}:
            raise refused("depends_on", f"{name!r} has keys other than condition; remove them")
        found[name] = table.get("condition", STARTED)
        if found[name] not in (STARTED, HEALTHY, COMPLETED):
            allowed = f"{STARTED}, {HEALTHY} or {COMPLETED}"
            raise SpecError("depends_on", found[name], allowed)
    return found


def variables_of_files(given: object, folder: Path) -> dict[str, str]:
    """Return the variables of the files that ``env_file`` names, all of them below a folder.

    Raises:
        SpecError: a file lies elsewhere, cannot be read, or has an invalid line.
    """
    found: dict[str, str] = {}
    for one in given if isinstance(given, list) else [given]:
        table: dict[str, Any] = one if isinstance(one, dict) else {"path": one}
        if not isinstance(table.get("path"), str) or table.keys() - {"path", "required"}:
            raise SpecError("env_file", one, "a path, or a table with path and required")
        path = (folder / table["path"]).resolve()
        if not path.is_relative_to(folder.resolve()):
            raise SpecError("env_file", table["path"], "a file below the folder of the file")
        if not path.is_file() and table.get("required") is False:
            continue
        try:
            text = path.read_text()
        except (OSError, ValueError) as error:
            raise SpecError("env_file", table["path"], f"a readable text ({error})") from None
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            match = _LINE.fullmatch(line.strip())
            if match is None or not match["equals"]:
                raise SpecError("env_file", f"{table['path']}, line {number}", "NAME=value")
            found[match["name"]] = _unquoted(match["value"])
    return found


def _unquoted(value: str) -> str:
    for quote in "\"'":
        if len(value) > 1 and value[0] == value[-1] == quote:
            return value[1:-1]
    return re.sub(r"\s+#.*", "", value)


def volumes_of(given: object) -> dict[str, str]:
    """Return the names of the volumes of a service by their targets; "" for one without a name.

    Raises:
        UnsupportedOptionError: one is a path of the host, or has an option that changes it.
    """
    found = {}
    for one in given if isinstance(given, list) else [given]:
        if isinstance(one, dict):
            if one.get("type") != "volume" or one.keys() - {"type", "source", "target"}:
                raise refused("volumes", f"{one} is not a named volume without options")
            name = str(one.get("source", ""))
            target = str(one.get("target", ""))
        else:
            name, colon, target = str(one).partition(":")
            target = target.removesuffix(":rw") if colon else name
            name = name if colon else ""
        if name and not _NAMED.fullmatch(name):
            raise refused("volumes", f"{name!r} is a path of the host; copy what it has instead")
        if not posixpath.isabs(target) or ":" in target:
            raise refused("volumes", f"{one!r} does not name a directory without options")
        found[posixpath.normpath(target)] = name
    return found


def networks_of(given: object) -> dict[str, tuple[str, ...]]:
    """Return the networks of a service, each with the service's other names there.

    Raises:
        UnsupportedOptionError: it asks for more than other names.
    """
    table = dict.fromkeys(map(str, given)) if isinstance(given, list) else given
    if not isinstance(table, dict):
        raise SpecError("networks", given, "a list of networks, or a table of them")
    found = {}
    for name, value in table.items():
        options = value or {}
        if not isinstance(options, dict) or options.keys() - {"aliases"}:
            raise refused("networks", f"services here have no addresses of their own in {name!r}")
        found[str(name)] = tuple(map(str, options.get("aliases") or ()))
    return found


def is_internal(given: object, used: Collection[str]) -> bool:
    """Return whether the one network of a file leads nowhere else.

    Args:
        given: the table ``networks`` of the file.
        used: the names of the networks that services have.

    Raises:
        SpecError: it is not a table of networks.
        UnsupportedOptionError: it is another kind of network.
    """
    tables = given or {}
    if not isinstance(tables, Mapping):
        raise SpecError("networks", given, "a table of networks")
    internal = False
    for name, value in tables.items():
        options = value or {}
        known = isinstance(options, Mapping) and not options.keys() - _NETWORK_KEYS
        if name in used and not (known and options.get("driver", "bridge") == "bridge"):
            raise refused("networks", f"{name!r} is not a plain network; remove its options")
        internal = internal or (name in used and bool(options.get("internal")))
    return internal
