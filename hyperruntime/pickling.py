"""Pickling and copying of values and errors: read-only mappings, errors with their fields."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from typing import Any


class FrozenMapping(Mapping[str, str]):
    """A read-only mapping that can be pickled, copied and hashed."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, str]) -> None:
        """Copy the items."""
        self._items = dict(items)

    def __getitem__(self, key: str) -> str:
        """Return the value of a key."""
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        """Return the keys in their order."""
        return iter(self._items)

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._items)

    def __hash__(self) -> int:
        """Return the same number for mappings that are equal, also in another order."""
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        """Return the items as those of a dict."""
        return repr(self._items)

    def __reduce__(self) -> tuple[type[FrozenMapping], tuple[dict[str, str]]]:
        """Return how to make an equal one."""
        return FrozenMapping, (self._items,)


def frozen_mapping(value: Mapping[str, str] | None) -> Mapping[str, str]:
    """Return a read-only copy of a mapping; None means an empty one."""
    return FrozenMapping(value or {})


def names_only(env: Mapping[str, str] | None) -> str:
    """Return the ``repr`` of an environment without its values, which may be secret; for attrs
    fields.
    """
    return "{" + ", ".join(f"{name!r}: ..." for name in env or ()) + "}"


def reduce_error(error: Exception) -> tuple[Any, ...]:
    """Return how to make an error again without calling its ``__init__``, which takes other
    arguments than ``args``.

    A field that cannot be pickled becomes its ``repr``: an error must reach the process that waits
    for it.
    """
    return _remake_error, (
        type(error),
        error.args,
        {name: _portable(value) for name, value in vars(error).items()},
    )


def _remake_error(
    kind: type[Exception], args: tuple[object, ...], fields: dict[str, object]
) -> Exception:
    error = kind.__new__(kind, *args)
    error.args = args
    vars(error).update(fields)
    return error


def _portable(value: object) -> object:
    try:
        pickle.dumps(value)
    except Exception:  # noqa: BLE001 - any class may refuse in its own way
        return repr(value)
    return value
