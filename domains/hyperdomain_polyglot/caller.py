"""Make the requested calls inside a container and print their outcomes. Standard library only.

The program reads ``{"module", "calls": [{"call", "args"}]}`` and prints one JSON line per call:
``{"number", "value"}`` or ``{"number", "raises": [names of the classes]}``. It does not know the
expected results.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any


def main() -> None:
    """Answer the request on standard input; output of the tested program goes to standard error."""
    request = json.load(sys.stdin)
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.path.insert(0, os.getcwd())
    for number, call in enumerate(request["calls"]):
        output.write(json.dumps({"number": number, **outcome(request["module"], call)}) + "\n")
        output.flush()


def outcome(module: str, call: dict[str, Any]) -> dict[str, Any]:
    """Return the value of a call, or the class names of the exception that it raised."""
    try:
        value = getattr(importlib.import_module(module), call["call"])(*call["args"])
        json.dumps(value)
        return {"value": value}
    except BaseException as error:  # noqa: BLE001 - a program may raise anything, SystemExit too
        return {"raises": [kind.__name__ for kind in type(error).__mro__]}


if __name__ == "__main__":
    main()
