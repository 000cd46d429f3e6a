"""Pictures: drawings as SVG and PNG, and the lineage."""

from __future__ import annotations

import struct
import xml.dom.minidom
import zlib
from collections.abc import Sequence

import pytest

from hyperruntime.loop.record import GenerationRecord
from hyperruntime.report.axis import ScoreAxis
from hyperruntime.report.drawing import Anchor, Disc, Drawing, Label, Line, to_svg
from hyperruntime.report.font import text_strokes, text_width
from hyperruntime.report.lineage import best_path, draw_lineage
from hyperruntime.report.png import Canvas, parse_colour, to_png


def decode(data: bytes) -> list[bytes]:
    """Return the rows of pixels of one of our own PNG files."""
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    at, parts = 8, {}
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0] == zlib.crc32(kind + body)
        parts[kind] = body
        at += 12 + length
    width, height, depth, colours = struct.unpack(">IIBB", parts[b"IHDR"][:10])
    assert (depth, colours) == (8, 2)
    raw, stride = zlib.decompress(parts[b"IDAT"]), 1 + 3 * width
    assert len(raw) == stride * height
    rows = [raw[start : start + stride] for start in range(0, len(raw), stride)]
    assert all(row[0] == 0 for row in rows)
    return [row[1:] for row in rows]


def pixel(rows: Sequence[bytes], x: int, y: int) -> tuple[int, ...]:
    """Return a pixel's channels."""
    return tuple(rows[y][3 * x : 3 * x + 3])


def record(genid: int | str, parent: int | str | None, score: float | None) -> GenerationRecord:
    """Return a generation that failed where it has no score."""
    return GenerationRecord(genid=genid, parent=parent, score=score, failure=None if score is not None else "agent")


FAMILY = (
    record("initial", None, 0.5),
    record(1, "initial", 0.6),
    record(2, "initial", None),
    record(3, 1, 0.9),
    record(4, 2, 0.7),
)


def test_a_disc_is_full_inside_empty_outside_and_blended_on_its_rim() -> None:
    canvas = Canvas(40, 40, "#ffffff")
    canvas.disc(20.0, 20.0, 10.0, "#000000")
    rows = decode(canvas.to_png())
    assert pixel(rows, 20, 20) == (0, 0, 0)
    assert pixel(rows, 20, 5) == (255, 255, 255)
    rim = {pixel(rows, x, 20)[0] for x in range(28, 32)}
    assert any(0 < value <= 255 for value in rim)
    assert sum(255 - value for row in rows for value in row[::3]) / 255 == pytest.approx(314.16, rel=0.01)


@pytest.mark.parametrize("end", [(35.0, 20.0), (20.0, 35.0), (35.0, 31.0), (33.0, 6.0)])
def test_a_line_covers_its_width_whatever_its_direction(end: tuple[float, float]) -> None:
    canvas = Canvas(40, 40, "#ffffff")
    canvas.line(((5.0, 20.5), (20.0, 20.5), end), 4.0, "#000000")
    rows = decode(canvas.to_png())
    assert pixel(rows, 12, 20) == (0, 0, 0)
    assert pixel(rows, 12, 26) == (255, 255, 255)
    middle = (round((20 + end[0]) / 2), round((20.5 + end[1]) / 2))
    assert pixel(rows, *middle) == (0, 0, 0)


def test_shapes_that_leave_the_sheet_are_cut() -> None:
    shapes = (
        Line(points=((-50, 5), (50, 5)), colour="#112233", width=2),
        Line(points=((5, -50), (6, 90)), colour="#112233", width=2),
        Disc(x=0, y=10, radius=30, fill="#445566", rim="#000000", rim_width=2),
        Label(x=5, y=2, text="outside", size=30),
    )
    rows = decode(to_png(Drawing(width=10, height=10, shapes=shapes), scale=1))
    assert (len(rows), len(rows[0])) == (10, 30)


def test_text_is_drawn_at_its_anchor() -> None:
    places: tuple[tuple[Anchor, int, int], ...] = (("start", 100, 160), ("middle", 70, 130), ("end", 40, 100))
    for anchor, low, high in places:
        strokes = list(text_strokes(Label(x=100, y=50, text="best 42", size=14, anchor=anchor)))
        xs = [x for stroke in strokes for x, _ in stroke]
        assert low <= min(xs) <= max(xs) <= high
        assert all(35 < y < 56 for stroke in strokes for _, y in stroke)
    assert text_width("", 12) == 0
    assert text_width("ii", 12) < text_width("mm", 12)


def test_a_letter_that_the_font_lacks_is_a_box() -> None:
    assert len(list(text_strokes(Label(x=0, y=0, text="\u4e16")))) == 1


def test_svg_is_well_formed_whatever_the_text() -> None:
    label = Label(x=1, y=2, text='<b> & "q" \x00\x1b \u4e16', bold=True)
    document = to_svg(Drawing(width=10, height=10, shapes=(label,), title="a < b\x07"))
    parsed = xml.dom.minidom.parseString(document)
    assert '&lt;b&gt; &amp; "q"' in parsed.toxml() or "&lt;b&gt; &amp; &quot;q&quot;" in parsed.toxml()


def test_the_axis_has_round_steps_and_holds_every_score() -> None:
    for scores in ([0.86, 0.99], [0.5], [], [0.0, 0.0], [0.12345, 0.12346], [0.0, 250.0], [-3.0, 2.0]):
        axis = ScoreAxis.fit(scores, top=10, bottom=110)
        assert 2 <= len(axis.ticks()) <= 10
        assert all(-1e-6 <= axis.level(score) <= 1 + 1e-6 for score in scores)
        assert all(9.99 <= axis.y(score) <= 110.01 for score in scores)
        assert len({axis.text(tick) for tick in axis.ticks()}) == len(axis.ticks())


def test_the_best_path_leads_from_the_first_generation_to_the_best() -> None:
    assert best_path(FAMILY) == ("initial", "1", "3")
    assert best_path(()) == ()
    assert best_path((record(1, 2, 0.5), record(2, 1, 0.4))) == ("2", "1")  # a damaged archive: no endless walk


def test_the_lineage_shows_each_generation_its_parent_and_what_failed() -> None:
    drawing = draw_lineage(FAMILY, "lineage of generate_1")
    discs = [shape for shape in drawing.shapes if isinstance(shape, Disc)]
    texts = [shape.text for shape in drawing.shapes if isinstance(shape, Label)]
    assert len(discs) == 5
    assert "best 0.9000 in generation 3, 5 generations, 1 failed" in texts
    assert {"lineage of generate_1", "failed", "initial", "0.900"} <= set(texts)
    failed = [disc for disc in discs if disc.fill == "#b4bcc2"]
    assert len(failed) == 1
    assert failed[0].y > max(disc.y for disc in discs if disc is not failed[0])
    best = [disc for disc in discs if disc.rim == "#d9822b"]
    assert [disc.x for disc in best] == sorted(disc.x for disc in best)
    assert len(best) == 3
    assert min(discs, key=lambda disc: disc.y) in best


@pytest.mark.parametrize("count", [0, 1, 2, 41, 3000])
def test_the_lineage_of_any_run_can_be_drawn(count: int) -> None:
    records = [record("initial" if k == 0 else k, None if k == 0 else "initial", 0.5) for k in range(count)]
    drawing = draw_lineage(records)
    xml.dom.minidom.parseString(to_svg(drawing))
    discs = [shape for shape in drawing.shapes if isinstance(shape, Disc)]
    assert len(discs) == count
    assert all(0 < disc.x < drawing.width and 0 < disc.y < drawing.height for disc in discs)
    decode(to_png(drawing, scale=0.5))


def test_a_run_in_which_everything_failed_is_drawn() -> None:
    drawing = draw_lineage([record("initial", None, None), record(1, "initial", None)])
    assert any(isinstance(shape, Label) and shape.text == "2 generations, 2 failed" for shape in drawing.shapes)
    decode(to_png(drawing, scale=0.5))


def test_colours_are_parsed() -> None:
    assert parse_colour("#0a10ff") == (10, 16, 255)
