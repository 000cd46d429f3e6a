"""Make the calls that are asked for, inside a container, and print what came of each. Standard library only.

Reads ``{"module", "calls": [{"call", "args"}]}``; prints one JSON line per call: ``{"number", "value"}`` or
``{"number", "raises": [names of the classes]}``. Nothing here knows what is right.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any


def main() -> None:
    """Answer the request on standard input; what the program prints goes to standard error."""
    request = json.load(sys.stdin)
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.path.insert(0, os.getcwd())
    for number, call in enumerate(request["calls"]):
        output.write(json.dumps({"number": number, **outcome(request["module"], call)}) + "\n")
        output.flush()


def outcome(module: str, call: dict[str, Any]) -> dict[str, Any]:
    """Return what came of one call."""
    try:
        value = getattr(importlib.import_module(module), call["call"])(*call["args"])
        json.dumps(value)
        return {"value": value}
    except BaseException as error:  # noqa: BLE001 - a program may raise anything, SystemExit too
        return {"raises": [kind.__name__ for kind in type(error).__mro__]}


if __name__ == "__main__":
    main()
