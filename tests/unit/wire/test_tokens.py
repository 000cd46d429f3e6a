"""Tokens: one comparison for all servers, which no text or bytes of a client can break."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperruntime.wire.tokens import bearer_token, is_token, new_token

ANY_TEXT = st.text(st.characters(exclude_categories=())) | st.text(
    st.characters(categories=["Cs"]), min_size=1
)


@given(ANY_TEXT | st.binary(), st.text(st.characters(codec="ascii"), min_size=1))
def test_only_the_token_itself_is_right(given_: str | bytes, token: str) -> None:
    assert is_token(given_, token) == (given_ in (token, token.encode()))
    assert is_token(token, token)


@pytest.mark.parametrize("given_", ["", b"", "x" * (1 << 20), "\u00e9", "\ud800", "?"])
def test_an_odd_token_is_wrong_and_an_empty_one_opens_nothing(given_: str | bytes) -> None:
    assert not is_token(given_, new_token())
    assert not is_token(given_, "")


@given(ANY_TEXT)
def test_a_bearer_token_is_what_follows_the_scheme(text: str) -> None:
    assert bearer_token(f"bEaReR {text}") == text.strip()
    assert bearer_token(f"Basic {text}") == ""
    assert bearer_token("") == ""
