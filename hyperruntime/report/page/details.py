"""Details of generations and trajectories: compressed one by one, the most interesting first, up to
a size.

Each is a JSON object, compressed as RFC 1950 (zlib) and written in base64 (RFC 4648). The base64
texts of many stand one after another in a *block*, so that a page has few elements; the index says
where each one is.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Any

import attrs

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
