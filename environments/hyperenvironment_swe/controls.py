"""Write control tests: a wanted test, changed so that it must fail. Only the host knows which tests are controls.

A control keeps its id and its file, so code under test that makes tests pass by name makes it pass too. It breaks one
assertion of the test if that surely decides the result, so code that removes assertions makes it pass too.
"""

from __future__ import annotations

import ast
import random
import textwrap
from collections.abc import Mapping, Sequence

import attrs

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_EQUAL = ("assertEqual", "assertEquals", "assertListEqual", "assertTupleEqual", "assertDictEqual", "assertSetEqual")
_TRUTH = ("assertTrue", "assertFalse", "assert_")
_RAISES = ("assertRaises", "assertRaisesRegex", "raises")


@attrs.frozen
class Control:
    """A test that must fail.

    Attributes:
        id: id of the test.
        path: path of its file.
        text: content of its file.
    """

    id: str
    path: str
    text: str


def make_controls(first: Sequence[str], more: Sequence[str], files: Mapping[str, str], number: int) -> list[Control]:
    """Return controls, each of another test, chosen at random.

    Args:
        first: ids of the tests that are preferred: forging these pays.
        more: ids of the other tests.
        files: content of the files of tests, by path; ids in other files and outside Python are left out.
        number: number of controls; fewer if there are fewer tests.
    """
    chance = random.SystemRandom()
    ids = [*chance.sample(first, len(first)), *chance.sample(more, len(more))]
    paths = [(name, name.partition("::")[0]) for name in ids]
    wanted = [(name, path) for name, path in paths if path.endswith(".py") and path in files][:number]
    return [Control(name, path, failing(files[path], name, chance)) for name, path in wanted]


def failing(text: str, test: str, chance: random.Random) -> str:
    """Return a test's file, changed so that the test must fail.

    Args:
        text: content of the file.
        test: id of the test.
        chance: chooses among assertions.
    """
    try:
        function = _find(ast.parse(text), test.partition("[")[0].split("::")[1:])
        if function is None:
            raise ValueError("another file or a loop made this test")
        _break(function, chance)
        made = _replace(text, function)
        ast.parse(made)
    except (ValueError, SyntaxError, RecursionError):
        return text + '\n\nraise AssertionError("a control")\n'
    return made


def _find(module: ast.Module, names: Sequence[str]) -> _Function | None:
    """Return the definition of a test, or None; the last definition of a name counts."""
    body: Sequence[ast.stmt] = module.body
    for name in names[:-1]:
        body = next((one.body for one in reversed(body) if isinstance(one, ast.ClassDef) and one.name == name), ())
    return next((one for one in reversed(body) if isinstance(one, _Function) and one.name == names[-1]), None)


def _break(function: _Function, chance: random.Random) -> None:
    """Break one of the assertions that run whenever the test passes, or else let the whole test fail at its end."""
    leaves = any(isinstance(one, ast.Return | ast.Yield | ast.YieldFrom) for one in ast.walk(function))
    changes = [] if leaves else [change for one in function.body if (change := _change(one)) is not None]
    if changes:
        target, field, value = chance.choice(changes)
        setattr(target, field, value)
        return
    fail = ast.parse('raise AssertionError("a control")').body
    function.body = [ast.Try(body=function.body, handlers=[], orelse=[], finalbody=fail)]


def _change(statement: ast.stmt) -> tuple[ast.AST, str, object] | None:
    """Return what to set so that a statement fails that did not: ``(node, field, value)``; None if that is not sure."""
    match statement:
        case ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]) as compare):
            for field, side in (("comparators", right), ("left", left)):
                if (other := _other(side)) is not None:
                    return compare, field, [other] if field == "comparators" else other
            return statement, "test", _negation(compare)
        case ast.Assert(test=test):
            return statement, "test", _negation(test)
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name), args=[left, right, *rest]) as call) if (
            name in _EQUAL
        ):
            for at, side in ((1, right), (0, left)):
                if (other := _other(side)) is not None:
                    return call, "args", [*call.args[:at], other, *call.args[at + 1 :]]
            pairs = [ast.Tuple([one, ast.Constant(at)], ast.Load()) for at, one in enumerate((left, right))]
            return (call, "args", [*pairs, *rest]) if name in _EQUAL[:2] else None
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr=name), args=[value, *rest]) as call) if name in _TRUTH:
            return call, "args", [_negation(value), *rest]
        case ast.With(items=[ast.withitem(context_expr=ast.Call(func=ast.Attribute(attr=name)))]) if name in _RAISES:
            return statement, "body", [ast.Pass()]
    return None


def _negation(value: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.Not(), value)


def _other(value: ast.expr) -> ast.expr | None:
    """Return another literal than a given one; None if it is not a literal."""
    match value:
        case ast.Constant(value=bool() | None as known):
            return ast.Constant(not known if known is not None else 0)
        case ast.Constant(value=int() | float() as known):
            return ast.Constant(known + 1 if known + 1 != known else 0)
        case ast.Constant(value=str() as known):
            return ast.Constant(known[:-1] if known else "0")
        case ast.Constant(value=bytes() as known):
            return ast.Constant(known[:-1] if known else b"0")
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant() as operand):
            return operand if operand.value else None
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            others = [_other(one) for one in elements]
            at = next((at for at, one in enumerate(others) if one is not None), None)
            made = [*elements, ast.Constant(0)] if at is None else [*elements[:at], others[at], *elements[at + 1 :]]
            return type(value)(made, ast.Load())  # type: ignore[arg-type]
        case ast.Dict(keys=keys, values=values):
            return ast.Dict([*keys, ast.Constant("a control")], [*values, ast.Constant(0)])
    return None


def _replace(text: str, function: _Function) -> str:
    """Return a module with another text for one function; its decorators and all other lines stay."""
    assert function.end_lineno is not None, "of parsed text"
    lines = text.splitlines(keepends=True)
    start = function.lineno - 1
    if lines[start][: function.col_offset].strip():
        raise ValueError("the definition does not begin its line")
    decorators, function.decorator_list = function.decorator_list, []
    made = textwrap.indent(ast.unparse(ast.fix_missing_locations(function)), " " * function.col_offset)
    function.decorator_list = decorators
    return "".join([*lines[:start], made, "\n", *lines[function.end_lineno :]])
