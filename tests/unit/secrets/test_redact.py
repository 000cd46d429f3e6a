"""The redactor removes keys in every encoding in which programs write text."""

from __future__ import annotations

import base64
import json
import quopri
from collections.abc import Callable
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperruntime.secrets.redact import MARK, Redactor
from tests.params import first_quick

KEY = "sk-the/Real_key+0123456789=AbC"


def escaped(form: str) -> bytes:
    """Return the key with each character in this escaped form."""
    return "".join(form.format(ord(char)) for char in KEY).encode()


SPELLINGS: dict[str, bytes] = {
    "plain": KEY.encode(),
    "upper case": KEY.upper().encode(),
    "reversed": KEY[::-1].encode(),
    "JSON": escaped("\\u{:04x}"),
    "JSON in upper case": escaped("\\u{:04X}"),
    "JSON in JSON": escaped("\\\\u{:04x}"),
    "JSON, every second character": "".join(
        f"\\u{ord(char):04x}" if at % 2 else char for at, char in enumerate(KEY)
    ).encode(),
    "JSON's slash": KEY.replace("/", "\\/").encode(),
    "JavaScript": escaped("\\u{{{:x}}}"),
    "C": escaped("\\x{:02x}"),
    "octal without zeros": escaped("\\{:o}"),
    "octal": escaped("\\{:03o}"),
    "URL": quote(KEY, safe="").encode(),
    "URL, each character": escaped("%{:02X}"),
    "URL, each character, in lower case": escaped("%{:02x}"),
    "URL of a URL": escaped("%25{:02X}"),
    "HTML": escaped("&#{};"),
    "HTML without its end": escaped("&#{} "),
    "HTML in hexadecimal": escaped("&#x{:x};"),
    "HTML of HTML": escaped("&amp;#x{:X};"),
    "HTML's names": KEY.replace("/", "&sol;")
    .replace("+", "&plus;")
    .replace("_", "&lowbar;")
    .encode(),
    "URL of HTML": quote("".join(f"&#{ord(char)};" for char in KEY)).encode(),
    "quoted-printable": "".join(f"={ord(char):02X}" for char in KEY).encode(),
    "quoted-printable, folded": quopri.encodestring(b"x" * 60 + KEY.encode()),
    "Markdown": KEY.replace("_", "\\_").replace("-", "\\-").encode(),
    "hexadecimal": KEY.encode().hex().encode(),
    "hexadecimal in upper case": KEY.encode().hex().upper().encode(),
    "hexadecimal with colons": KEY.encode().hex(":").encode(),
    "hexadecimal in lines": KEY.encode().hex("\n", 4).encode(),
    "a list of hexadecimal numbers": ", ".join(hex(byte) for byte in KEY.encode()).encode(),
    "a list of numbers": json.dumps(list(KEY.encode())).encode(),
    "a list of characters": json.dumps(list(KEY)).encode(),
    "a sum of texts": '" + "'.join([KEY[:9], KEY[9:20], KEY[20:]]).encode(),
    "blanks between": " ".join(KEY).encode(),
    "lines": "\n".join(KEY).encode(),
    "escaped lines": "\\n".join(KEY).encode(),
    "data lines": f"{KEY[:10]}\ndata: {KEY[10:]}".encode(),
    "data lines with CR": f"{KEY[:10]}\r\ndata:{KEY[10:]}".encode(),
    "UTF-16": KEY.encode("utf-16-le"),
    "UTF-16, the other way": KEY.encode("utf-16-be"),
    "UTF-32": KEY.encode("utf-32-le"),
    "hexadecimal UTF-16": KEY.encode("utf-16-le").hex().encode(),
    "base64 of UTF-16": base64.b64encode(KEY.encode("utf-16-le")),
    "hexadecimal UTF-32": KEY.encode("utf-32-be").hex().encode(),
    "base64 of UTF-32": base64.b64encode(b"?" + KEY.encode("utf-32-le")),
    "UTF-16 in JSON": json.dumps(KEY.encode("utf-16-le").decode("latin-1"))[1:-1].encode(),
    "hexadecimal, reversed": KEY.encode().hex()[::-1].encode(),
    "base64, reversed": base64.b64encode(KEY.encode())[::-1],
    "each letter after a backslash": "".join(f"\\{char}" for char in KEY).encode(),
    "invisible spaces": "\u200b".join(KEY).encode(),
    **{
        f"{between} between": between.join(KEY).encode()
        for between in (
            "\\u200b",
            "\\f",
            "\\b",
            "\\\\f",
            "%E2%80%8B",
            "&#8203;",
            "&#x200b;",
            "&ZeroWidthSpace;",
            "\\001",
        )
    },
    "base64 in lines": base64.encodebytes(b"Authorization: Bearer abcdefghij" + KEY.encode() * 2),
    "base64 in JSON": base64.b64encode(b"??>" + KEY.encode()).replace(b"/", b"\\/"),
    "base64 in a URL": quote(base64.b64encode(b"??>" + KEY.encode()), safe="").encode(),
}
for before in range(5):
    data = b"\xff?~>p"[:before] + KEY.encode() + b"?\xfe"
    SPELLINGS[f"base64 after {before} bytes"] = base64.b64encode(data)
    SPELLINGS[f"URL-safe base64 after {before} bytes"] = base64.urlsafe_b64encode(data)
    SPELLINGS[f"base32 after {before} bytes"] = base64.b32encode(data)


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_key_is_redacted_in_every_spelling(name: str) -> None:
    redactor = Redactor([KEY])
    data = b'{"error": "we got ' + SPELLINGS[name] + b', sorry"}'
    assert redactor.holds(data)
    cleaned = redactor.clean(data)
    assert not redactor.holds(cleaned)
    assert SPELLINGS[name] not in cleaned
    assert MARK.encode() in cleaned
    assert cleaned.startswith(b'{"error": "we got ')
    assert cleaned.endswith(b', sorry"}')


@pytest.mark.parametrize("escape", ["\\u{:04x}", "&#{};", "%{:02x}"])
def test_json_stays_valid_after_redaction(escape: str) -> None:
    data = b'{"a": "' + b"\\\\" * 3 + escaped(escape) + b'\\n", "b": 1}'
    assert json.loads(Redactor([KEY]).clean(data))["b"] == 1


def test_several_spellings_in_one_text_are_all_redacted() -> None:
    redactor = Redactor([KEY])
    data = b" -- ".join(
        [SPELLINGS["URL, each character"], KEY.encode() * 9, SPELLINGS["hexadecimal"]]
    )
    assert redactor.clean(data).count(b"--") == 2
    assert not redactor.holds(redactor.clean(data))


@pytest.mark.parametrize(
    "data",
    [b"x" * 1_000_000 + SPELLINGS["JSON"], b"-- ".join([SPELLINGS["JSON"]] * 50)],
    ids=["long", "often"],
)
def test_data_that_is_expensive_to_clean_is_replaced_completely(data: bytes) -> None:
    assert Redactor([KEY]).clean(data) == MARK.encode()


@given(st.binary(), st.binary())
def test_a_key_is_found_between_any_bytes(before: bytes, after: bytes) -> None:
    redactor = Redactor([KEY])
    data = before + KEY.encode() + after
    assert redactor.holds(data)
    assert not redactor.holds(redactor.clean(data))


@given(st.binary())
def test_data_without_a_key_is_unchanged(data: bytes) -> None:
    assert Redactor([KEY, "token-abc123"]).clean(data) == data


@pytest.mark.parametrize("text", ["o llama", "OLLAMA", "d u m m y k e y"])
def test_a_placeholder_key_does_not_redact_similar_words(text: str) -> None:
    assert Redactor(["ollama", "dummy-key"]).clean_text(text) == text
    assert Redactor(["ollama"]).clean_text("an ollama") == f"an {MARK}"


@pytest.mark.parametrize(
    "cut", [lambda key: key[:-1], lambda key: key[1:], lambda key: key[: len(key) // 2]]
)
def test_a_part_of_a_key_is_not_redacted_so_that_the_key_cannot_be_guessed_in_parts(
    cut: Callable[[str], str],
) -> None:
    assert Redactor([KEY]).clean_text(cut(KEY)) == cut(KEY)


def test_seat_tokens_are_redacted() -> None:
    token = "hyperruntime-" + "aZ-_" * 8
    assert Redactor().clean_text(f"the token {token}.") == f"the token {MARK}."


@pytest.mark.parametrize(
    "run",
    first_quick(
        "\\", "%25", "&#x0", "\\u00", "\\u{0", "%", "25", "&amp;", "&#0", "0", "=", quick=3
    ),
)
@pytest.mark.parametrize("first", ["", "\\", "\\u{", "%", "&", "&#", "&#x"])
def test_a_long_run_of_escape_characters_is_read_in_one_pass(first: str, run: str) -> None:
    data = (first + run * (50_000 // len(run))).encode()
    assert Redactor([KEY]).clean(data) == data
