"""The tokens of a trajectory as a page shows them: those that hold a part of a key are hidden,
texts and ids.

A key is rarely one token, so the joined texts are screened. An id is as good as its text: a
tokenizer makes one of the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import attrs

from hyperruntime.secrets.known import Secrets
from hyperruntime.secrets.redact import MARK

Decode = Callable[[Sequence[int]], str]

MORE = 512  # tokens after the last shown one that are decoded too: a key may be cut there
_MOST_OPEN = 8  # tokens that may wait for the rest of a letter
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # decoders write it for a part of a letter
_CUTS = (1 / 2, 1 / 4, 3 / 4, 1 / 8, 7 / 8)


@attrs.frozen
class ShownTokens:
    """Tokens as a page shows them.

    Attributes:
        ids: the ids; None for a hidden token.
        texts: their texts, "" for a token whose text is in a later one; empty if only the ids are
            known.
    """

    ids: list[int | None]
    texts: list[str]


def shown_tokens(ids: Sequence[int], decode: Decode, screen: Secrets, most: int) -> ShownTokens:
    """Return the first tokens of a sequence with their texts, those of keys hidden.

    Args:
        ids: the tokens.
        decode: returns the text of tokens.
        screen: removes keys.
        most: number of tokens to show.
    """
    known = ids[: most + MORE]
    groups = list(_groups(known, decode))
    hidden = [
        (groups[first][0], groups[last - 1][1])
        for first, last in _hidden([text for *_, text in groups], screen)
    ]
    whole = decode(known)
    # this tokenizer's texts are not parts of the whole
    if not hidden and screen.text(whole) != whole:
        return all_hidden(len(known[:most]))
    shown_ids = list[int | None](known)
    texts = [""] * len(known)
    for _, end, text in groups:
        texts[end - 1] = text
    for begin, end in hidden:
        shown_ids[begin:end] = [None] * (end - begin)
        texts[begin:end] = [MARK, *[""] * (end - begin - 1)]
    return ShownTokens(shown_ids[:most], texts[:most])


def all_hidden(count: int) -> ShownTokens:
    """Return ``count`` hidden tokens."""
    return ShownTokens([None] * count, [MARK, *[""] * (count - 1)] if count else [])


def _groups(ids: Sequence[int], decode: Decode) -> Iterator[tuple[int, int, str]]:
    """Yield tokens that have a text together, as ``(begin, end, text)``: mostly one token each.

    Each is decoded after the one before it, since some decoders drop the blank at the beginning of
    a text.
    """
    before = begin = 0
    known = ""
    for end in range(1, len(ids) + 1):
        text = decode(ids[before:end])
        is_open = text.endswith(_UNFINISHED) and end - begin < _MOST_OPEN and end < len(ids)
        if is_open:
            continue
        yield begin, end, text[len(known) :]
        before, begin = begin, end
        known = decode(ids[before:end])


def _hidden(texts: Sequence[str], screen: Secrets) -> Iterator[tuple[int, int]]:
    """Yield the ranges of texts that hold a part of a key."""
    text = "".join(texts)
    clean = screen.text(text)
    if clean == text:
        return
    if clean.count(MARK) > text.count(MARK) + 1:  # more than one key: cut between them
        for share in _CUTS:
            at = int(len(texts) * share)
            one = "".join(texts[:at])
            other = "".join(texts[at:])
            if 0 < at < len(texts) and screen.text(one) + screen.text(other) == clean:
                yield from _hidden(texts[:at], screen)
                yield from ((at + begin, at + end) for begin, end in _hidden(texts[at:], screen))
                return
    yield _changed(texts, text, clean)


def _changed(texts: Sequence[str], text: str, clean: str) -> tuple[int, int]:
    """Return the range of texts from the first character that was changed to the last one."""
    least = min(len(text), len(clean))
    same = next((n for n in range(least) if text[n] != clean[n]), least)
    tail = next((n for n in range(least - same) if text[-1 - n] != clean[-1 - n]), least - same)
    begin = len(texts)
    at = 0
    for number, one in enumerate(texts):
        at += len(one)
        begin = min(begin, number) if at > same else begin
        if at >= len(text) - tail:
            return begin, number + 1
    return begin, len(texts)
