"""Find JSON in a model's text: its answer, and tool calls of models without native calls.

Such a call has lines of its own, and a text may hold several::

    ```tool
    {"tool": "bash", "arguments": {"command": "ls"}}
    ```
"""

import json
import re

_OPENING = re.compile(r"(?m)^[ \t]*(?:`{3,}[ \t]*(?P<tag>\w*)[^\n`]*\n|<tool_call>)")
_BLANK = re.compile(r"\s*")
_CLOSING = re.compile(r"\s*(?:`{3,}|</tool_call>)")
_CLOSING_LINE = re.compile(r"(?m)^[ \t]*`{3,}[ \t]*$|</tool_call>")
_CALL_TAGS = ("tool", "tool_call")
_ANSWER_TAGS = ("", "json")
_DEPTH = 8
_NOTHING = object()


def _refuse_constant(name):
    raise ValueError(f"{name} is not valid JSON")


_DECODER = json.JSONDecoder(strict=False, parse_constant=_refuse_constant)


class Call:
    """A call of a tool: its name and arguments, or the problem with it; ``number`` is set for
    native calls.
    """

    def __init__(self, name, arguments, problem="", number=None):
        self.name = name
        self.arguments = arguments
        self.problem = problem
        self.number = number


def text_calls(text):
    """Return the calls in a text, in order; an invalid call has a problem."""
    value, _ = decode_at(text, _BLANK.match(text).end())
    if _is_call(value, certain=False):
        return [_call(value)]
    calls = []
    for tag, value, _ in blocks(text):
        certain = tag in _CALL_TAGS
        if _is_call(value, certain):
            calls.append(_call(value))
        elif certain:
            calls.append(Call(None, None, _problem(value)))
    return calls


def blocks(text):
    """Yield each block: its tag, the JSON value at its beginning (or ``_NOTHING``), and whether
    that is all of it.
    """
    at = 0
    while found := _OPENING.search(text, at):
        tag = "tool_call" if found["tag"] is None else found["tag"].casefold()
        begin = _BLANK.match(text, found.end()).end()
        value, end = decode_at(text, begin)
        closing = None if value is _NOTHING else _CLOSING.match(text, end)
        if closing is None:
            closing = _CLOSING_LINE.search(text, found.end() if value is _NOTHING else end)
            whole = value is not _NOTHING and not text[end:].strip()
        else:
            whole = True
        yield tag, value, whole
        at = closing.end() if closing else len(text)


def write_call(name, arguments):
    """Return the text of a call, as :func:`text_calls` reads it."""
    return f"```tool\n{json.dumps({'tool': name, 'arguments': arguments})}\n```"


def parse_arguments(text):
    """Return the arguments of a native call and '', or None and the problem."""
    try:
        value = json.loads(text or "{}", strict=False, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        return (
            None,
            f"the arguments are not valid JSON ({error}); if they were cut off, do less in one "
            "call",
        )
    problem = _wrong(value)
    return (None, problem) if problem else (value, "")


def answer(text):
    """Return whether a text holds a JSON value, and the value: the last block that is JSON, else
    the whole text.
    """
    found = [value for tag, value, whole in blocks(text) if whole and tag in _ANSWER_TAGS]
    if found:
        return True, found[-1]
    stripped = text.strip()
    value, end = decode_at(stripped, 0)
    return (True, value) if value is not _NOTHING and end == len(stripped) else (False, None)


def decode_at(text, at):
    """Return the JSON value that begins at an index and the index of its end; ``_NOTHING`` and
    ``at`` without one.
    """
    try:
        return _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError):
        return _NOTHING, at


def _is_call(value, certain):
    """Return whether a value is a call; without a tag (not ``certain``) it must have both keys of a
    call.
    """
    if not isinstance(value, dict):
        return False
    name = value.get("tool", value.get("name") if certain else None)
    return isinstance(name, str) and (certain or isinstance(value.get("arguments"), dict))


def _call(value):
    arguments = value.get("arguments", {})
    problem = _wrong(arguments)
    return Call(value.get("tool", value.get("name")), None if problem else arguments, problem)


def _wrong(arguments):
    """Return the problem of arguments, or ''."""
    if not isinstance(arguments, dict):
        return "the arguments must be a JSON object"
    return "the arguments are nested too deeply" if _deeper(arguments, _DEPTH) else ""


def _deeper(value, levels):
    if not isinstance(value, (dict, list)):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_deeper(one, levels - 1) for one in inner)


def _problem(value):
    if value is _NOTHING:
        return (
            'this call is not valid JSON; within texts, quotes must be written as \\" and line '
            "ends as \\n"
        )
    return 'a call must be {"tool": NAME, "arguments": {...}}'
