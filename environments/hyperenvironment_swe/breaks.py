"""Find the change of a test that makes it fail: a few characters of one assertion, and nothing
around them.

The changed text is one that an author could have written: another digit or letter in a literal, the
opposite operator.
"""

from __future__ import annotations

import ast
import builtins
import random
import re
import string
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_EQUAL = (
    "assertEqual",
    "assertEquals",
    "assertListEqual",
    "assertTupleEqual",
    "assertDictEqual",
    "assertSetEqual",
)
_OPPOSITES = (
    ("assertEqual", "assertNotEqual"),
    ("assertTrue", "assertFalse"),
    ("assertIs", "assertIsNot"),
    ("assertIsNone", "assertIsNotNone"),
    ("assertIn", "assertNotIn"),
    ("assertIsInstance", "assertNotIsInstance"),
    ("assertEquals", "assertNotEquals"),
)
_OPPOSITE = {
    **dict(_OPPOSITES),
    **{right: left for left, right in _OPPOSITES},
    "assert_": "assertFalse",
}
_OPERATORS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Lt: ("<", ">="),
    ast.GtE: (">=", "<"),
    ast.Gt: (">", "<="),
    ast.LtE: ("<=", ">"),
    ast.Is: (r"\bis\b", "is not"),
    ast.IsNot: (r"\bis\s+not\b", "is"),
    ast.In: (r"\bin\b", "not in"),
    ast.NotIn: (r"\bnot\s+in\b", "in"),
}
_LOOSE = (ast.BoolOp, ast.IfExp, ast.Lambda, ast.NamedExpr)  # they bind less tightly than "not"
_RAISES = ("assertRaises", "assertRaisesRegex", "raises")
_RAISED = (TypeError, ValueError, KeyError, IndexError, AttributeError)
_TRANSPARENT = (
    "open",
    "subTest",
    "warns",
    "catch_warnings",
    "TemporaryDirectory",
    "NamedTemporaryFile",
    "StringIO",
)
_ALPHABETS = (string.digits, string.ascii_lowercase, string.ascii_uppercase)
_FAIL = "assert False"


class Edit(NamedTuple):
    """A change of a text.

    Attributes:
        start: offset of the first character that is replaced.
        end: offset behind the last one.
        new: the replacement.
    """

    start: int
    end: int
    new: str


def edited(text: str, edits: Iterable[Edit]) -> str:
    """Return a text with edits, which do not overlap."""
    parts = []
    at = 0
    for start, end, new in sorted(edits):
        parts += [text[at:start], new]
        at = end
    return "".join(parts) + text[at:]


def failing_edits(text: str, test: str, chance: random.Random) -> tuple[Edit, ...]:
    """Return changes of a test's file that make the test fail.

    Args:
        text: content of the file.
        test: id of the test.
        chance: chooses among assertions.
    """
    try:
        function = _find(ast.parse(text), test.partition("[")[0].split("::")[1:])
        if function is None:
            raise ValueError("another file or a loop made this test")
        edit = _break(_Source(text), function, chance)
        edits = (edit,) if edit else _fail_at_end(_Source(text), function)
        ast.parse(edited(text, edits))
    except (ValueError, SyntaxError, RecursionError):
        newline = _newline(text)
        return (Edit(len(text), len(text), f"{newline * 2}{_FAIL}{newline}"),)
    return edits


def functions_of(text: str, chance: random.Random) -> Iterator[tuple[str, Edit | None]]:
    """Yield the name of each function in a file, with a change that breaks one of its assertions if
    it has one.

    Args:
        text: content of the file; without any function if it is not Python.
        chance: chooses among assertions.
    """
    try:
        module = ast.parse(text)
        source = _Source(text)
    except (ValueError, SyntaxError, RecursionError):
        return
    for body in (module.body, *(one.body for one in module.body if isinstance(one, ast.ClassDef))):
        for one in body:
            if isinstance(one, _Function):
                yield one.name, _break(source, one, chance)


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


class _Source:
    """The text that a tree was parsed from."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._lines = re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", text)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def start(self, node: ast.expr | ast.stmt) -> int:
        """Return the offset of the first character of a node."""
        return self._offset(node.lineno, node.col_offset)

    def end(self, node: ast.expr | ast.stmt) -> int:
        """Return the offset behind the last character of a node."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._offset(node.end_lineno, node.end_col_offset)

    def _offset(self, line: int, column: int) -> int:
        """Return the offset of a position; a column counts bytes of UTF-8."""
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())


def _find(module: ast.Module, names: Sequence[str]) -> _Function | None:
    """Return the definition of a test, or None; the last definition of a name counts."""
    body: Sequence[ast.stmt] = module.body
    for name in names[:-1]:
        body = next(
            (
                one.body
                for one in reversed(body)
                if isinstance(one, ast.ClassDef) and one.name == name
            ),
            (),
        )
    return next(
        (one for one in reversed(body) if isinstance(one, _Function) and one.name == names[-1]),
        None,
    )


def _break(source: _Source, function: _Function, chance: random.Random) -> Edit | None:
    """Return a change of one of the assertions that run whenever the test passes; None if none
    surely does.
    """
    if any(True for _ in _leaves(function.body)):
        return None
    changes = [list(_changes(source, one, chance)) for one in _sure(function.body)]
    changes = [one for one in changes if one]
    return chance.choice(chance.choice(changes)) if changes else None


def _leaves(body: Iterable[ast.AST]) -> Iterator[ast.stmt | ast.expr]:
    """Yield what leaves a function before its end, without that of functions inside it."""
    for one in body:
        if isinstance(one, ast.Return | ast.Yield | ast.YieldFrom):
            yield one
        elif not isinstance(one, _Function | ast.Lambda | ast.ClassDef):
            yield from _leaves(ast.iter_child_nodes(one))


def _sure(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a body that surely run, those below context managers that hide no
    failure too.
    """
    for one in body:
        yield one
        if isinstance(one, ast.With) and all(
            _called(item.context_expr) in _TRANSPARENT for item in one.items
        ):
            yield from _sure(one.body)


def _called(value: ast.expr) -> str:
    """Return the last name of the function that is called, or ""."""
    match value:
        case ast.Call(func=ast.Attribute(attr=name)) | ast.Call(func=ast.Name(id=name)):
            return name
    return ""


def _fail_at_end(source: _Source, function: _Function) -> tuple[Edit, ...]:
    """Return changes that let a function fail wherever it leaves.

    Raises:
        ValueError: it is a generator.
    """
    leaves = list(_leaves(function.body))
    if not all(isinstance(one, ast.Return) for one in leaves):
        raise ValueError("a generator")
    last = function.body[-1]
    before = source.text[: source.start(last)]
    indent = before[len(before.rstrip(" \t")) :]
    edits = [Edit(source.start(one), source.end(one), _FAIL) for one in leaves]
    end = source.end(last)
    return (
        tuple(edits)
        if last in leaves
        else (*edits, Edit(end, end, _newline(source.text) + indent + _FAIL))
    )


def _changes(source: _Source, statement: ast.stmt, chance: random.Random) -> Iterator[Edit]:
    """Yield the changes by which a statement surely fails that did not."""
    match statement:
        case ast.Assert(
            test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]) as compare
        ):
            others = list(_literals(source, (left, right), chance))
            yield from others or [_negation(source, compare)]
        case ast.Assert(test=test):
            yield _negation(source, test)
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name) as function, args=args)):
            others = (
                list(_literals(source, args[:2], chance))
                if name in _EQUAL and len(args) > 1
                else []
            )
            if name in _OPPOSITE and not others:
                others = [
                    Edit(source.end(function) - len(name), source.end(function), _OPPOSITE[name])
                ]
            yield from others
        case ast.With(
            items=[ast.withitem(context_expr=ast.Call(args=[ast.Name(id=raised), *_]) as call)]
        ):
            expected = getattr(builtins, raised, None)
            if _called(call) in _RAISES and isinstance(expected, type):
                apart = [
                    one
                    for one in _RAISED
                    if not (issubclass(one, expected) or issubclass(expected, one))
                ]
                if apart:
                    yield Edit(
                        source.start(call.args[0]),
                        source.end(call.args[0]),
                        chance.choice(apart).__name__,
                    )


def _negation(source: _Source, test: ast.expr) -> Edit:
    """Return the change of a condition to its opposite."""
    start = source.start(test)
    end = source.end(test)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        pattern, opposite = _OPERATORS[type(test.ops[0])]
        first = source.end(test.left)
        last = source.start(test.comparators[0])
        if len(found := list(re.finditer(pattern, source.text[first:last]))) == 1:
            return Edit(first + found[0].start(), first + found[0].end(), opposite)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        blanks = re.compile(r"not[ \t]*").match(source.text, start)
        return Edit(start, blanks.end() if blanks else start + len("not"), "")
    if isinstance(test, _LOOSE):
        return Edit(start, end, f"not ({source.text[start:end]})")
    return Edit(start, start, "not ")


def _literals(source: _Source, values: Iterable[ast.expr], chance: random.Random) -> Iterator[Edit]:
    """Yield changes of literals, so that each value becomes unequal to itself; nothing for other
    values.
    """
    for value in values:
        start = source.start(value)
        end = source.end(value)
        match value:
            case ast.Constant(value=known):
                if (other := _other(source.text[start:end], known, chance)) is not None:
                    yield Edit(start, end, other)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant() as operand):
                yield from _literals(source, [operand], chance)
            case ast.List(elts=[]) | ast.Tuple(elts=[]):
                yield Edit(start, end, "[0]" if isinstance(value, ast.List) else "(0,)")
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                yield from _literals(source, elements, chance)
            case ast.Dict(keys=[]):
                yield Edit(start, end, "{0: 0}")
            case ast.Dict(keys=keys, values=inner):
                constants = {key.value for key in keys if isinstance(key, ast.Constant)}
                if len(constants) == len(keys):
                    yield from _literals(source, inner, chance)


def _other(text: str, known: object, chance: random.Random) -> str | None:
    """Return the text of another literal, which differs in one character where that can be; None if
    there is none.
    """
    if known is None or isinstance(known, bool):
        return str(not known) if known is not None else "False"
    if not isinstance(known, int | float | str | bytes):
        return None
    alphabets = _ALPHABETS if isinstance(known, str | bytes) else _ALPHABETS[:1]
    places = [
        (at, alphabet) for at, one in enumerate(text) for alphabet in alphabets if one in alphabet
    ]
    # no part of an escape
    places = [(at, alphabet) for at, alphabet in places if not text[:at].endswith("\\")]
    for at, alphabet in chance.sample(places, len(places)):
        letter = chance.choice([one for one in alphabet if one != text[at]])
        if _differs(made := text[:at] + letter + text[at + 1 :], known):
            return made
    made = f"{text[:-1]}{chance.choice(string.ascii_lowercase)}{text[-1]}"
    return made if _differs(made, known) else None


def _differs(text: str, known: object) -> bool:
    """Return whether a text is a literal of the same type as a known value, and of another
    value.
    """
    try:
        made = ast.literal_eval(f"({text}\n)")
    except (ValueError, SyntaxError):
        return False
    odd = isinstance(known, int) and re.match(r"0\d", text)  # 00 is a number that nobody writes
    return type(made) is type(known) and made != known and not odd
