"""Draw a packing as an SVG document."""

from __future__ import annotations

import colorsys
import html
import math
from collections.abc import Sequence

from hyperdomain_circle_packing.score import Circle

SIZE = 560
MARGIN = 24
CAPTION = 34
INK = "#25323d"


def colour(r: float, largest: float) -> tuple[int, int, int]:
    """Return the RGB colour of a radius: warm and light for small radii, cool and dark for large ones.

    Args:
        r: the radius.
        largest: the largest radius of the packing.
    """
    part = min(1.0, max(0.0, r / largest)) if largest > 0 else 0.0
    red, green, blue = colorsys.hls_to_rgb(0.09 + 0.47 * part, 0.70 - 0.22 * part, 0.62)
    return round(red * 255), round(green * 255), round(blue * 255)


def svg(circles: Sequence[Circle], title: str = "") -> str:
    """Return a stand-alone SVG document: the square, the circles coloured by size, and their points of contact.

    Args:
        circles: finite ``(x, y, r)``; the origin is the square's lower left corner.
        title: one line below the square.
    """
    side = SIZE - 2 * MARGIN
    largest = max((r for _, _, r in circles), default=0.0)
    discs = [_disc(x, y, max(r, 0.0) * side, "#{:02x}{:02x}{:02x}".format(*colour(r, largest))) for x, y, r in circles]
    dots = [_disc(x, y, 1.8, INK) for x, y in _contacts(circles)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{SIZE}" height="{SIZE + CAPTION}" '
            f'viewBox="0 0 {SIZE} {SIZE + CAPTION}">',
            f'<rect width="{SIZE}" height="{SIZE + CAPTION}" fill="#ffffff"/>',
            f'<rect x="{MARGIN}" y="{MARGIN}" width="{side}" height="{side}" fill="#f6f4ee" stroke="{INK}" '
            'stroke-width="1.5"/>',
            *discs,
            *dots,
            f'<text x="{SIZE / 2:g}" y="{SIZE + 8}" text-anchor="middle" font-family="sans-serif" '
            f'font-size="15" fill="{INK}">{html.escape(title, quote=False)}</text>',
            "</svg>",
            "",
        ]
    )


def _disc(x: float, y: float, radius: float, fill: str) -> str:
    """Return one SVG circle; the centre is in the unit square, the radius is in pixels."""
    side = SIZE - 2 * MARGIN
    return (
        f'<circle cx="{MARGIN + x * side:.3f}" cy="{MARGIN + (1 - y) * side:.3f}" r="{radius:.3f}" '
        f'fill="{fill}" stroke="{INK}" stroke-width="1"/>'
    )


def _contacts(circles: Sequence[Circle], slack: float = 1e-6) -> list[tuple[float, float]]:
    """Return the points where two circles touch within ``slack``."""
    found = []
    for i, (x, y, r) in enumerate(circles):
        for u, v, s in circles[:i]:
            distance = math.hypot(x - u, y - v)
            if distance > 0 and abs(distance - r - s) <= slack:
                found.append((x + (u - x) * r / distance, y + (v - y) * r / distance))
    return found
