"""Values of columns, short in JSON."""

from __future__ import annotations

import math
from datetime import datetime

_DIGITS = 6


def number(value: object) -> float | int | None:
    """Return a number with six significant digits, whole ones as they are; None for anything
    else.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        if not math.isfinite(value):
            return None
    except OverflowError:  # an integer of hundreds of digits
        return None
    if isinstance(value, int):
        return value
    short = float(f"{value:.{_DIGITS}g}")
    return int(short) if short == int(short) and abs(short) < 10**_DIGITS else short


def time_of(text: str) -> float | None:
    """Return an ISO 8601 time as seconds since the epoch, rounded to 0.1 s; None if the text is not
    such a time.
    """
    try:
        return round(datetime.fromisoformat(text).timestamp(), 1)
    except ValueError:
        return None
