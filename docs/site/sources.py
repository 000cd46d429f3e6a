"""Links from pages to files of the repository outside of ``docs``.

Pages link them by their path, as a reader of the repository needs it. In the site, a page of the
repository's root is a page under ``project/``, and a source file or a folder is a page under
``source/``.
"""

from __future__ import annotations

import html
import posixpath
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx.application import Sphinx

from docs.site.links import PAGES, ROOT, SOURCE, rewrite


def _read(app: Sphinx, docname: str, content: list[str]) -> None:
    """Rewrite the links of a page before it is parsed; a page under ``project/`` gets the root's
    text first.
    """
    folder = posixpath.dirname(f"docs/{docname}")
    for name, page in PAGES.items():
        if page == docname:
            content[0], folder = (ROOT / name).read_text(), "."
            app.env.note_dependency(str(ROOT / name))
    if app.env.doc2path(docname).suffix == ".md":
        content[0] = rewrite(content[0], folder)


def _point(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Make links to sources relative to their page, and note which sources the site must show."""
    wanted: set[str] = app.env.__dict__.setdefault("hyperruntime_sources", set())
    for node in doctree.findall(nodes.reference):
        uri = node.get("refuri", "")
        if uri.startswith(SOURCE):
            path = uri.removeprefix(SOURCE).rstrip("/")
            wanted.add(path)
            node["refuri"] = posixpath.relpath(
                f"source/{path}.html", posixpath.dirname(docname) or "."
            )


def _pages(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield a page for each source file and each folder that a page links to, and for the files of
    such folders.
    """
    todo = sorted(app.env.__dict__.get("hyperruntime_sources", ()))
    shown: set[str] = set()
    while todo:
        path = todo.pop()
        if path in shown:
            continue
        shown.add(path)
        below = _files(ROOT / path) if (ROOT / path).is_dir() else []
        todo += [f"{path}/{name}" for name in below]
        body = _folder(path, below) if (ROOT / path).is_dir() else _source(path)
        yield (
            f"source/{path}",
            {"title": path, "body": f"<h1>{html.escape(path)}</h1>{body}"},
            "page.html",
        )


def _files(folder: Path) -> list[str]:
    return sorted(
        each.name for each in folder.iterdir() if each.is_file() and not each.name.startswith(".")
    )


def _folder(path: str, names: list[str]) -> str:
    links = (
        "<li><a "
        f'href="{html.escape(posixpath.basename(path))}/{html.escape(name)}.html">{html.escape(name)}</a></li>'
        for name in names
    )
    return f"<ul>{''.join(links)}</ul>"


def _source(path: str) -> str:
    text = (ROOT / path).read_text(errors="replace")
    try:
        lexer = get_lexer_for_filename(path)
    except ClassNotFound:
        return f"<pre>{html.escape(text)}</pre>"
    shown: str = highlight(text, lexer, HtmlFormatter())
    return shown


def setup(app: Sphinx) -> dict[str, object]:
    """Register the handlers."""
    app.connect("source-read", _read)
    app.connect("doctree-resolved", _point)
    app.connect("html-collect-pages", _pages)
    return {"parallel_read_safe": False, "parallel_write_safe": False}
