"""The table of `hyperrun image list`."""

from __future__ import annotations

import time

from hyperruntime.cli.containers.image import _row
from hyperruntime.driver import Image


def test_an_image_without_a_time_and_a_size_shows_neither() -> None:
    """This machine's /usr, bubblewrap's only image, was shown as 56 years old."""
    known = Image(id="a" * 64, references=(), size_bytes=2048, created=time.time() - 90)
    assert _row(known, "")[2:] == ("2.0 KiB", "1m30s")
    assert _row(Image(id="b", references=("b",), size_bytes=0, created=0), "b") == (
        "b",
        "b",
        "-",
        "-",
    )
    assert _row(Image(id="b", references=("b",), size_bytes=1, created=-62135596800), "b")[3] == "-"
