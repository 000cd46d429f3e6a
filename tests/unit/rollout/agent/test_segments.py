"""R3: the token record of a trajectory. W23: emitted tokens stay trainable, prompts never are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperruntime.errors import ModelError
from hyperruntime.rollout.agent.recorder import TokenRecord
from tests.doubles.tokenserver import emitted

_IDS = st.lists(st.integers(0, 50), max_size=12)


@st.composite
def _turns(draw: st.DrawFn) -> list[tuple[list[int], list[int], list[float]]]:
    """Draw turns whose prompts continue the turn before, or are rendered anew in any way."""
    turns: list[tuple[list[int], list[int], list[float]]] = []
    for _ in range(draw(st.integers(1, 6))):
        before = turns[-1][0] + turns[-1][1] if turns else []
        kind = draw(st.sampled_from(["on", "anew", "cut"]))
        if kind == "on":
            prompt = before + draw(_IDS)
        else:
            prompt = draw(_IDS) if kind == "anew" else before[: draw(st.integers(0, len(before)))]
        ids = draw(_IDS)
        logprobs = draw(st.lists(st.floats(-20, 0), min_size=len(ids), max_size=len(ids)))
        turns.append((prompt, ids, logprobs))
    return turns


@given(_turns())
def test_r3_unmasked_tokens_are_exactly_the_emitted_ones_and_prompts_are_masked(
    turns: list[tuple[list[int], list[int], list[float]]],
) -> None:
    record = TokenRecord()
    for turn in turns:
        record.add(*turn)
    segments = record.segments()
    assert emitted(segments) == tuple(token for _, ids, _ in turns for token in ids)
    kept = [lp for s in segments for lp, mask in zip(s.logprobs, s.mask, strict=True) if mask]
    assert kept == [lp for _, _, logprobs in turns for lp in logprobs]
    for segment in segments:
        assert len(segment.ids) == len(segment.mask) == len(segment.logprobs)
        assert all(
            lp is None for lp, mask in zip(segment.logprobs, segment.mask, strict=True) if not mask
        )


@given(_turns())
def test_w23_each_turn_is_recorded_after_the_prompt_that_the_server_saw(
    turns: list[tuple[list[int], list[int], list[float]]],
) -> None:
    record = TokenRecord()
    seen = []
    for prompt, ids, logprobs in turns:
        record.add(prompt, ids, logprobs)
        last = record.segments()[-1]
        assert list(last.ids) == prompt + ids
        seen.append(len(record.segments()))
    assert seen == sorted(seen)


def test_a_continued_prompt_extends_the_segment_and_any_other_prompt_starts_a_new_one() -> None:
    record = TokenRecord()
    record.add([1, 2], [3, 4], [-0.1, -0.2])
    record.add([1, 2, 3, 4, 5], [6], [-0.3])
    record.add([1, 2, 9], [7], None)
    first, second = record.segments()
    assert (list(first.ids), list(first.mask)) == ([1, 2, 3, 4, 5, 6], [0, 0, 1, 1, 0, 1])
    assert list(first.logprobs) == [None, None, -0.1, -0.2, None, -0.3]
    assert (list(second.ids), list(second.mask), list(second.logprobs)) == (
        [1, 2, 9, 7],
        [0, 0, 0, 1],
        [None] * 4,
    )


def test_a_turn_without_tokens_discards_the_whole_record() -> None:
    record = TokenRecord()
    record.add([1], [2], [-0.1])
    record.add(None, None, None)
    assert record.segments() == ()
    assert record.missing == 1


def test_log_probabilities_that_do_not_match_the_tokens_are_rejected() -> None:
    with pytest.raises(ModelError, match="2 token ids and 1 log prob"):
        TokenRecord().add([1], [2, 3], [-0.1])
    with pytest.raises(ModelError, match="not finite"):
        TokenRecord().add([1], [2], [float("-inf")])
