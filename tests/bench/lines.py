"""The size of the product at commits, side by side: lines of code in each folder, and lines of
functions and modules.

    python -m tests.bench.lines 519c92c HEAD

Code is what is left without docstrings, comments and blank lines. Each commit is first formatted in
the same way, with 120 columns, so that another line length does not change the count. The history
has to be there: a shallow clone has only its last commit.
"""

from __future__ import annotations

import ast
import io
import statistics
import subprocess
import sys
import tarfile
import tempfile
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = frozenset(
    ("hyperruntime", "runtimes", "trainers", "domains", "environments", "integrations")
)
_EXERCISES = ("domains/hyperdomain_polyglot/exercises/", "/tasks/")
_FORMAT = ["format", "--quiet", "--isolated", "--line-length", "120", "--target-version", "py311"]
_DENSE = ["--config", "format.skip-magic-trailing-comma=true"]
_NOT_CODE = frozenset(
    (
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    )
)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_WITH_DOCSTRINGS = (*_FUNCTIONS, ast.ClassDef, ast.Module)


def git(*arguments: str) -> bytes:
    return subprocess.run(
        ["git", "-C", str(ROOT), *arguments], check=True, stdout=subprocess.PIPE
    ).stdout


def sources(commit: str, chosen: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each Python file of the chosen folders, formatted again."""
    folders = chosen.intersection(git("ls-tree", "--name-only", commit).decode().split())
    with tempfile.TemporaryDirectory() as work:
        with tarfile.open(fileobj=io.BytesIO(git("archive", commit, *sorted(folders)))) as archive:
            archive.extractall(work, filter="data")
        subprocess.run([sys.executable, "-m", "ruff", *_FORMAT, *_DENSE, work], check=False)
        for path in sorted(Path(work).rglob("*.py")):
            name = str(path.relative_to(work))
            if not any(part in name for part in _EXERCISES):
                yield name, path.read_text()


def lines_of(node: ast.stmt | ast.expr) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def code_lines(text: str, tree: ast.Module) -> int:
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NOT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if isinstance(node, _WITH_DOCSTRINGS) and ast.get_docstring(node, clean=False) is not None:
            lines.difference_update(lines_of(node.body[0]))
    return len(lines)


def sizes(commit: str) -> Counter[str]:
    """Lines of code by folder, in all, and the medians of functions and modules, which count every
    line.
    """
    counted: Counter[str] = Counter()
    functions, modules = [], []
    for path, text in sources(commit, PRODUCT):
        tree = ast.parse(text)
        counted["/".join(path.split("/")[:-1][:2])] += code_lines(text, tree)
        functions += [
            len(lines_of(node)) for node in ast.walk(tree) if isinstance(node, _FUNCTIONS)
        ]
        if not path.endswith("/__init__.py"):
            modules.append(text.count("\n"))
    return counted + Counter(
        {
            "code in all": counted.total(),
            "tests, all lines": sum(
                text.count("\n") for _, text in sources(commit, frozenset(("tests",)))
            ),
            "a function, median": round(statistics.median(functions)),
            "a module, median": round(statistics.median(modules)),
        }
    )


def main(*commits: str) -> None:
    measured = [sizes(commit) for commit in commits]
    print(f"{'lines':40}", *(f"{commit[:12]:>12}" for commit in commits))
    for name in sorted(set().union(*measured), key=lambda each: (" " in each, each)):
        print(f"{name:40}", *(f"{size[name] or '-':>12}" for size in measured))


if __name__ == "__main__":
    main(*(sys.argv[1:] or ("HEAD",)))
