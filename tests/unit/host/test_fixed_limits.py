"""No number of seconds limits a call of an engine, except in the table of the limits."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDERS = (
    "runtimes",
    *(f"hyperruntime/{name}" for name in ("gpu", "images", "reclaim", "exec", "host")),
)
# Names of parameters, fields and variables that hold a limit.
LIMIT = re.compile(
    r"(\w*_)?(timeout|deadline|until|patience)(_s|_seconds)?|(\w*_)?(limit|grace|wait|most|within)_s"
)
SECONDS = re.compile(r"\w*(_S|_SECONDS|TIMEOUT|DEADLINE)")
# Calls whose first or second argument is a limit.
WAITS = frozenset(
    (
        *(
            "wait",
            "wait_end",
            "wait_for",
            "wait_until",
            "join",
            "acquire",
            "result",
            "communicate",
            "reap",
            "select",
        ),
        *(
            "timeout",
            "timeout_at",
            "settimeout",
            "setdefaulttimeout",
            "fail_after",
            "move_on_after",
        ),
    )
)
WITHIN = ("min", "max", "float", "int")
# Each place, with the reason why its limit is fixed.
ALLOWED = {
    "host/process.py: _OTHERS_S": "others that have the output of an ended program",
    "host/engine_driver.py: self.shell.wait(0.5)": "exit code of an ended shell",
    "hyperruntime_docker/container.py: _END_TIMEOUT_S": "exit code or last words of an ended shell",
    "host/engine_program.py: shell.wait(1.0)": "exit code of an ended shell",
    "hyperruntime_podman/container.py: _REMOVE_AGAIN_S": "another attempt follows",
    "hyperruntime_docker/container.py: _REMOVAL_AGAIN_S": "another attempt follows",
    "hyperruntime_docker/client.py: _LONG_TIMEOUT_S": "a build that sends nothing",
    "hyperruntime_docker/trial.py: _PROGRAM_TIMEOUT_S": "a day; the caller has a shorter one",
    "hyperruntime_podman/images.py: _TIDY_S": "a cancelled build is killed after it",
    "images/packages/network.py: _REACH_S": "a server that is silent",
    "images/packages/requirements_image.py: _BUILD_S": "a build, of any size",
    "images/packages/wheels.py: _BUILD_S": "a build, of any size",
    "images/packages/wheels.py: _SEARCH_S": "a search; what was found by then is reported",
    "exec/execution.py: _START_TRIES_S": "a pids limit is reached",
    "exec/persistent/shell.py: _START_TRIES_S": "a pids limit is reached",
    "exec/persistent/shell.py: self._turn.acquire(timeout=0.2)": "looks again",
    "exec/persistent/shell.py: self._turn.acquire(timeout=-1 if cancel_fd is None else 0.05)": "looks again",
    "exec/session.py: self._ready.wait(0.05)": "looks again",
    "host/disk.py: _TICK_S": "looks again",
    "exec/spawn/terminal.py: _TRY_AGAIN_S": "looks again",
    "host/watchdog.py: _CALM_S": "looks again",
    "host/watchdog.py: _NEAR_S": "looks again",
    "images/bootstrap.py: _DAY_S": "no limit: a date in whole days",
    "exec/execution.py: _BRIEF_S": "looks again",
    "exec/execution.py: _HEARTBEAT_S": "looks again",
    "exec/killers.py: _ANSWER_S": "then the host kills too",
    "exec/killers.py: _DYING_S": "asks again",
    "exec/streams.py: _GRACE_S": "a promise: output after the end of a command",
    "exec/session.py: self._over.wait(2)": "the container is gone",
    "exec/spawn/process.py: _END_S": "then the command is cancelled",
    "exec/spawn/terminal.py: _END_S": "exit code of an ended command",
    "host/batch_job.py: _ASK_S": "then the job counts as alive",
    "host/process.py: _REAP_S": "the program was killed",
    "host/owner.py: reap(self._guard, 5)": "reaps an ended guard; nothing depends on it",
    "host/keeper.py: reap(self._process, 5)": "reaps an ended keeper; nothing depends on it",
}


def is_number(node: ast.expr | None) -> bool:
    """Return whether an expression is a number other than 0, or is computed from numbers only."""
    if isinstance(node, ast.BinOp):
        return is_number(node.left) and is_number(node.right)
    return isinstance(node, ast.Constant) and type(node.value) in (int, float) and node.value != 0


def constants_of(tree: ast.Module) -> frozenset[str]:
    """Return the names of a module and of its classes whose values are numbers."""
    bodies = (tree.body, *(node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef)))
    found = set()
    for node in (node for body in bodies for node in body):
        if isinstance(node, ast.Assign | ast.AnnAssign) and is_number(node.value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {
                target.id
                for target in targets
                if isinstance(target, ast.Name) and target.id.isupper()
            }
    return frozenset(found)


def called(node: ast.expr) -> str:
    """Return the last part of the name of what a call calls."""
    function = node.func if isinstance(node, ast.Call) else node
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def numbers_in(node: ast.expr, constants: frozenset[str]) -> Iterator[str]:
    """Yield the constants in a value, and "" for each other number; nothing for what grows with the
    overload.
    """
    if is_number(node):
        yield ""
    elif isinstance(node, ast.Name | ast.Attribute):
        name = called(node)
        yield from (name,) if name in constants else ()
    elif isinstance(node, ast.BinOp) and any(
        called(side) == "overload" for side in (node.left, node.right)
    ):
        return
    else:
        yield from (name for part in _parts(node) for name in numbers_in(part, constants))


def _parts(node: ast.expr) -> list[ast.expr]:
    """Return the expressions whose values make the value of another one."""
    if isinstance(node, ast.IfExp):
        return [node.body, node.orelse]
    if isinstance(node, ast.BinOp | ast.BoolOp):
        return [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
    return node.args if isinstance(node, ast.Call) and called(node) in WITHIN else []


def _named(args: list[ast.expr], constants: frozenset[str]) -> Iterator[ast.expr]:
    yield from (arg for arg in args if any(map(SECONDS.fullmatch, numbers_in(arg, constants))))


def limits_in(node: ast.AST, constants: frozenset[str]) -> Iterator[ast.expr]:
    """Yield the values that a node uses as limits."""
    if isinstance(node, ast.Call):
        yield from (word.value for word in node.keywords if word.arg and LIMIT.fullmatch(word.arg))
        yield from node.args[:2] if called(node) in WAITS else _named(node.args, constants)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        known = node.args
        least = len(known.args) - len(known.defaults)
        defaults = [*zip(known.args[least:], known.defaults, strict=True)]
        defaults += [
            (arg, value)
            for arg, value in zip(known.kwonlyargs, known.kw_defaults, strict=True)
            if value
        ]
        yield from (value for arg, value in defaults if LIMIT.fullmatch(arg.arg))
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if node.value is not None and any(LIMIT.fullmatch(called(target)) for target in targets):
            yield node.value
    elif (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Add)
        and called(node.left) == "monotonic"
    ):
        yield node.right


def fixed_limits(text: str) -> set[str]:
    """Return the fixed limits of a module: the names of constants, and the code around other
    numbers.
    """
    tree = ast.parse(text)
    constants = constants_of(tree)
    return {
        name or ast.unparse(node)
        for node in ast.walk(tree)
        if not (isinstance(node, ast.Call) and called(node) in ("sleep", *WITHIN))
        for value in limits_in(node, constants)
        for name in numbers_in(value, constants)
    }


@pytest.mark.parametrize(
    "text",
    [
        "run(args, timeout_s=0.5)",
        "run(args, timeout_s=min(5.0, left))",
        "run(args, timeout_s=5 if slow else limit_s('', 'call'))",
        "run(args, timeout_s=left + 5)",
        "event.wait(5)",
        "lock.acquire(True, 5)",
        "lock.acquire(timeout=5)",
        "async def f():\n    await asyncio.wait_for(work, 5)",
        "deadline = time.monotonic() + 5",
        "until = min(time.monotonic() + 5, other)",
        "def f(timeout_s: float = 5): pass",
        "class A:\n    END_S = 5\n    def f(self):\n        event.wait(self.END_S)",
        "END_S = 5.0\nask('ping', END_S)",
        "END_S = 5.0\nread(pipe, END_S if last else limit_s(NAME, 'output'))",
        "END_S = 5.0\nuntil = time.monotonic() + END_S",
    ],
)
def test_each_form_of_a_fixed_limit_is_found(text: str) -> None:
    assert fixed_limits(text)


@pytest.mark.parametrize(
    "text",
    [
        "run(args, timeout_s=limit_s(NAME, 'call'))",
        "run(args, timeout_s=left_s + limit_s(NAME, 'call'))",
        "END_S = 5.0\nuntil = time.monotonic() + END_S * overload()",
        "lock.acquire(timeout=0)",
        "time.sleep(5)",
        "','.join(names)",
        "def f(timeout_s: float | None = None): pass",
    ],
)
def test_a_limit_that_grows_is_none(text: str) -> None:
    assert not fixed_limits(text)


def test_no_driver_has_a_time_limit_of_its_own() -> None:
    """A number of seconds that limits a call does not grow on a slow machine; the table has all
    that do.
    """
    found = {
        f"{path.relative_to(ROOT / folder.partition('/')[0])}: {limit}"
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        for limit in fixed_limits(path.read_text())
    }
    assert sorted(found - ALLOWED.keys()) == [], (
        "take limit_s() of hyperruntime.host.engine_limits, or say why not"
    )
    assert sorted(ALLOWED.keys() - found) == [], "no longer there"
