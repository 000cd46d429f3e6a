"""Validate untrusted tool arguments; no I/O."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from hyperruntime.errors import name_hint
from hyperruntime.pool.tools.tool import Param, Tool, ToolProblemError
from hyperruntime.pool.values.policy import POLICY_KEYS, ToolPolicy

_WORDS = {"true": True, "false": False}
_KINDS = {"string": "a text", "integer": "a whole number", "number": "a number", "boolean": "true or false"}


def check_arguments(tool: Tool, args: object) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the value of every parameter by name, and the sorted policy names that were ignored.

    A number or boolean given as text is converted; null counts as not given.

    Args:
        tool: the tool whose parameters are checked.
        args: the arguments as the model gave them.

    Raises:
        ToolProblemError: args is not an object, a name is unknown or missing, or a value is invalid.
    """
    if not isinstance(args, Mapping):
        raise ToolProblemError(f"the arguments of {tool.name} must be a JSON object, not {_kind_of(args)}")
    known = {param.name: param for param in tool.params}
    noted = tuple(sorted(key for key in args if isinstance(key, str) and key in POLICY_KEYS and key not in known))
    for key in args:
        if not isinstance(key, str) or (key not in known and key not in noted):
            hint = name_hint(str(key)[:100], known)
            raise ToolProblemError(f"{tool.name} has no argument {str(key)[:100]!r}; {hint}")
    missing = [name for name, param in known.items() if param.required and args.get(name) is None]
    if missing:
        raise ToolProblemError(f"{tool.name} needs {' and '.join(map(repr, missing))}; {_form(tool.params)}")
    return {name: _value(tool.name, param, args.get(name)) for name, param in known.items()}, noted


def choose_timeout(asked: object, given_s: float | None, policy: ToolPolicy) -> float:
    """Return how many seconds a call may take.

    Args:
        asked: the model's timeout in seconds, limited to the policy's range; None if it set none.
        given_s: the calling program's limit in seconds, not limited by the policy; None if it set none.
        policy: the allowed range, and the default if both are None.
    """
    if not isinstance(asked, (int, float)):
        return policy.default_timeout_s if given_s is None else given_s
    wanted = policy.clamp(float(asked))
    return wanted if given_s is None else min(wanted, given_s)


def _value(tool: str, param: Param, value: object) -> Any:  # noqa: ANN401 - JSON values
    if value is None:
        return param.default
    checked = _CHECKS[param.kind](value)
    if checked is None:
        raise ToolProblemError(f"{param.name!r} of {tool} must be {_KINDS[param.kind]}, not {_shown(value)}")
    if param.minimum is not None and not isinstance(checked, str) and checked < param.minimum:
        raise ToolProblemError(f"{param.name!r} of {tool} must be at least {param.minimum}, not {_shown(value)}")
    if param.choices and checked not in param.choices:
        allowed = ", ".join(param.choices)
        raise ToolProblemError(f"{param.name!r} of {tool} must be one of {allowed}, not {_shown(value)}")
    return checked


def _text(value: object) -> str | None:
    if not isinstance(value, str):
        return None
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        raise ToolProblemError("a text holds half of a surrogate pair and cannot be encoded") from None
    return value


def _number(value: object) -> float | None:
    if isinstance(value, str) and len(value) < 40:
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None


def _integer(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value if abs(value) < 2**63 else None
    number = _number(value)
    return int(number) if number is not None and number.is_integer() and abs(number) < 2**53 else None


def _boolean(value: object) -> bool | None:
    if isinstance(value, str):
        return _WORDS.get(value.strip().lower())
    return value if isinstance(value, bool) else None


_CHECKS = {"string": _text, "number": _number, "integer": _integer, "boolean": _boolean}


def _kind_of(value: object) -> str:
    names = {str: "a text", list: "a list", bool: "a boolean", int: "a number", float: "a number"}
    return "null" if value is None else names.get(type(value), type(value).__name__)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _form(params: Sequence[Param]) -> str:
    return "it takes " + ", ".join(param.name if param.required else f"[{param.name}]" for param in params)
