"""Checks of fields that another machine sends."""

from __future__ import annotations

from typing import Any

import attrs

from hyperruntime.errors import SpecError
from hyperruntime.json_values import is_number


@attrs.frozen
class Within:
    """A check of a field: a finite number within limits."""

    least: float
    most: float

    def __call__(self, instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:  # noqa: ANN401 - checked
        """Check a value, as an attrs validator."""
        if not is_number(value) or not self.least <= value <= self.most:
            raise SpecError(attribute.name, value, f"a number from {self.least:g} to {self.most:g}")


@attrs.frozen
class Line:
    """A check of a field: text without control characters, for logs and terminals."""

    most: int

    def __call__(self, instance: object, attribute: attrs.Attribute[Any], value: Any) -> None:  # noqa: ANN401 - checked
        """Check a value, as an attrs validator."""
        if not isinstance(value, str) or len(value) > self.most or not value.isprintable():
            raise SpecError(attribute.name, value, f"at most {self.most} printable characters")
