"""Pictures of answers: shapes of SVG in the unit square, and PNG images of circles with smooth
edges. Standard library only.
"""

from __future__ import annotations

import colorsys
import html
import math
import struct
import zlib
from collections.abc import Sequence

Circle = tuple[float, float, float]
"""Centre and radius, in units of the square."""
SIZE = 560
MARGIN = 24
CAPTION = 34
INK = "#25323d"
Colour = tuple[int, int, int]
_SIDE = SIZE - 2 * MARGIN
_DOT = 2.4
_PAPER: Colour = (255, 255, 255)
_FLOOR: Colour = (246, 244, 238)
_INK: Colour = (37, 50, 61)


def colour(r: float, largest: float) -> Colour:
    """Return the RGB colour of a radius: warm and light for small radii, cool and dark for large
    ones.

    Args:
        r: the radius.
        largest: the largest radius of the packing.
    """
    part = min(1.0, max(0.0, r / largest)) if largest > 0 else 0.0
    red, green, blue = colorsys.hls_to_rgb(0.09 + 0.47 * part, 0.70 - 0.22 * part, 0.62)
    return round(red * 255), round(green * 255), round(blue * 255)


def frame(shapes: Sequence[str], title: str = "") -> str:
    """Return a stand-alone SVG document: the unit square with shapes in it.

    Args:
        shapes: SVG elements, as :func:`disc` makes them.
        title: one line below the square.
    """
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{SIZE}" height="{SIZE + CAPTION}" '
            f'viewBox="0 0 {SIZE} {SIZE + CAPTION}">',
            f'<rect width="{SIZE}" height="{SIZE + CAPTION}" fill="#ffffff"/>',
            f'<rect x="{MARGIN}" y="{MARGIN}" width="{_SIDE}" height="{_SIDE}" fill="#f6f4ee" '
            f'stroke="{INK}" stroke-width="1.5"/>',
            *shapes,
            f'<text x="{SIZE / 2:g}" y="{SIZE + 8}" text-anchor="middle" font-family="sans-serif" '
            f'font-size="15" fill="{INK}">{html.escape(title, quote=False)}</text>',
            "</svg>",
            "",
        ]
    )


def disc(x: float, y: float, radius: float, fill: str) -> str:
    """Return one SVG circle; the centre is in the unit square, the radius is in pixels."""
    return (
        f'<circle cx="{MARGIN + x * _SIDE:.3f}" cy="{MARGIN + (1 - y) * _SIDE:.3f}" r="{radius:.3f}" '
        f'fill="{fill}" stroke="{INK}" stroke-width="1"/>'
    )


def discs(circles: Sequence[Circle]) -> list[str]:
    """Return circles coloured by size, and a dot where two of them touch.

    Args:
        circles: finite ``(x, y, r)``; the origin is the square's lower left corner.
    """
    largest = max((r for _, _, r in circles), default=0.0)
    found = [
        disc(x, y, max(r, 0.0) * _SIDE, "#{:02x}{:02x}{:02x}".format(*colour(r, largest)))
        for x, y, r in circles
    ]
    return [*found, *(disc(x, y, 1.8, INK) for x, y in _contacts(circles))]


def _contacts(circles: Sequence[Circle], slack: float = 1e-6) -> list[tuple[float, float]]:
    """Return the points where two circles touch within ``slack``."""
    found = []
    for i, (x, y, r) in enumerate(circles):
        for u, v, s in circles[:i]:
            distance = math.hypot(x - u, y - v)
            if distance > 0 and abs(distance - r - s) <= slack:
                found.append((x + (u - x) * r / distance, y + (v - y) * r / distance))
    return found


def dots(places: Sequence[tuple[float, float]], fill: str = "#2f6f8f") -> list[str]:
    """Return a dot at each place of the unit square."""
    return [disc(x, y, _DOT, fill) for x, y in places]


def path(places: Sequence[tuple[float, float]], width: float = 1.2) -> str:
    """Return a line through places of the unit square."""
    there = " ".join(f"{MARGIN + x * _SIDE:.3f},{MARGIN + (1 - y) * _SIDE:.3f}" for x, y in places)
    return f'<polyline points="{there}" fill="none" stroke="{INK}" stroke-width="{width:g}"/>'


def fitted(places: Sequence[Sequence[int]]) -> list[tuple[float, float]]:
    """Return places moved and scaled into the unit square, with their first two coordinates."""
    lows = [min(place[axis] for place in places) for axis in (0, 1)]
    size = max(1, *(max(place[axis] for place in places) - lows[axis] for axis in (0, 1)))
    return [((place[0] - lows[0]) / size, (place[1] - lows[1]) / size) for place in places]


def ticks(marks: Sequence[int]) -> list[str]:
    """Return a ruler with marks, from the smallest to the largest number."""
    low = min(marks)
    length = max(1, max(marks) - low)
    places = [(mark - low) / length for mark in marks]
    return [path([(0, 0.5), (1, 0.5)]), *(path([(x, 0.46), (x, 0.54)], 1.0) for x in places)]


def grid(cells: Sequence[tuple[int, int]], columns: int, rows: int) -> list[str]:
    """Return a dot for each cell ``(column, row)`` of a table, the first row at the top."""
    return dots([((x + 0.5) / columns, 1 - (y + 0.5) / rows) for x, y in cells])


def png(circles: Sequence[Circle], size: int = 512, margin: int = 16) -> bytes:
    """Return a PNG image of the square and its circles.

    Args:
        circles: finite ``(x, y, r)``; the origin is the square's lower left corner.
        size: width and height of the image in pixels.
        margin: width of the margin around the square in pixels.
    """
    side = size - 2 * margin
    rows = [bytearray(bytes(_PAPER) * size) for _ in range(size)]
    for row in rows[margin - 1 : size - margin + 1]:
        row[3 * (margin - 1) : 3 * (size - margin + 1)] = bytes(_INK) * (side + 2)
    for row in rows[margin : size - margin]:
        row[3 * margin : 3 * (size - margin)] = bytes(_FLOOR) * side
    largest = max((r for _, _, r in circles), default=0.0)
    for x, y, r in circles:
        centre = (margin + x * side, margin + (1 - y) * side)
        _paint(rows, centre, r * side, _INK)
        _paint(rows, centre, r * side - 1.0, colour(r, largest))
    return encode(rows)


def encode(rows: Sequence[bytes | bytearray]) -> bytes:
    """Return a PNG file of 8-bit RGB rows of equal length; each row has filter type 0.

    Source: PNG specification, W3C, sections 5.2 (signature), 5.3 (chunks) and 11.2 (IHDR, IDAT,
    IEND).
    """
    header = struct.pack(">IIBBBBB", len(rows[0]) // 3, len(rows), 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + bytes(row) for row in rows), 9)
    parts = ((b"IHDR", header), (b"IDAT", pixels), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _paint(rows: list[bytearray], centre: tuple[float, float], radius: float, fill: Colour) -> None:
    """Paint a disc; a pixel on its rim is blended by the distance of the pixel's centre from the
    rim.

    Each row's inner pixels are filled at once; only the pixels on the rim are computed one by one.
    """
    cx, cy = centre
    for top in range(max(0, int(cy - radius - 1)), min(len(rows), int(cy + radius + 2))):
        row = rows[top]
        dy = top + 0.5 - cy
        outer = math.sqrt(max(0.0, (radius + 0.5) ** 2 - dy * dy))
        inner = math.sqrt(max(0.0, (radius - 0.5) ** 2 - dy * dy)) if radius > 0.5 else 0.0
        left = max(0, int(cx - outer - 1))
        right = min(len(row) // 3, int(cx + outer + 2))
        full = range(
            max(left, math.ceil(cx - inner - 0.5)), min(right, math.floor(cx + inner - 0.5) + 1)
        )
        if not inner:
            full = range(left, left)
        row[3 * full.start : 3 * max(full.start, full.stop)] = bytes(fill) * len(full)
        for column in (*range(left, full.start), *range(max(full.start, full.stop), right)):
            _blend(row, column, fill, radius + 0.5 - math.hypot(column + 0.5 - cx, dy))


def _blend(row: bytearray, column: int, fill: Colour, cover: float) -> None:
    """Mix a colour into one pixel; ``cover`` is its share, clipped to [0, 1]."""
    part = min(1.0, max(0.0, cover))
    for channel, value in enumerate(fill, 3 * column):
        row[channel] = round(row[channel] + (value - row[channel]) * part)
