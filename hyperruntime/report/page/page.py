"""Write the page: one file, made from a template, with everything that it needs inside.

No script of a run can run in it. All texts of a run are data, which the page's own script writes as
text. Pictures are images. A Content-Security-Policy allows that script alone, by its hash. Source:
W3C, Content Security Policy Level 3.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, Protocol

import attrs
from jinja2 import Environment, FunctionLoader, StrictUndefined

from hyperruntime import __version__
from hyperruntime.errors import SpecError
from hyperruntime.storage.atomic import write_atomic
from hyperruntime.units import format_size

MOST_BYTES = 50_000_000
_LEAST_BYTES = 1_000_000
_MOST_RECORD_BYTES = 5_000_000  # of a page without details
# characters of each failure text: the next limit applies while the records are too large
_SHORTER = (160, 40, 0)
_INDEX_BYTES = 24  # of an entry's place in the index of details
_MOST_NAMED = 1000  # characters that name the entries without details
_MOST_TITLES = 3  # names of runs in the title
_TABLE_ROWS = 1000  # in the table that is there without a script
_SCRIPTS = (
    "vendor/uplot/uPlot.iife.min.js",
    "dom.js",
    "charts.js",
    "table.js",
    "details.js",
    "main.js",
)
_LIVE = "live.js"
_STYLES = ("vendor/uplot/uPlot.min.css", "page.css")


class ShownRun(Protocol):
    """A run that a page can show."""

    @property
    def scores(self) -> Sequence[float | None]:
        """The score of each entry."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """Notes about files that could not be read."""
        ...

    def facts(self) -> dict[str, Any]:
        """Return facts and columns."""
        ...

    def details(self, index: int) -> Mapping[str, Any] | None:
        """Return the details of an entry."""
        ...


@attrs.frozen(kw_only=True)
class Page:
    """A written page.

    Attributes:
        path: the file.
        size: its bytes.
        left_out: number of entries without details.
        notes: what could not be read.
    """

    path: Path
    size: int
    left_out: int
    notes: tuple[str, ...]


class Compared(Protocol):
    """The part of a page about several runs together."""

    @property
    def chart(self) -> Mapping[str, Any]:
        """The curves, as JSON values."""
        ...

    @property
    def tables(self) -> Sequence[Mapping[str, Any]]:
        """Captions, headings and rows of texts."""
        ...


def write_page(
    runs: Sequence[ShownRun],
    path: Path,
    *,
    max_bytes: int = MOST_BYTES,
    comparison: Compared | None = None,
) -> Page:
    """Write a page about one run, or about several of one kind side by side.

    Args:
        runs: the runs.
        path: the file, which is replaced.
        max_bytes: its largest size. Records and scores are always there; details that do not fit
            are left out, the lowest scores and the oldest first.
        comparison: what is shown of all of them together; None: nothing more.

    Raises:
        SpecError: the runs are of two kinds, or the size is below 1 MB or too small for records and
            scores.
        StorageError: the file cannot be written.
    """
    if max_bytes < _LEAST_BYTES:
        raise SpecError("max_size", format_size(max_bytes), f"at least {format_size(_LEAST_BYTES)}")
    facts = [run.facts() for run in runs]
    if len({one["kind"] for one in facts}) > 1:
        raise SpecError(
            "runs",
            ", ".join(one["name"] for one in facts),
            "runs of the loop, or rollout runs, not both",
        )
    for one, run in zip(facts, runs, strict=True):
        one["notes"] = list(run.notes)
    bare = _fit_records(facts) + (0 if comparison is None else _size_of(comparison))
    named_bytes = 8 * _MOST_NAMED * len(runs)
    if bare + named_bytes > max_bytes:
        least = f"records and scores alone need {bare + named_bytes:,} bytes; give at least that"
        raise SpecError("max_size", format_size(max_bytes), least)
    blocks = _all_blocks(runs, max_bytes - bare - named_bytes)
    for one, run, its in zip(facts, runs, blocks, strict=True):
        one["notes"] += [
            *(note for note in run.notes if note not in one["notes"]),
            *_omissions(one, its),
        ]
    data = _render(facts, blocks, comparison=comparison)
    write_atomic(path, data)
    left_out = sum(one.left_out for one in blocks)
    return Page(
        path=path,
        size=len(data),
        left_out=left_out,
        notes=tuple(note for run in runs for note in run.notes),
    )


def live_page(facts: dict[str, Any], position: str) -> tuple[bytes, str]:
    """Return a page that follows a run, and its Content-Security-Policy.

    The page takes new rows as events from ``events`` beside it, and details from ``details``.

    Args:
        facts: the run, with ``notes``.
        position: the event up to which ``facts`` know the run.
    """
    page = _render([facts], (), position)
    return page, _policy(is_live=True)


def _render(
    facts: Sequence[dict[str, Any]],
    blocks: Sequence[Blocks],
    position: str | None = None,
    comparison: Compared | None = None,
) -> bytes:
    for one, its in zip(facts, blocks):  # noqa: B905 - a live page has no blocks
        one["details"] = its.index
        one.setdefault("notes", [])
    is_live = position is not None
    page = _environment().get_template("page.html.j2")
    text = page.render(
        title=_title([one["name"] for one in facts]),
        version=__version__,
        policy=_policy(is_live=is_live),
        script=_script(is_live=is_live),
        style=_asset_text(_STYLES),
        position=position,
        licence=_asset("vendor/uplot/LICENSE").replace("--", "- -"),
        data=in_script(facts),
        tables=() if comparison is None else comparison.tables,
        chart=None if comparison is None else in_script(comparison.chart),
        facts=facts,
        rows=_TABLE_ROWS,
        order=_best_first,
        blocks=[text for one in blocks for text in one.texts],
        block_runs=[run for run, one in enumerate(blocks) for _ in one.texts],
    )
    return text.encode(errors="replace")


def _title(names: Sequence[str]) -> str:
    if len(names) > _MOST_TITLES:
        return f"{names[0]} and {len(names) - 1} more runs"
    return " and ".join(names)


def _fit_records(facts: Sequence[dict[str, Any]]) -> int:
    """Shorten why generations failed until records and scores are small; return the size of the
    page without details.

    The shortening is named in the notes.
    """
    notes = [one["notes"] for one in facts]
    size = len(_render(facts, [_no_blocks(one) for one in facts]))
    for most in _SHORTER:
        if size <= _MOST_RECORD_BYTES:
            break
        said = (
            f"Why entries failed is cut to {most} characters"
            if most
            else "Why entries failed is left out"
        )
        said += f": records and scores would have more than {format_size(_MOST_RECORD_BYTES)}."
        for one, before in zip(facts, notes, strict=True):
            one["detail"] = [
                text if len(text) <= most else f"{text[: most - 1]}…"[:most]
                for text in one["detail"]
            ]
            one["notes"] = [*before, said]
        size = len(_render(facts, [_no_blocks(one) for one in facts]))
    return size


def _size_of(comparison: Compared) -> int:
    """Return at least how many bytes a page needs for a comparison."""
    cells = sum(len(row) for table in comparison.tables for row in table["rows"])
    texts = in_script(comparison.chart) + json.dumps(comparison.tables)
    return len(texts.encode()) * 2 + cells * len('<td class="n"></td>')


def _no_blocks(facts: Mapping[str, Any]) -> Blocks:
    return Blocks([], [None] * len(facts["ids"]))


def _all_blocks(runs: Sequence[ShownRun], room: int) -> list[Blocks]:
    """Return the details of the runs, which share the room; what some do not need, others get."""

    def made(run: ShownRun, size: int) -> Blocks:
        count = len(run.scores)
        return make_blocks(
            count, best_and_newest(run.scores), run.details, max(0, size - _INDEX_BYTES * count)
        )

    def used(blocks: Blocks) -> int:
        return blocks.size + _INDEX_BYTES * len(blocks.index)

    found: list[Blocks] = []
    left = room
    for run in runs:
        one = made(run, left // (len(runs) - len(found)))
        found.append(one)
        left -= used(one)
    for place, run in enumerate(runs[:-1]):  # the last one had all that was left
        before = used(found[place])
        if found[place].left_out and left > before // 8:
            found[place] = made(run, before + left)
            left -= used(found[place]) - before
    return found


def _omissions(facts: Mapping[str, Any], blocks: Blocks) -> list[str]:
    """Return a sentence that names the entries without details, or nothing."""
    if not blocks.left_out:
        return []
    ids = facts["ids"]
    ranges = list[list[int]]()
    for n, place in enumerate(blocks.index):
        if place is not None:
            continue
        if ranges and ranges[-1][1] == n - 1:
            ranges[-1][1] = n
        else:
            ranges.append([n, n])
    named = ", ".join(ids[a] if a == b else f"{ids[a]} to {ids[b]}" for a, b in ranges)
    named = named if len(named) <= _MOST_NAMED else f"{named[:_MOST_NAMED]}..."
    return [
        f"Details of {blocks.left_out} of {len(ids)} were left out, because they do not fit "
        f"into this file or there are none: {named}. Scores and records are all here."
    ]


def _script(*, is_live: bool) -> str:
    return _asset_text((*_SCRIPTS, _LIVE) if is_live else _SCRIPTS)


def _policy(*, is_live: bool) -> str:
    allowed = {
        "default-src": "'none'",
        "script-src": f"'{_hash(_script(is_live=is_live))}'",
        "style-src": f"'{_hash(_asset_text(_STYLES))}'",
        "img-src": "data:",
        **({"connect-src": "'self'"} if is_live else {}),
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in allowed.items())


def in_script(value: object) -> str:
    """Return JSON that ends no script element. Source: WHATWG HTML, 4.12.1.3."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _best_first(scores: Sequence[float | None]) -> list[int]:
    return sorted(range(len(scores)), key=lambda n: (scores[n] is None, -(scores[n] or 0.0), n))


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def _asset_text(names: tuple[str, ...]) -> str:
    return "\n" + "\n".join(_asset(name) for name in names) + "\n"


@cache
def _asset(name: str) -> str:
    return (resources.files("hyperruntime.report.page") / "assets" / name).read_text(
        encoding="utf-8"
    )


@cache
def _environment() -> Environment:
    load: Callable[[str], str] = _asset
    environment = Environment(
        loader=FunctionLoader(load),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = lambda value: "" if value is None else f"{value:.4f}"
    return environment


_BLOCK_CHARS = 1 << 20
_LEVEL = 6
_MISSES = 20  # details that do not fit, one after another, before the rest is left out


@attrs.define
class Blocks:
    """Compressed details.

    Attributes:
        texts: the blocks.
        index: for each entry of the run, ``[block, offset, length]`` in characters, or None if it
            is left out.
        size: characters of all blocks.
    """

    texts: list[str]
    index: list[list[int] | None]
    size: int = 0

    @property
    def left_out(self) -> int:
        """Number of entries without details."""
        return sum(place is None for place in self.index)


def compress(value: Mapping[str, Any]) -> str:
    """Return a JSON object as a browser's ``DecompressionStream("deflate")`` reads it, in
    base64.
    """
    data = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
    return base64.b64encode(zlib.compress(data, _LEVEL)).decode()


def make_blocks(
    count: int, order: Iterable[int], details: Callable[[int], Mapping[str, Any] | None], size: int
) -> Blocks:
    """Return the details of as many entries as fit.

    Args:
        count: number of entries.
        order: the entries by importance.
        details: makes the details of an entry; None if there are none.
        size: most characters of all blocks.
    """
    blocks = Blocks([], [None] * count)
    parts: list[str] = []
    filled = misses = 0
    for entry in order:
        if misses >= _MISSES:
            break
        value = details(entry)
        if value is None:
            continue
        text = compress(value)
        if blocks.size + len(text) > size:
            misses += 1
            continue
        misses = 0
        blocks.index[entry] = [len(blocks.texts), filled, len(text)]
        blocks.size += len(text)
        parts.append(text)
        filled += len(text)
        if filled >= _BLOCK_CHARS:
            blocks.texts.append("".join(parts))
            parts = []
            filled = 0
    if parts:
        blocks.texts.append("".join(parts))
    return blocks


def best_and_newest(scores: Sequence[float | None]) -> Iterator[int]:
    """Yield all entries once: the best, the newest, the second best, the second newest, and so on.

    Args:
        scores: the scores, the newest last; None for an entry without a score.
    """
    best = sorted(
        (n for n, score in enumerate(scores) if score is not None),
        key=lambda n: (-(scores[n] or 0.0), n),
    )
    newest = range(len(scores) - 1, -1, -1)
    pairs = chain.from_iterable(zip_longest(best, newest))
    return iter(dict.fromkeys(entry for entry in pairs if entry is not None))
