"""Directives of Sphinx that put the rows of ``reference.py`` into pages of reStructuredText.

``errors-table``; ``keys MODULE:CLASS``; ``options COMMAND``; ``public-names MODULE...``.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from docutils import nodes
from docutils.parsers.rst import Directive
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from docs.site.reference import Row, error_rows, key_rows, option_rows, public_names


class _Generated(SphinxDirective):
    """Base of directives whose content is text in reStructuredText."""

    required_arguments = 0
    optional_arguments = 1
    final_argument_whitespace = True

    def text(self) -> str:
        """Return the text that takes the place of the directive."""
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        """Return the nodes of the text."""
        source = f"<{self.name} {' '.join(self.arguments)}>"
        box = nodes.container()
        self.state.nested_parse(
            StringList(self.text().splitlines(), source=source), 0, box, match_titles=True
        )
        children: list[nodes.Node] = box.children
        return children


class ErrorsTable(_Generated):
    """A table of all errors."""

    def text(self) -> str:
        """Return the table."""
        rows = error_rows()
        public = [row for row in rows if row.module == "hyperruntime.errors"]
        others = [row for row in rows if row.module != "hyperruntime.errors"]
        lines = table(
            ("error", "exit code", "meaning"),
            ((row.name, row.default, row.meaning) for row in public),
        )
        lines += ["", "Of single features:", ""]
        lines += table(
            ("error", "exit code", "meaning"),
            ((f"{row.module}.{row.name}", row.default, row.meaning) for row in others),
        )
        return "\n".join(lines)


class Keys(_Generated):
    """The keys of a table of a file that an attrs class reads."""

    def text(self) -> str:
        """Return the table."""
        return "\n".join(_keys(key_rows(self.arguments[0])))


class Options(_Generated):
    """The options of a command as keys of a file."""

    def text(self) -> str:
        """Return the table."""
        rows = [_literal_help(row) for row in option_rows(self.arguments[0])]
        return "\n".join(_keys(rows))


class PublicNames(_Generated):
    """The public names of modules, from their docstrings."""

    def text(self) -> str:
        """Return directives of autodoc."""
        homes = public_names()
        lines: list[str] = []
        for module in self.arguments[0].split():
            for name in homes[module]:
                kind = "autoclass" if name[0].isupper() else "autofunction"
                lines.append(f".. {kind}:: hyperruntime.{name}")
                lines += ["   :members:", ""] if kind == "autoclass" else [""]
        return "\n".join(lines)


def _keys(rows: Iterable[Row]) -> list[str]:
    return table(
        ("key", "default", "meaning"), ((row.name, row.default, row.meaning) for row in rows)
    )


def _literal_help(row: Row) -> Row:
    """Return a row whose help text is plain text but for its `code`."""
    words = (
        row.meaning.replace("\\", "\\\\").replace("*", "\\*").replace("|", "\\|").replace("`", "``")
    )
    return Row(name=row.name, default=row.default, meaning=words.replace("_ ", "\\_ "))


def table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    """Return the lines of a table; the cells of its last column are text, the others literals.

    Args:
        heads: the heads of the columns.
        rows: the cells of each row.
    """
    lines = [".. list-table::", "   :header-rows: 1", "   :widths: 25 15 60", ""]
    for number, cells in enumerate((heads, *rows)):
        words = (
            cells
            if number == 0
            else (*(f"``{cell}``" if cell else "" for cell in cells[:-1]), cells[-1])
        )
        for place, cell in enumerate(words):
            wrapped = textwrap.wrap(cell, 100, break_long_words=False, break_on_hyphens=False) or [
                ""
            ]
            lines.append(f"   {'* -' if place == 0 else '  -'} {wrapped[0]}".rstrip())
            lines += [f"       {line}" for line in wrapped[1:]]
    return lines


def _plain_help(app: Sphinx, ctx: object, lines: list[str]) -> None:
    """Make the text of a help, in which `code` has single backticks, reStructuredText."""
    for place, line in enumerate(lines):
        if "``" not in line and not line.lstrip().startswith((".. ", ":")):
            lines[place] = line.replace("`", "``").replace("*", "\\*")


def _example_block(app: Sphinx, ctx: object, lines: list[str]) -> None:
    """Make the examples at the end of a help a block of code."""
    examples = [line.removeprefix("|").strip() for line in lines if line.strip()]
    if examples and examples[0] == "Examples:":
        lines[:] = [
            "Examples",
            "",
            ".. code-block:: bash",
            "",
            *(f"   {line}" for line in examples[1:]),
            "",
        ]


def setup(app: Sphinx) -> dict[str, object]:
    """Register the directives."""
    directives: dict[str, type[Directive]] = {
        "errors-table": ErrorsTable,
        "keys": Keys,
        "options": Options,
        "public-names": PublicNames,
    }
    for name, directive in directives.items():
        app.add_directive(name, directive)
    for part in ("description", "options", "arguments"):
        app.connect(f"sphinx-click-process-{part}", _plain_help)
    app.connect("sphinx-click-process-epilog", _example_block)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
