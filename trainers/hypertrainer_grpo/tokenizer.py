"""A tokenizer with tokens for a few words and for all bytes, so that any text can be encoded and decoded."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

SPECIALS = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>")
_BYTES = 256


def _once(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words))


@attrs.frozen
class Tokenizer:
    """Token ids are ordered: special tokens, 256 bytes, words; ``encode`` never produces a special token.

    Attributes:
        words: words that have their own token; the longest match wins.
    """

    words: tuple[str, ...] = attrs.field(converter=_once)

    @property
    def size(self) -> int:
        """Number of tokens."""
        return len(SPECIALS) + _BYTES + len(self.words)

    def special(self, name: str) -> int:
        """Return the id of one of ``SPECIALS``."""
        return SPECIALS.index(name)

    def word(self, text: str) -> int:
        """Return the id of a word."""
        return len(SPECIALS) + _BYTES + self.words.index(text)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        data = text.encode("utf-8", "replace")
        ids: list[int] = []
        at = 0
        while at < len(data):
            word = self._longest(data, at)
            ids.append(len(SPECIALS) + data[at] if word is None else self.word(word))
            at += 1 if word is None else len(word.encode())
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of tokens; special tokens become their names, invalid UTF-8 becomes U+FFFD."""
        return b"".join(self._bytes(token) for token in ids).decode("utf-8", "replace")

    def _bytes(self, token: int) -> bytes:
        if token < len(SPECIALS):
            return SPECIALS[token].encode()
        if token < len(SPECIALS) + _BYTES:
            return bytes([token - len(SPECIALS)])
        return self.words[token - len(SPECIALS) - _BYTES].encode()

    def _longest(self, data: bytes, at: int) -> str | None:
        fitting = [word for word in self.words if data.startswith(word.encode(), at)]
        return max(fitting, key=len, default=None)
