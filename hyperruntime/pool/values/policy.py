"""The tool policy of a slot; it comes only from configuration, never from a model's arguments."""

from __future__ import annotations

from typing import Any

import attrs

from hyperruntime.errors import SpecError, unknown_name
from hyperruntime.spec import check_inside_path, check_seconds

_MIB = 1024**2

POLICY_KEYS = frozenset(
    "allow_network network require_sandbox require_stateful_sandbox sandbox sandboxed isolation privileged user image"
    " gpus policy file_roots read_roots".split()
)
"""Names that a model may not set: they are removed from its arguments and noted in the result."""

TOOL_NAMES = (
    *("bash", "bash_stateful", "terminal", "terminal_stateful"),
    *("read_file", "write_file", "edit_file", "patch", "list_files", "search"),
    *("read_artifact", "list_artifacts", "archive_artifacts"),
)
"""All tools of a slot."""


def seconds(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    """Refuse a value that is not a time limit; for attrs fields."""
    check_seconds(attribute.name, value)


def at_least(least: int) -> Any:  # noqa: ANN401 - an attrs validator
    """Return a check for attrs fields that refuses a value that is not a whole number, or is too small."""

    def check(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise SpecError(attribute.name, value, f"a whole number, at least {least}")

    return check


def _names(value: Any) -> Any:  # noqa: ANN401 - checked afterwards
    return tuple(value) if isinstance(value, (list, set, frozenset)) else value


def _check_network(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    """Refuse a value that is not a bool: Python treats the text ``false`` as true."""
    if value is not None and not isinstance(value, bool):
        raise SpecError(attribute.name, value, "true or false")


@attrs.frozen(kw_only=True)
class ToolPolicy:
    """Limits and rights of tool calls.

    Attributes:
        tools: names of the tools that may be called; None allows all tools of a slot.
        default_timeout_s: timeout of a call that sets none.
        min_timeout_s: a model's shorter timeout is raised to this.
        max_timeout_s: a model's longer timeout is lowered to this.
        output_chars: characters of each stream shown to the model; of a longer stream, head and tail are kept.
        file_bytes: largest file that is written, edited or read whole.
        artifact_bytes: largest artifact or archive that is returned.
        max_entries: most entries of one listing or archive, and most matches of one search.
        file_roots: directories outside the workspace in which file tools may read and write.
        read_roots: directories in which file tools may only read.
        allow_network: False refuses calls in containers that have a network, True in containers without one; None
            allows both.
    """

    tools: tuple[str, ...] | None = attrs.field(default=None, converter=_names)
    default_timeout_s: float = attrs.field(default=300.0, validator=seconds)
    min_timeout_s: float = attrs.field(default=1.0, validator=seconds)
    max_timeout_s: float = attrs.field(default=600.0, validator=seconds)
    output_chars: int = attrs.field(default=50_000, validator=at_least(1))
    file_bytes: int = attrs.field(default=100 * _MIB, validator=at_least(1))
    artifact_bytes: int = attrs.field(default=5 * _MIB, validator=at_least(1))
    max_entries: int = attrs.field(default=5000, validator=at_least(1))
    file_roots: tuple[str, ...] = attrs.field(default=(), converter=_names)
    read_roots: tuple[str, ...] = attrs.field(default=(), converter=_names)
    allow_network: bool | None = attrs.field(default=None, validator=_check_network)

    def __attrs_post_init__(self) -> None:
        """Check the fields together, and the lists."""
        if not self.min_timeout_s <= self.default_timeout_s <= self.max_timeout_s:
            raise SpecError("default_timeout_s", self.default_timeout_s, "between min_timeout_s and max_timeout_s")
        for name in ("tools", "file_roots", "read_roots"):
            value = getattr(self, name)
            if not isinstance(value, tuple) and not (value is None and name == "tools"):
                raise SpecError(name, value, "a list of texts")
        for root in (*self.file_roots, *self.read_roots):
            check_inside_path("file_roots, read_roots", root)
        for tool in self.tools or ():
            if tool not in TOOL_NAMES:
                raise SpecError("tools", tool, unknown_name("tool", str(tool), TOOL_NAMES))

    def clamp(self, timeout_s: float) -> float:
        """Return a model's timeout in seconds, limited to the allowed range."""
        return min(max(timeout_s, self.min_timeout_s), self.max_timeout_s)
