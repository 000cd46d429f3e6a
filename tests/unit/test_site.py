"""The site of the documentation, without a build: navigation, anchors, and that the reference
leaves nothing out.

``make docs`` builds it, and ``docs/site/check.py`` checks what was built; ``make test-all`` does
both.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

import hyperruntime
from docs.site import reference
from docs.site.benchmarks import beside, figures
from docs.site.check import problems
from docs.site.links import PAGES, rewrite
from hyperruntime.errors import HyperRuntimeError
from hyperruntime.loop.run_files import contract, layout
from hyperruntime.rollout.run_files import run_dir, turn_journal
from hyperruntime.runs import run_file
from hyperruntime.settings.reader import fields_of

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
ROOT_PAGES = sorted(ROOT.glob("*.md"))
NAMES = sorted(
    str(path.relative_to(DOCS))
    for pattern in ("**/*.md", "**/*.rst")
    for path in DOCS.glob(pattern)
)
_LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)#([^)\s]+)\)")
_VARIABLE = re.compile(r"\b(HYPERRUN|HYPERRUNTIME)_[A-Z_]*[A-Z]\b")


def in_navigation() -> Iterator[str]:
    """Yield the pages that tables of contents name, as paths below ``docs`` without a suffix."""
    for name in NAMES:
        for table in re.findall(
            r":::\{toctree\}\n(.*?)\n:::", (DOCS / name).read_text(), re.DOTALL
        ):
            for line in table.splitlines():
                if line and not line.startswith(":"):
                    entry = posixpath.normpath(posixpath.join(posixpath.dirname(name), line))
                    yield from (
                        str(path.relative_to(DOCS).with_suffix(""))
                        for path in DOCS.glob(f"{entry}.*")
                    )


def test_every_page_is_once_in_the_navigation() -> None:
    found = sorted(in_navigation())
    pages = sorted(name.rpartition(".")[0] for name in NAMES if name != "index.md")
    assert sorted(set(pages) - set(found)) == [], "no table of contents names them"
    assert len(found) == len(pages), "a page is named twice"


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    tokens = MarkdownIt("commonmark").parse(page.read_text())
    heads = [after.content for token, after in pairwise(tokens) if token.type == "heading_open"]
    words = (re.sub(r"`|\[|\]\([^)]*\)", "", head).lower() for head in heads)
    return {re.sub(r"[^\w -]", "", text).strip().replace(" ", "-") for text in words}


@pytest.mark.parametrize(
    "page", [*sorted(DOCS.rglob("*.md")), *ROOT_PAGES], ids=lambda page: str(page.relative_to(ROOT))
)
def test_links_to_headings_have_a_heading(page: Path) -> None:
    lost = []
    for path, anchor in _LINK.findall(page.read_text()):
        target = page if not path else page.parent / path
        if target.suffix == ".md" and anchor not in anchors(target):
            lost.append(f"{path}#{anchor}")
    assert lost == []


def test_the_reference_has_every_public_name() -> None:
    texts = [page.read_text() for page in sorted(DOCS.glob("reference/python-*.rst"))]
    shown = [re.findall(r"\.\. public-names:: (.*)", text) for text in texts]
    assert all(len(lines) == 1 for lines in shown), "one page per area"
    modules = [module for lines in shown for module in lines[0].split()]
    assert sorted(modules) == sorted(reference.public_names())
    assert sum(len(names) for names in reference.public_names().values()) == len(
        hyperruntime.__all__
    )


def subclasses(cls: type[HyperRuntimeError]) -> Iterator[type[HyperRuntimeError]]:
    for below in cls.__subclasses__():
        yield below
        yield from subclasses(below)


def test_the_reference_has_every_error_with_a_sentence() -> None:
    rows = {row.name: row for row in reference.error_rows()}
    known = {
        cls.__name__ for cls in subclasses(HyperRuntimeError) if cls.__module__.startswith("hyper")
    }
    assert known - rows.keys() == set()
    assert [name for name, row in rows.items() if not row.meaning.endswith(".")] == []


def test_the_reference_has_the_keys_of_every_file() -> None:
    text = (DOCS / "reference/configuration.rst").read_text()
    tables = re.findall(r"\.\. (keys|options):: (.*)", text)
    rows = [
        reference.key_rows(name) if kind == "keys" else reference.option_rows(name)
        for kind, name in tables
    ]
    assert all(len(found) > 1 for found in rows)
    keys = {
        f"{table}.{key}"
        for table, kind in (("commands", contract._Commands), ("load", contract._Load))
        for key in fields_of(kind)
    }
    assert keys | {"agent.image", "agent.models", "agent.domains", "contract"} == set(
        re.findall(r"^   \* - ``([\w.]+)``", text, re.MULTILINE)
    )


def test_every_command_has_a_sentence_in_its_help() -> None:
    assert len(reference.commands()) > 20
    assert [
        words
        for words in reference.commands()
        if not (reference.command(*words).help or "").strip()
    ] == []


def variables() -> Iterator[str]:
    """Yield the environment variables that files of the packages name or read, whatever language
    they are in.
    """
    for folder in (
        "hyperruntime",
        "runtimes",
        "domains",
        "environments",
        "trainers",
        "integrations",
        "containers",
    ):
        for path in (ROOT / folder).rglob("*"):
            if {"tasks", "exercises", "inside", "__pycache__"} & set(
                path.parts
            ) or not path.is_file():
                continue
            text = path.read_bytes().decode(errors="replace")
            yield from (found[0] for found in _VARIABLE.finditer(text))
            if path.suffix == ".py" and ("environ" in text or "getenv" in text):
                yield from read_in(ast.parse(text))


def read_in(tree: ast.AST) -> Iterator[str]:
    """Yield the environment variables that a program reads by their names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and is_last(node.func, "get", "getenv"):
            names = [arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant)]
            known = ast.unparse(node.func) in ("os.environ.get", "os.getenv")
            yield from map(str, names) if known else ()
        if isinstance(node, ast.Subscript) and is_last(node.value, "environ"):
            reads = isinstance(node.ctx, ast.Load) and isinstance(node.slice, ast.Constant)
            yield from [ast.literal_eval(node.slice)] if reads else ()


def is_last(node: ast.expr, *names: str) -> bool:
    """Return whether one of these names is the last part of an expression."""
    return isinstance(node, ast.Attribute) and node.attr in names


def test_the_reference_has_every_environment_variable() -> None:
    shown = set(re.findall(r"`([A-Z][A-Z0-9_]+)`", (DOCS / "reference/environment.md").read_text()))
    found = set(variables())
    assert {"HYPERRUNTIME_RUNTIME", "HYPERRUN_SHELL_CODE"} <= found
    assert found - {"USER"} - shown == set()
    named = {name for name in shown if _VARIABLE.fullmatch(name)}
    assert named - found == set(), "no source has them"


def test_the_reference_has_every_file_of_a_run() -> None:
    text = (DOCS / "reference/files.md").read_text()
    paths = [path for path in vars(layout.Layout(Path("run"))).values() if isinstance(path, Path)]
    constants = [
        value
        for value in vars(layout).values()
        if isinstance(value, str) and re.search(r"\w\.\w+$", value)
    ]
    rollouts = [
        run_file.RUN,
        run_dir.TRAJECTORIES,
        run_dir.GROUPS,
        run_dir.RESULTS,
        turn_journal.TURNS,
    ]
    wanted = {path.name for path in paths if path != Path("run")} | {
        value for value in constants if "/" not in value
    }
    assert "journal.jsonl" in wanted
    assert {
        name
        for name in wanted | set(rollouts)
        if name not in text and not name.startswith("hyperruntime")
    } == set()


def test_no_example_runs_code_of_the_current_directory() -> None:
    started = [
        (path.name, words)
        for path in sorted((ROOT / "examples").glob("*.py"))
        for words in re.findall(r"sys\.executable, (.*)", path.read_text())
    ]
    assert started
    assert [name for name, words in started if not words.startswith('"-P"')] == []


def test_there_are_few_short_examples_and_the_page_names_each() -> None:
    programs = sorted((ROOT / "examples").glob("*.py"))
    assert len(programs) == 11
    assert {
        path.name: lines for path in programs if (lines := path.read_text().count("\n")) > 75
    } == {}
    named = re.findall(r"\[(\w+\.py)\]", (DOCS / "examples.md").read_text())
    assert sorted(named) == [path.name for path in programs]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 100


def test_plots_are_drawn_from_rows_that_the_benchmarks_have() -> None:
    text = (DOCS / "speed.rst").read_text()
    plots = re.findall(r"\.\. benchmark-plot:: (.*)\n   :page: (.*)\n(   :beside:)?", text)
    assert len(plots) > 5
    assert all(beside(page, row) if others else figures(page, row) for row, page, others in plots)
    ours, theirs = beside("benchmarks.md", "in turn with podman exec")["podman exec"]
    assert theirs > 10 * ours, "of another table?"
    assert len(beside("benchmarks-frameworks.md", r"one action \(.*, on docker")) == 6, (
        "a framework has another row"
    )
    ((four, one),) = beside("benchmarks-cluster.md", "generations an hour on 4 nodes, .*").values()
    assert four > 2 * one
    with pytest.raises(LookupError, match="no such thing"):
        figures("benchmarks.md", "no such thing")


def test_each_picture_is_on_a_page() -> None:
    shown = {
        name
        for path in DOCS.rglob("*.md")
        for name in re.findall(r"\]\((?:\.\./)*pictures/([\w-]+\.png)\)", path.read_text())
    }
    assert shown == {path.name for path in (DOCS / "pictures").iterdir()}


def test_links_out_of_the_pages_stay_in_the_site() -> None:
    text = (
        "[a](../SECURITY.md#x) [b](tour.md) [c](../hyperruntime/errors.py) [d](design) "
        "[e](https://x.org) [f](#g)"
    )
    assert rewrite(text, "docs") == (
        "[a](/project/security.md#x) [b](/tour.md) [c](source:hyperruntime/errors.py) "
        "[d](/design/index.md) [e](https://x.org) [f](#g)"
    )
    assert all(
        (ROOT / name).is_file() and (DOCS / f"{page}.md").is_file() for name, page in PAGES.items()
    )


def test_the_search_shows_the_reasons_and_the_changelog_last() -> None:
    """A built site is searched by a program in JavaScript; here only its rule is read."""
    rule = re.search(r"/(\^.*?)/\.test\(", (DOCS / "site/search_scorer.js").read_text())
    assert rule
    last = re.compile(rule[1].replace("\\/", "/"))
    names = [name.rpartition(".")[0] for name in NAMES]
    design = [name for name in names if name.startswith("design/")]
    assert [name for name in names if last.match(name)] == [*design, "project/changelog"]
    assert len(design) < 20
    assert "search_scorer.js" in (DOCS / "conf.py").read_text()


def test_the_check_of_a_site_finds_broken_links_and_what_would_be_loaded_from_a_network(
    tmp_path: Path,
) -> None:
    (tmp_path / "good.html").write_text(
        "<h1 id='top'>x</h1><a href='https://example.org/'>out</a><a href='#top'>up</a>"
    )
    assert list(problems(tmp_path)) == []
    (tmp_path / "bad.html").write_text(
        "<script src='https://cdn.example/x.js'></script><img src='//cdn.example/x.png'>"
        "<a href='good.html#nowhere'>a</a><a href='gone.html'>b</a><a href='../../etc/passwd'>c</a>"
    )
    (tmp_path / "style.css").write_text("@import 'https://fonts.example/font.css';")
    found = "\n".join(problems(tmp_path))
    for wanted in (
        "x.js: loaded",
        "x.png: loaded",
        "#nowhere: the page has",
        "gone.html: the file",
        "passwd: the file",
        "style.css",
    ):
        assert wanted in found, found
    assert found.count("\n") == 5
