"""Remove keys, in many encodings, from everything that is written or sent.

The redactor searches for whole keys only. If it removed parts of a key, it would confirm guesses,
and a client could find the key piece by piece.
"""

from __future__ import annotations

import json
import math
import re
from base64 import b32encode, b64encode
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator

MARK = "[redacted]"
_MARK = MARK.encode()
_SHORTEST = 6  # removing shorter keys would remove ordinary words
# letters and digits; a shorter key is searched as it is: its other spellings match ordinary words
_SPELLED = 10
_TOKEN_PREFIX = b"hyperruntime-"
_TOKEN = re.compile(rb"hyperruntime-[A-Za-z0-9_-]{32}")  # a seat's token, see Seat
_NESTED = 4  # levels of nested escapes to decode
_MOST_CUTS = 4
_MOST_CUT_BYTES = 256 * 1024
_LONGEST_CUT = 16 * 1024
_SURE = 20  # a text counts as the beginning of a key from this many characters of the key on
_UNFINISHED = 16  # the most letters and digits of an escape that is incomplete at the end of a text
_NO_LETTER = bytes(byte for byte in range(256) if not (byte < 128 and chr(byte).isalnum()))
_LOWER = bytes(range(256)).lower()
_HEX = rb"[0-9a-fA-F]"
_CODE = rb"([2-7][0-9a-fA-F])"
# starts with a set of bytes, which `re` finds fast; a match without a group is a blank
_ESCAPE = re.compile(
    rb"[\\%&](?:(?<=\\)(?<!\\\\)\\*+(?:"
    rb"(?:u00|U000000|x|u\{0*)" + _CODE + rb"\}?"  # JSON, JavaScript, Python, C
    rb"|(1[0-7]{2}|0?[4-7][0-7])"  # octal
    rb"|u\{"
    + _HEX
    + rb"{1,8}\}|u"
    + _HEX
    + rb"{4}|U"
    + _HEX
    + rb"{8}|x"
    + _HEX
    + rb"{2}|[0-3][0-7]{2}|[0abefnrtv])"
    rb"|(?<=%)(?:25)*(?:(?:u00)?" + _CODE + rb"|u?" + _HEX + rb"{2})"  # URLs
    # HTML
    rb"|(?<=&)(?:amp;)*(?:#[xX]0*" + _CODE + rb"(?!" + _HEX + rb");?|#0*([0-9]{2,3})(?![0-9]);?"
    # a named character: no letter, no digit
    rb"|#[xX]" + _HEX + rb"{1,8};?|#[0-9]{1,8};?|[A-Za-z]{2,31};))"
)
_QUOTED = re.compile(rb"=" + _CODE)  # quoted-printable


class Redactor:
    """Removes the keys of a gateway; add all keys before use. It can be pickled for the parse
    workers.

    Attributes:
        longest: characters in the longest key whose spellings are searched; 0 if there is none.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        """Start with some keys."""
        self._plain: tuple[bytes, ...] = ()
        self._needles: dict[bytes, bytes] = {}  # spelling -> its beginning
        self._heads: tuple[bytes, ...] = ()
        self.longest = 0
        for secret in secrets:
            self.add(secret)

    def add(self, secret: str) -> None:
        """Add a key, with its spellings in JSON, URLs, HTML, base64, hexadecimal and other common
        encodings.

        A key of fewer than 6 characters is ignored. One of fewer than 10 letters and digits has no
        other spellings.
        """
        if len(secret) < _SHORTEST:
            return
        plain = {secret.encode(), json.dumps(secret)[1:-1].encode()}
        self._plain = tuple(sorted({*self._plain, *plain}, key=len, reverse=True))
        if (letters := len(_squeeze(secret.encode()))) >= _SPELLED:
            part = min(0.5, _SURE / letters)
            self._needles |= {
                needle: needle[: math.ceil(part * len(needle))] for needle in _spellings(secret)
            }
            self._heads = tuple(self._needles.values())
            self.longest = max(self.longest, len(secret))

    def holds(self, data: bytes) -> bool:
        """Return whether the bytes hold a key in any spelling; keys that are too short for
        spellings do not count.
        """
        return self._is_in(data, self._needles)

    def begins(self, data: bytes) -> bool:
        """Return whether the bytes end in the beginning of a key, in any spelling, that is too long
        to guess.
        """
        return any(
            head in view and _is_begun(view, needle, len(head))
            for view in _views(data)
            for needle, head in self._needles.items()
        )

    def may_hold(self, data: bytes) -> bool:
        """Return whether the bytes hold, anywhere, a beginning as long as :meth:`begins` requires;
        faster than that.
        """
        return self._is_in(data, self._heads)

    def _is_in(self, data: bytes, needles: Iterable[bytes]) -> bool:
        for view in _views(data) if needles else ():
            for needle in needles:
                if needle in view:
                    return True
        return False

    def clean(self, data: bytes) -> bytes:
        """Return bytes without keys and seats' tokens; only ``MARK`` if a key cannot be cut out."""
        if _TOKEN_PREFIX in data:
            data = _TOKEN.sub(_MARK, data)
        for secret in self._plain:
            if secret in data:
                data = data.replace(secret, _MARK)
        for _ in range(_MOST_CUTS):
            if not self.holds(data):
                return data
            if len(data) > _MOST_CUT_BYTES:
                return _MARK
            data = self._cut(data)
        return _MARK if self.holds(data) else data

    def clean_text(self, text: str) -> str:
        """Return a text without keys and seats' tokens; only ``MARK`` if a key cannot be cut
        out.
        """
        return self.clean(text.encode(errors="surrogateescape")).decode(errors="replace")

    def _cut(self, data: bytes) -> bytes:
        """Replace the shortest stretch of bytes that holds a key by ``MARK``; if it is long, return
        only ``MARK``.
        """
        first = 0
        last = len(data)
        while third := (last - first) // 3:
            if self.holds(data[first : last - third]):
                last -= third
            elif self.holds(data[first + third : last]):
                first += third
            else:
                break
        if last - first > _LONGEST_CUT:
            return _MARK
        end = bisect_left(range(last), True, lo=first, key=lambda end: self.holds(data[first:end]))
        begin = (
            bisect_left(
                range(end), True, lo=first, key=lambda begin: not self.holds(data[begin:end])
            )
            - 1
        )
        while begin > 0 and data[begin - 1 : begin] == b"\\":
            begin -= 1
        return data[: max(begin, 0)] + _MARK + data[end:]


def _squeeze(data: bytes) -> bytes:
    """Return the letters and digits only, in lower case."""
    return data.translate(_LOWER, _NO_LETTER)


def _is_begun(view: bytes, needle: bytes, least: int) -> bool:
    """Return whether a view ends in the first characters of a needle, ignoring an incomplete escape
    after them.
    """
    at = view.find(needle[:least], max(0, len(view) - len(needle) - _UNFINISHED))
    while at >= 0:
        if needle.startswith(view[at : max(at + least, len(view) - _UNFINISHED)]):
            return True
        at = view.find(needle[:least], at + 1)
    return False


def _views(data: bytes) -> Iterator[bytes]:
    """Yield the letters and digits of the bytes: as they are, and with escapes decoded."""
    yield _squeeze(data)
    if b"data:" in data:
        data = data.replace(b"\ndata:", b" ").replace(b"\rdata:", b" ")
        yield _squeeze(data)
    for _ in range(_NESTED if any(sign in data for sign in b"\\%&") else 0):
        undone = _ESCAPE.sub(_undo, data)
        if undone == data:
            break
        data = undone
        yield _squeeze(data)
    if (undone := _QUOTED.sub(_undo, data)) != data:
        yield _squeeze(undone)


def _undo(match: re.Match[bytes]) -> bytes:
    """Return the ASCII byte that an escape stands for, or a blank."""
    group = match.lastindex
    if group is None:
        return b" "
    base = {2: 8, 5: 10}.get(group, 16)
    code = int(match[group], base)
    return bytes([code]) if code < 128 else b" "


def _spellings(secret: str) -> set[bytes]:
    """Return a key in every encoding that is searched for, squeezed."""
    plain = secret.encode()
    forms = {
        plain,
        plain[::-1],
        "".join(map(str, plain)).encode(),
        b"".join(b"0x%02x" % byte for byte in plain),
    }
    text = {plain.hex().encode(), *_parts(plain, b64encode, 3, 6)}
    forms |= {*text, *(form[::-1] for form in text), *_parts(plain, b32encode, 5, 5)}
    for wide in ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"):
        data = secret.encode(wide)
        forms |= {data.hex().encode(), *_parts(data, b64encode, 3, 6)}
        forms |= set(_parts(data, b32encode, 5, 5)) if "16" in wide else set()
    return {_squeeze(form) for form in forms}


def _parts(data: bytes, encode: Callable[[bytes], bytes], group: int, bits: int) -> Iterator[bytes]:
    """Yield the part of the encoding that depends on the data only, for each offset of the data in
    a group of bytes.
    """
    for before in range(group):
        encoded = encode(bytes(before) + data)
        yield encoded[-(-before * 8 // bits) : (before + len(data)) * 8 // bits]
