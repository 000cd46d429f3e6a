"""Write control tests: a wanted test, changed so that it must fail. Only the host knows which tests
are controls.

A control keeps its id and its file, so code under test that makes tests pass by name makes it pass
too. It breaks one assertion of the test if that surely decides the result, so code that removes
assertions makes it pass too. Only the characters of a literal or of an operator change. Other tests
of a file are changed in the same way, also in runs that are not controls, so that only the meaning
of a test distinguishes it from its control.
"""

from __future__ import annotations

import ast
import io
import random
import re
import tokenize
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import attrs

from hyperenvironment_swe.breaks import Edit, edited, failing_edits, functions_of

_NAME = re.compile(r"\w+")


@attrs.frozen
class Control:
    """A test that must fail.

    Attributes:
        id: id of the test.
        path: path of its file.
        edits: changes of its file.
    """

    id: str
    path: str
    edits: tuple[Edit, ...]


@attrs.frozen
class Variation:
    """Changes of a file of tests that do not matter to a test that runs: the judge makes some of
    them in each run.

    Attributes:
        breaks: name of a test function, and the change that would make it fail; made only while it
            does not run.
        ends: offsets of the ends of statements, where spaces mean nothing.
    """

    breaks: tuple[tuple[str, Edit], ...] = ()
    ends: tuple[int, ...] = ()


def make_controls(
    first: Sequence[str],
    more: Sequence[str],
    files: Mapping[str, str],
    number: int,
    chance: random.Random,
) -> list[Control]:
    """Return controls, each of another test, chosen at random.

    Args:
        first: ids of the tests that are preferred: forging these pays.
        more: ids of the other tests.
        files: content of the files of tests, by path; ids in other files and outside Python are
            left out.
        number: number of controls; fewer if there are fewer tests.
        chance: chooses tests and assertions.
    """
    ids = [*chance.sample(first, len(first)), *chance.sample(more, len(more))]
    paths = [(name, name.partition("::")[0]) for name in ids]
    wanted = [(name, path) for name, path in paths if path.endswith(".py") and path in files][
        :number
    ]
    return [Control(name, path, failing_edits(files[path], name, chance)) for name, path in wanted]


def make_variations(
    ids: Iterable[str], controls: Iterable[Control], files: Mapping[str, str], chance: random.Random
) -> dict[str, Variation]:
    """Return what may vary in the files of tests, by path.

    The function of a control varies, while other tests run, between its text and that of the
    control.

    Args:
        ids: ids of the tests that run.
        controls: the controls.
        files: content of the files of tests, by path.
        chance: chooses among assertions.
    """
    words = Counter(word for text in files.values() for word in _NAME.findall(text))
    known = {(one.path, function_name(one.id)): one.edits for one in controls}
    names: dict[str, set[str]] = {}
    for one in ids:
        names.setdefault(one.partition("::")[0], set()).add(function_name(one))
    made = {}
    for path in names.keys() & files.keys():
        # A test of another file may inherit its function from this one, and name it nowhere.
        elsewhere = {name for other, inside in names.items() if other != path for name in inside}
        if path.endswith(".py"):
            made[path] = _variation(path, files[path], words, elsewhere, known, chance)
    return made


def function_name(test: str) -> str:
    """Return the name of a test's function."""
    return test.partition("[")[0].rpartition("::")[2]


def _variation(
    path: str,
    text: str,
    words: Mapping[str, int],
    elsewhere: Collection[str],
    known: Mapping[tuple[str, str], tuple[Edit, ...]],
    chance: random.Random,
) -> Variation:
    """Return what may vary in a file: test functions that nothing else names, and the ends of
    statements.
    """
    breaks = []
    for name, edit in functions_of(text, chance):
        made = known.get((path, name), (edit,) if edit else ())
        inside = len(made) == 1 and made[0].start < len(text)
        if inside and words[name] == 1 and name.startswith("test") and name not in elsewhere:
            breaks.append((name, made[0]))
    found = Variation(breaks=tuple(breaks), ends=tuple(_ends(text)))
    return found if _is_harmless(text, found) else Variation()


def _is_harmless(text: str, found: Variation) -> bool:
    """Return whether a file with all its variations is still Python; one that never was has
    none.
    """
    spaces = [Edit(end, end, "  ") for end in found.ends]
    try:
        ast.parse(edited(text, [*(edit for _, edit in found.breaks), *spaces]))
    except (ValueError, SyntaxError, RecursionError):
        return False
    return True


def _ends(text: str) -> Collection[int]:
    """Return the offsets of the ends of the lines that end a statement, so that none is inside a
    string.
    """
    starts = [0]
    for line in io.StringIO(text, newline=""):
        starts.append(starts[-1] + len(line))
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text, newline="").readline))
    except (tokenize.TokenError, SyntaxError):
        return ()
    ends = [one.start for one in tokens if one.type == tokenize.NEWLINE and one.string]
    return [starts[line - 1] + column for line, column in ends]
