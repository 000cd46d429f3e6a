"""Read a ``.env`` file: lines of ``NAME=value``."""

from __future__ import annotations

import io


def parse_dotenv(text: str) -> dict[str, str]:
    """Return the variables that a text sets, as python-dotenv reads them; the last value of a name wins.

    Variable references in values are not expanded. A name without ``=`` sets nothing; invalid lines are logged and
    skipped.
    """
    from dotenv import dotenv_values

    found = dotenv_values(stream=io.StringIO(text), interpolate=False)
    return {name: value for name, value in found.items() if value is not None}
