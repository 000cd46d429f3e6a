"""No two drivers share a piece of code: what they share is in the core."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST_EQUAL_LINES = 12


class _CodeOnly(ast.NodeTransformer):
    """Removes docstrings and imports."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        body = getattr(node, "body", None)
        if isinstance(body, list):
            kept = [
                each
                for each in body
                if not isinstance(each, ast.Import | ast.ImportFrom) and not _is_text(each)
            ]
            node.body = kept or [ast.Pass()]  # type: ignore[attr-defined]
        return node


def _is_text(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def test_drivers_share_no_code_of_more_than_twelve_lines() -> None:
    places = defaultdict(set)
    for path in (ROOT / "runtimes").rglob("*.py"):
        lines = ast.unparse(_CodeOnly().visit(ast.parse(path.read_text()))).splitlines()
        code = [line.strip() for line in lines if line.strip()]
        for start in range(len(code) - MOST_EQUAL_LINES):
            places[tuple(code[start : start + MOST_EQUAL_LINES + 1])].add(path.relative_to(ROOT))
    assert len(places) > 1000
    assert [("\n".join(code), paths) for code, paths in places.items() if len(paths) > 1] == []
