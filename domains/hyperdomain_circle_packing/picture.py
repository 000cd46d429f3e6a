"""Draw a packing as an SVG document, or as a PNG image with smooth edges, by the standard library
only.
"""

from __future__ import annotations

import colorsys
import html
import math
import struct
import zlib
from collections.abc import Sequence

from hyperdomain_circle_packing.score import Circle

SIZE = 560
MARGIN = 24
CAPTION = 34
INK = "#25323d"
Colour = tuple[int, int, int]
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


def svg(circles: Sequence[Circle], title: str = "") -> str:
    """Return a stand-alone SVG document: the square, the circles coloured by size, and their points
    of contact.

    Args:
        circles: finite ``(x, y, r)``; the origin is the square's lower left corner.
        title: one line below the square.
    """
    largest = max((r for _, _, r in circles), default=0.0)
    side = SIZE - 2 * MARGIN
    discs = [
        disc(x, y, max(r, 0.0) * side, "#{:02x}{:02x}{:02x}".format(*colour(r, largest)))
        for x, y, r in circles
    ]
    return frame([*discs, *(disc(x, y, 1.8, INK) for x, y in _contacts(circles))], title)


def frame(shapes: Sequence[str], title: str = "") -> str:
    """Return a stand-alone SVG document: the unit square with shapes in it.

    Args:
        shapes: SVG elements, as :func:`disc` makes them.
        title: one line below the square.
    """
    side = SIZE - 2 * MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{SIZE}" height="{SIZE + CAPTION}" '
            f'viewBox="0 0 {SIZE} {SIZE + CAPTION}">',
            f'<rect width="{SIZE}" height="{SIZE + CAPTION}" fill="#ffffff"/>',
            f'<rect x="{MARGIN}" y="{MARGIN}" width="{side}" height="{side}" fill="#f6f4ee" '
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
