"""Parameters of tests of which only `make test-all` uses all."""

from __future__ import annotations

from typing import Any

import pytest


def first_quick(*values: Any, quick: int = 1) -> list[Any]:
    """Return parameters for ``pytest.mark.parametrize``: the first ones as they are, the others
    marked slow.
    """
    slow = [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow)
        for value in values[quick:]
    ]
    return [*values[:quick], *slow]
