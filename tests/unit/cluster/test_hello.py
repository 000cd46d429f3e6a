"""The hello of a node: any JSON is read or refused in one sentence, and facts are fit for a log and
a terminal.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperruntime.cluster.hello import Facts, Hello, OtherVersionError, parse_answer, parse_hello
from hyperruntime.cluster.node_server import node_facts
from hyperruntime.wire.messages import PeerFaultError

GOOD = Hello(version="1", session="s", received=3, facts=Facts(host="h", age_s=1.5))
NUMBERS = (
    st.integers() | st.floats() | st.sampled_from([-1, 1 << 64, 1e308, float("nan"), 10**400, True])
)
VALUES = st.recursive(
    st.none() | NUMBERS | st.text(st.characters(exclude_categories=())),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)
FACTS = st.dictionaries(st.sampled_from(["host", "pid", "time", "job", "age_s", "more"]), VALUES)


@given(
    st.fixed_dictionaries(
        {"version": st.just("1") | VALUES, "session": st.just("s") | VALUES},
        optional={"received": VALUES, "facts": FACTS | VALUES},
    )
    | VALUES
)
def test_any_json_is_a_hello_with_valid_fields_or_refused_in_one_line(value: Any) -> None:
    hello, why = GOOD, ""
    try:
        hello = parse_hello(json.dumps(value), "1")
    except PeerFaultError as error:
        why = str(error)
    assert why.isprintable()
    assert len(why) < 1000
    if why:
        return
    facts = hello.facts
    assert (hello.session + facts.host + facts.job).isprintable()
    assert 0 <= hello.received < 1 << 64
    assert 0 <= facts.age_s <= 1e10
    assert 0 <= facts.pid <= 1 << 31


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"received": -1}, "received=-1 is not allowed: a number from 0"),
        ({"received": 1e300}, "received=1e[+]300 is not allowed"),
        ({"session": "a\x1b[2J"}, r"session='a\\x1b\[2J' is not allowed: at most 100 printable"),
        ({"facts": {"age_s": float("nan")}}, "age_s=nan is not allowed"),
        ({"facts": {"age_s": -1}}, "age_s=-1 is not allowed"),
        ({"facts": {"age_s": 1e308}}, r"age_s=1e\+308 is not allowed"),
        ({"facts": {"host": "h\n2026 node lost"}}, r"host='h\\n2026 node lost' is not allowed"),
        ({"facts": {"host": "h" * 256}}, "at most 255 printable"),
        ({"facts": {"pid": 10**30}}, "pid=10+ is not allowed"),
        ({"facts": []}, r"facts=\[\] is not allowed: a table or JSON object"),
        ({"more": 1}, "more='...' is not allowed: a known key"),
    ],
)
def test_a_field_that_no_node_sends_is_named(changed: dict[str, Any], why: str) -> None:
    said = {**json.loads(GOOD.to_json()), **changed}
    with pytest.raises(PeerFaultError, match=why):
        parse_hello(json.dumps(said), "1")


def test_what_a_node_says_is_what_the_head_reads() -> None:
    assert parse_hello(GOOD.to_json(), "1") == GOOD
    honest = Hello(version="1", session="s", received=0, facts=node_facts())
    assert parse_hello(honest.to_json(), "1") == honest
    with pytest.raises(OtherVersionError, match=r"it has hyperruntime 1, the head has 2"):
        parse_hello(GOOD.to_json(), "2")


@pytest.mark.parametrize(
    "text", ["[" * 30_000, "{" * 10, "null", "x" * 100_000, b"{}", None, '{"received": -1}']
)
def test_a_text_that_is_not_the_first_message_is_refused_on_both_sides(text: object) -> None:
    with pytest.raises(PeerFaultError):
        parse_hello(text, "1")
    with pytest.raises(PeerFaultError):
        parse_answer(text)
