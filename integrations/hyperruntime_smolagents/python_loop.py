"""Runs the code of an agent, text by text, in one namespace; the container's Python runs this file.

Each request and each reply is one line of JSON on streams that the code does not get. All that the
code and its child processes write goes to standard error, with the request's mark at the end. It
imports only the standard library, and runs with Python 3.8.
"""

from __future__ import annotations

import ast
import json
import linecache
import os
import signal
import sys
import traceback
import types
from typing import Any

_HALF = 32768  # characters of a traceback that are kept at each end


def run(code: str, name: str, variables: dict[str, Any]) -> str | None:
    """Run a text, and return its last expression's value as text."""
    linecache.cache[name] = (len(code), None, code.splitlines(True), name)
    tree = ast.parse(code, name)
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        del tree.body[-1]
    exec(compile(tree, name, "exec"), variables)  # noqa: S102
    if not isinstance(last, ast.Expr):
        return None
    value = eval(compile(ast.Expression(last.value), name, "eval"), variables)  # noqa: S307
    return None if value is None else repr(value)


def answer(code: str, name: str, variables: dict[str, Any]) -> dict[str, str | None]:
    """Run a text, and return the reply."""
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return {"output": run(code, name, variables)}
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    except BaseException as error:  # noqa: BLE001 - also of sys.exit and of an interrupt
        shown = error.__traceback__
        while shown is not None and shown.tb_frame.f_code.co_filename != name:
            shown = shown.tb_next
        text = "".join(traceback.format_exception(type(error), error, shown))
        if len(text) > 2 * _HALF:  # the value has all of the message
            text = text[:_HALF] + "\n[...]\n" + text[-_HALF:]
        return {"error": text, "kind": type(error).__name__, "value": str(error)}


def serve() -> None:
    """Take the standard streams from the code, and answer requests until their end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    for number, line in enumerate(requests):
        request = json.loads(line)
        reply = answer(request["code"], f"<code {number}>", main.__dict__)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os.write(2, request["mark"].encode())
        replies.write(json.dumps(reply).encode() + b"\n")
        replies.flush()


if __name__ == "__main__":
    serve()
