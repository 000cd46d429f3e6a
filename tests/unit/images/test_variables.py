"""The values of ENV and ARG, as `docker build` gives them; expected values are of Docker 20.10."""

from __future__ import annotations

import pytest

from hyperruntime.errors import SpecError
from hyperruntime.images.dockerfile import assignments
from hyperruntime.images.words import UNKNOWN, expand, unknown

KNOWN = {"A": "a b", "EMPTY": "", "BASE": unknown("BASE"), "PART": f"x{unknown('BASE')}"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("http://h/x?a=b&c=d#e", "http://h/x?a=b&c=d#e"),
        ('{"a":1}', "{a:1}"),
        (r"one\ two\$A", "one two$A"),
        ("'$A'\"$A\"$A", "$Aa ba b"),
        (r'"\n\"\$\\"', '\\n"$\\'),
        ("$(date) $ 5$", "$(date) $ 5$"),
        ("$5x$?", "x"),
        ("${NONE:-${A}-y}${NONE-z}", "a b-yz"),
        ("${EMPTY:-x}${EMPTY-y}${EMPTY:+z}${EMPTY+w}", "xw"),
        ("${A:+yes}${NONE:+no}${NONE+no}", "yes"),
        ("/x:${BASE}$PART", "/x:~{BASE}x~{BASE}"),
        ("${BASE:-a/b}${BASE:+c}", "~{BASE:-a/b}~{BASE:+c}"),
        ("", ""),
    ],
)
def test_a_value_is_read_as_docker_reads_it(text: str, value: str) -> None:
    """The tilde stands for the $ of a variable whose value is not known."""
    assert expand(text, KNOWN) == value.replace("~", UNKNOWN)


@pytest.mark.parametrize(
    "text",
    [
        *("'a", '"a', "${A", "${A:-x", "${A!x}", "${}", "${N:-" * 5000),
        *("${BASE:-$A;x}", "${PART:-x}", "${BASE#x}", "${BASE:?x}"),
    ],
)
def test_what_is_not_closed_or_not_supported_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match=r"closed|missing|unknown|not known|nested"):
        expand(text, KNOWN)


def test_the_old_form_of_env_is_one_value() -> None:
    assert list(assignments("A some 'text' B=1", old_form=True)) == [("A", "some 'text' B=1")]
    assert list(assignments("A=1 B='x y' C", old_form=True)) == [
        ("A", "1"),
        ("B", "'x y'"),
        ("C", None),
    ]
    assert list(assignments("A B=1")) == [("A", None), ("B", "1")]
