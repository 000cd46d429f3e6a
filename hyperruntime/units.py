"""Parse and print sizes and durations, and print texts of unknown origin."""

from __future__ import annotations

import re

from hyperruntime.errors import SpecError

KIB = 1024
MIB = 1024**2
GIB = 1024**3
_FACTORS = {"": 1, "k": KIB, "m": MIB, "g": GIB, "t": 1024**4}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_SECONDS = {"": 1.0, "s": 1.0, "ms": 0.001, "m": 60.0, "h": 3600.0}
_MAX_DIGITS = 20
_MOST_CHARS = 600
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|[smh]?)", re.IGNORECASE)


def parse_size(text: str, field: str = "size") -> int:
    """Return the number of bytes of a size such as ``512``, ``64k``, ``1.5GiB`` or ``2g`` (powers
    of 1024).

    Args:
        text: the size.
        field: name of the option or field, for the error.

    Raises:
        SpecError: the text is not a valid size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or len(match[1]) > _MAX_DIGITS:
        raise SpecError(field, text, "a number of bytes, or one with k, m, g or t, such as 512m")
    return int(float(match[1]) * _FACTORS[match[2].lower()])


def parse_duration(text: str, field: str = "duration") -> float:
    """Return the seconds of a duration such as ``10``, ``1.5s``, ``200ms``, ``5m`` or ``2h``.

    Args:
        text: the duration.
        field: name of the option or field, for the error.

    Raises:
        SpecError: the text is not a valid duration.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None or len(match[1]) > _MAX_DIGITS:
        raise SpecError(field, text, "a number of seconds, or one with ms, s, m or h, such as 5m")
    return float(match[1]) * _SECONDS[match[2].lower()]


def format_size(size_bytes: float) -> str:
    """Return a readable size such as ``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size_bytes) < KIB:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= KIB
    return f"{size_bytes:.1f} TiB"


def format_duration(duration_s: float) -> str:
    """Return a readable duration such as ``0.35s``, ``12.3s``, ``4m05s`` or ``2h03m``."""
    if duration_s < 1:
        return f"{duration_s:.2f}s"
    if duration_s < 60:
        return f"{duration_s:.1f}s"
    minutes, seconds = divmod(round(duration_s), 60)
    if minutes < 60:
        return f"{minutes}m{seconds:02d}s"
    return f"{minutes // 60}h{minutes % 60:02d}m"


def one_line(text: str) -> str:
    """Return untrusted text as one line that is safe to show on a terminal, at most 600 characters
    and " ...".
    """
    words = "".join(char if char.isprintable() else " " for char in text).split()
    line = " ".join(words)
    return line if len(line) <= _MOST_CHARS else line[:_MOST_CHARS] + " ..."
