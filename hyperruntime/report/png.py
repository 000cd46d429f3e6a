"""A drawing as a PNG image, with the standard library alone and smooth edges. Imports drawing and font."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterable, Sequence
from itertools import pairwise

from hyperruntime.report.drawing import Disc, Drawing, Label, Line, Point
from hyperruntime.report.font import text_strokes

Colour = tuple[int, int, int]
_STROKE, _BOLD_STROKE = 0.085, 0.125  # of a text's size


def to_png(drawing: Drawing, scale: float = 2.0) -> bytes:
    """Return a drawing as a PNG file.

    Args:
        drawing: what to paint.
        scale: pixels of the image per pixel of the drawing.
    """
    canvas = Canvas(round(drawing.width * scale), round(drawing.height * scale), drawing.background)
    for shape in drawing.shapes:
        if isinstance(shape, Line):
            canvas.line(_scaled(shape.points, scale), shape.width * scale, shape.colour)
        elif isinstance(shape, Disc):
            _paint_disc(canvas, shape, scale)
        else:
            _paint_label(canvas, shape, scale)
    return canvas.to_png()


class Canvas:
    """Rows of pixels that lines and discs are painted on."""

    def __init__(self, width: int, height: int, background: str) -> None:
        """Begin with a sheet of one colour."""
        self.width, self.height = width, height
        self._rows = [bytearray(bytes(parse_colour(background)) * width) for _ in range(height)]

    def disc(self, x: float, y: float, radius: float, colour: str) -> None:
        """Paint a disc; a pixel on the rim is blended by how far its middle lies inside."""
        fill = parse_colour(colour)
        for row in range(max(0, int(y - radius - 1)), min(self.height, int(y + radius + 2))):
            dy = row + 0.5 - y
            outer = math.sqrt(max(0.0, (radius + 0.5) ** 2 - dy * dy))
            columns = range(max(0, int(x - outer - 1)), min(self.width, int(x + outer + 2)))
            inner = math.sqrt(max(0.0, (radius - 0.5) ** 2 - dy * dy)) if radius > abs(dy) + 0.5 else 0.0
            start = max(columns.start, math.ceil(x - inner - 0.5)) if inner else columns.stop
            stop = max(start, min(columns.stop, math.floor(x + inner - 0.5) + 1)) if inner else start
            self._rows[row][3 * start : 3 * stop] = bytes(fill) * (stop - start)
            for column in (*range(columns.start, start), *range(stop, columns.stop)):
                self._blend(column, row, fill, radius + 0.5 - math.hypot(column + 0.5 - x, dy))

    def line(self, points: Sequence[Point], width: float, colour: str) -> None:
        """Paint a line through points with round ends; where it meets itself it is no darker.

        One level line, as of a grid, is painted row by row.
        """
        if len(points) == 2 and points[0][1] == points[1][1] and points[0][0] != points[1][0]:
            self._level_line(points[0], points[1][0], width, parse_colour(colour))
            return
        cover: dict[tuple[int, int], float] = {}
        for begin, end in pairwise(points):
            for pixel, part in self._segment(begin, end, width / 2):
                if part > cover.get(pixel, 0.0):
                    cover[pixel] = part
        fill = parse_colour(colour)
        for (column, row), part in cover.items():
            self._blend(column, row, fill, part)

    def to_png(self) -> bytes:
        """Return the image as a file.

        Source: PNG specification, W3C, sections 5.2 (signature), 5.3 (chunks) and 11.2 (IHDR, IDAT, IEND); each
        row starts with filter type 0.
        """
        header = struct.pack(">IIBBBBB", self.width, self.height, 8, 2, 0, 0, 0)
        pixels = zlib.compress(b"".join(b"\0" + bytes(row) for row in self._rows), 6)
        parts = ((b"IHDR", header), (b"IDAT", pixels), (b"IEND", b""))
        return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)

    def _level_line(self, begin: Point, right: float, width: float, fill: Colour) -> None:
        left, y = begin
        columns = range(max(0, round(min(left, right))), min(self.width, round(max(left, right))))
        for row in range(max(0, int(y - width / 2)), min(self.height, int(y + width / 2) + 1)):
            part = min(row + 1.0, y + width / 2) - max(float(row), y - width / 2)
            for column in columns:
                self._blend(column, row, fill, part)

    def _segment(self, begin: Point, end: Point, half: float) -> Iterable[tuple[tuple[int, int], float]]:
        """Yield the pixels near a segment with the part of each that it covers."""
        (x, y), (u, v) = begin, end
        dx, dy = u - x, v - y
        squared, reach, most = dx * dx + dy * dy, half + 0.5, min(1.0, 2 * half)
        for row in range(max(0, int(min(y, v) - reach)), min(self.height, int(max(y, v) + reach) + 1)):
            py = row + 0.5 - y
            for column in self._columns(x, y, dx, dy, row + 0.5, reach):
                px = column + 0.5 - x
                along = (px * dx + py * dy) / squared if squared else 0.0
                along = 0.0 if along < 0.0 else 1.0 if along > 1.0 else along
                part = reach - math.hypot(px - along * dx, py - along * dy)
                if part > 0:
                    yield (column, row), part if part < most else most

    def _columns(self, x: float, y: float, dx: float, dy: float, middle: float, reach: float) -> range:
        """Return the columns of a row that a segment can touch."""
        if abs(dy) < 1e-9:
            left, right = min(x, x + dx), max(x, x + dx)
        else:
            near, far = sorted(min(1.0, max(0.0, (at - y) / dy)) for at in (middle - reach, middle + reach))
            left, right = sorted((x + near * dx, x + far * dx))
        return range(max(0, int(left - reach)), min(self.width, int(right + reach) + 1))

    def _blend(self, column: int, row: int, fill: Colour, cover: float) -> None:
        """Mix a colour into one pixel; ``cover`` is its part, cut to [0, 1]."""
        part = min(1.0, cover)
        if part <= 0:
            return
        pixels, at = self._rows[row], 3 * column
        for offset, value in enumerate(fill, at):
            pixels[offset] += round((value - pixels[offset]) * part)


def parse_colour(text: str) -> Colour:
    """Return the three channels of ``#rrggbb``."""
    return int(text[1:3], 16), int(text[3:5], 16), int(text[5:7], 16)


def _scaled(points: Sequence[Point], scale: float) -> list[Point]:
    return [(x * scale, y * scale) for x, y in points]


def _paint_disc(canvas: Canvas, disc: Disc, scale: float) -> None:
    x, y, radius = disc.x * scale, disc.y * scale, disc.radius * scale
    if disc.rim_width:
        canvas.disc(x, y, radius, disc.rim)
        radius -= disc.rim_width * scale
    canvas.disc(x, y, radius, disc.fill)


def _paint_label(canvas: Canvas, label: Label, scale: float) -> None:
    width = label.size * (_BOLD_STROKE if label.bold else _STROKE) * scale
    for stroke in text_strokes(label):
        canvas.line(_scaled(stroke, scale), width, label.colour)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
