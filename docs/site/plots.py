"""The directive ``benchmark-plot``: bars drawn from the tables that ``make bench`` writes, so that
no figure is copied.

The pictures are SVG files of the site only.
"""

from __future__ import annotations

import html
import posixpath
from collections.abc import Collection
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from docs.site.benchmarks import DOCS, beside, figures


def draw(
    path: Path, title: str, bars: dict[str, float], *, others: Collection[str], log: bool
) -> None:
    """Draw horizontal bars with their figures.

    Args:
        path: the SVG file.
        title: what is drawn, with its unit.
        bars: lengths by label.
        others: the labels that are drawn in grey.
        log: whether the axis is logarithmic.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # Text as paths: no font is needed. A fixed salt: the same tables make the same file.
    with mpl.rc_context({"svg.hashsalt": "hyperruntime", "svg.fonttype": "path"}):
        figure = Figure(figsize=(8, 0.9 + 0.34 * len(bars)), layout="constrained")
        axes = figure.subplots()
        colours = ["#999999" if label in others else "#0072b2" for label in bars]
        drawn = axes.barh(list(bars), list(bars.values()), color=colours)
        axes.bar_label(drawn, labels=[f"{value:g}" for value in bars.values()], padding=3)
        axes.invert_yaxis()
        axes.set_title(title, loc="left", fontsize=11)
        axes.spines[["top", "right"]].set_visible(False)
        if log:
            axes.set_xscale("log")
        axes.margins(x=0.12)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None}, facecolor="white")


class BenchmarkPlot(SphinxDirective):
    """Bars of one row of a page of benchmarks, by engine; with ``:beside:``, ours and others' in
    turn.

    ``:ours:`` and ``:theirs:`` are the labels of the two, with ``{}`` for what is compared.
    ``:log:`` makes the axis logarithmic.
    """

    required_arguments = 1
    final_argument_whitespace = True
    option_spec = {  # noqa: RUF012 - as docutils declares it
        "page": directives.unchanged_required,
        "title": directives.unchanged_required,
        "beside": directives.flag,
        "ours": directives.unchanged_required,
        "theirs": directives.unchanged_required,
        "log": directives.flag,
        "name": directives.unchanged_required,
    }

    def run(self) -> list[nodes.Node]:
        """Draw the picture, and return it."""
        page, row = self.options["page"], self.arguments[0]
        bars: dict[str, float] = {}
        others: list[str] = []
        if "beside" in self.options:
            our_label, their_label = (
                self.options.get("ours", "hyperruntime, beside {}"),
                self.options.get("theirs", "{}"),
            )
            for name, (ours, theirs) in beside(page, row).items():
                others.append(their_label.format(name))
                bars |= {our_label.format(name): ours, others[-1]: theirs}
        else:
            bars = figures(page, row)
        if not bars:
            raise self.error(f"{page} has no figures for {row!r}")
        name = f"_static/plots/{self.options['name']}.svg"
        draw(
            Path(self.env.app.outdir, name),
            self.options["title"],
            bars,
            others=others,
            log="log" in self.options,
        )
        self.env.note_dependency(str(DOCS / page))
        words = "; ".join(f"{label}: {value:g}" for label, value in bars.items())
        up = posixpath.relpath(name, posixpath.dirname(self.env.docname) or ".")
        alt = html.escape(f"{self.options['title']}. {words}")
        return [nodes.raw("", f'<p><img class="plot" src="{up}" alt="{alt}"></p>', format="html")]


def setup(app: Sphinx) -> dict[str, object]:
    """Register the directive."""
    app.add_directive("benchmark-plot", BenchmarkPlot)
    return {"parallel_read_safe": False, "parallel_write_safe": False}
