"""A drawing as a list of simple shapes, and the same as SVG. Imports nothing of the project.

One list serves every format: ``to_svg`` here, ``to_png`` in :mod:`hyperruntime.report.png`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import attrs

Point = tuple[float, float]
Anchor = Literal["start", "middle", "end"]
CAP_HEIGHT = 0.72  # of a text's size: what a capital letter or a digit takes


@attrs.frozen(kw_only=True)
class Line:
    """A line through points.

    Attributes:
        points: at least two, in pixels from the upper left corner.
        colour: ``#rrggbb``.
        width: in pixels.
    """

    points: tuple[Point, ...]
    colour: str
    width: float = 1.0


@attrs.frozen(kw_only=True)
class Disc:
    """A filled circle with a rim inside its radius.

    Attributes:
        x, y: its centre.
        radius: in pixels, the rim included.
        fill: ``#rrggbb``.
        rim: colour of the rim.
        rim_width: in pixels; 0 for none.
    """

    x: float
    y: float
    radius: float
    fill: str
    rim: str = "#000000"
    rim_width: float = 0.0


@attrs.frozen(kw_only=True)
class Label:
    """One line of text.

    Attributes:
        x, y: of its base line at the anchor.
        text: what it says.
        size: height of the line in pixels.
        colour: ``#rrggbb``.
        anchor: which part of the text is at ``x``.
        bold: whether it is heavy.
    """

    x: float
    y: float
    text: str
    size: float = 12.0
    colour: str = "#25323d"
    anchor: Anchor = "start"
    bold: bool = False


Shape = Line | Disc | Label


@attrs.frozen(kw_only=True)
class Drawing:
    """Shapes on a sheet, drawn in their order.

    Attributes:
        width, height: of the sheet in pixels.
        shapes: later ones cover earlier ones.
        background: ``#rrggbb``.
        title: what the picture shows, for readers of the file.
    """

    width: int
    height: int
    shapes: tuple[Shape, ...]
    background: str = "#ffffff"
    title: str = ""


def to_svg(drawing: Drawing) -> str:
    """Return a drawing as a stand-alone SVG document."""
    size = f'width="{drawing.width}" height="{drawing.height}" viewBox="0 0 {drawing.width} {drawing.height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="DejaVu Sans, Helvetica, Arial, sans-serif">',
        f"<title>{escaped(drawing.title)}</title>",
        f'<rect width="{drawing.width}" height="{drawing.height}" fill="{drawing.background}"/>',
        *(_element(shape) for shape in drawing.shapes),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Return text as it is written in XML; characters that XML does not have become a question mark."""
    known = "".join(letter if letter.isprintable() else "?" for letter in text)
    return known.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")


def _element(shape: Shape) -> str:
    if isinstance(shape, Line):
        return _polyline(shape.points, shape.colour, shape.width)
    if isinstance(shape, Disc):
        radius = shape.radius - shape.rim_width / 2
        rim = f' stroke="{shape.rim}" stroke-width="{shape.rim_width:g}"' if shape.rim_width else ""
        return f'<circle cx="{shape.x:.2f}" cy="{shape.y:.2f}" r="{radius:.2f}" fill="{shape.fill}"{rim}/>'
    weight = ' font-weight="bold"' if shape.bold else ""
    return (
        f'<text x="{shape.x:.2f}" y="{shape.y:.2f}" font-size="{shape.size:g}" fill="{shape.colour}" '
        f'text-anchor="{shape.anchor}"{weight}>{escaped(shape.text)}</text>'
    )


def _polyline(points: Sequence[Point], colour: str, width: float) -> str:
    path = " ".join(f"{x:.2f},{y:.2f}" for x, y in points)
    return (
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width:g}" '
        'stroke-linecap="round" stroke-linejoin="round"/>'
    )
