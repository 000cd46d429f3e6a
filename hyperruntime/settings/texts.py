"""Values from texts, as variables of the environment, options and queries of URLs have them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, get_args, get_origin

from hyperruntime.errors import SpecError
from hyperruntime.settings.reader import WORDS, fields_of, is_union

_TRUE = ("true", "1", "yes", "on")
_FALSE = ("false", "0", "no", "off")


def names(text: str) -> tuple[str, ...]:
    """Return the names in a text, which commas separate."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def of_text(kind: Any, text: str, field: str, *, none: Collection[str] = ()) -> Any:  # noqa: ANN401 - a type
    """Return the value of a type that a text stands for.

    Numbers and ``true`` or ``false`` are written as such; the items of a list are separated by
    commas, and those of a mapping are written ``K=V;K=V``. Of a type that may be a text or a list,
    only a text with a comma is a list. All other types, and unknown ones, are the text itself.

    Args:
        kind: the type, from an annotation.
        text: the text.
        field: name of the field, for the error.
        none: the words that stand for None, if the type allows it.

    Raises:
        SpecError: the text stands for no such value.
    """
    kinds = get_args(kind) if is_union(kind) else (kind,)
    if type(None) in kinds and text.strip().lower() in none:
        return None
    kinds = tuple(one for one in kinds if one is not type(None))
    form = get_origin(kinds[0] if len(kinds) == 1 or "," not in text else kinds[-1])
    if form in (tuple, list, Sequence):
        inner = (*get_args(kinds[-1]), str)[0]
        return (list if form is list else tuple)(
            of_text(inner, name, field) for name in names(text)
        )
    if form is Mapping:
        pairs = [part.partition("=") for part in text.split(";") if part.strip()]
        if any(not equals for _, equals, _ in pairs):
            raise SpecError(field, "...", "K=V;K=V")
        return {name.strip(): value for name, _, value in pairs}
    if bool in kinds and text.lower() in (*_TRUE, *_FALSE):
        return text.lower() in _TRUE
    plain = [] if str in kinds else [one for one in kinds if one in (int, float)]
    for number in plain:
        try:
            return number(text)
        except ValueError:
            continue
    if plain or bool in kinds:
        words = [WORDS[one] for one in kinds if one in WORDS] + [repr(word) for word in none]
        raise SpecError(field, text, " or ".join(words))
    return text


def read_text(kind: type, name: str, text: str) -> Any:  # noqa: ANN401
    """Return the JSON value for the text of a field in a query: ``true``, a number, or the text
    itself.

    Args:
        kind: the attrs class.
        name: the name of a field.
        text: the value as text.

    Raises:
        SpecError: the field has another type.
    """
    known = fields_of(kind).get(name)
    return text if known is None else of_text(known.type, text, name)
