"""Parent selection: the formulas, their edge cases, and that each choice can be reproduced."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperruntime.loop.run_files.parent_rules import (
    FORMULAS,
    Candidate,
    select_parent,
    sigmoid,
    weights,
)

POOL = [
    Candidate("initial", 0.2, 3),
    Candidate(1, 0.6, 0),
    Candidate(2, 0.6, 8),
    Candidate(3, 0.1, 1),
]
candidates = st.lists(
    st.builds(Candidate, st.integers(0, 10**6), st.floats(-1e6, 1e6), st.integers(0, 10**4)),
    min_size=1,
    max_size=30,
)


def test_sigmoid_never_overflows() -> None:
    assert sigmoid(-1e9, 1e9) == 0.0
    assert sigmoid(1e9, -1e9) == 1.0


def test_candidates_have_equal_weights_if_all_weights_are_zero() -> None:
    assert weights("score_child_prop", [Candidate(1, 0.5, 1000), Candidate(2, 0.4, 1000)]) == [
        1.0,
        1.0,
    ]


def test_every_rule_distinguishes_scores_above_one_and_below_zero() -> None:
    above = [Candidate(number, score, 0) for number, score in enumerate([1.0, 1.3, 1.6, 1.9])]
    for rule in ("score_prop", "score_child_prop", "dgm"):
        found = weights(rule, above)
        assert found == sorted(found)
        assert found[-1] > 1.5 * found[0], (
            "the best one is chosen clearly more often than the worst one"
        )
        scaled = [Candidate(one.genid, one.score / 1.9, 0) for one in above]
        assert found == pytest.approx(weights(rule, scaled)), (
            "only the relation between the scores counts"
        )
    assert select_parent("best", above, seed=1, generation=4) == 3
    below = [Candidate(1, -2.0, 0), Candidate(2, -1.0, 0)]
    assert weights("score_prop", below)[1] > 2 * weights("score_prop", below)[0]


def test_a_score_just_above_one_hardly_changes_the_weights() -> None:
    usual = [Candidate(1, 0.5, 0), Candidate(2, 1.0, 0)]
    record = [Candidate(1, 0.5, 0), Candidate(2, 1.0002, 0)]
    assert weights("score_prop", record) == pytest.approx(weights("score_prop", usual), rel=0.01)


@given(candidates, st.sampled_from(FORMULAS), st.integers(0, 2**32), st.integers(1, 10**6))
def test_a_choice_depends_only_on_seed_generation_and_archive(
    pool: list[Candidate], rule: str, seed: int, generation: int
) -> None:
    chosen = select_parent(rule, pool, seed=seed, generation=generation)
    assert chosen in {one.genid for one in pool}
    assert select_parent(rule, list(pool), seed=seed, generation=generation) == chosen


@given(candidates, st.sampled_from(["random", "score_prop", "score_child_prop"]))
def test_weights_are_never_negative_and_never_all_zero(pool: list[Candidate], rule: str) -> None:
    values = weights(rule, pool)
    assert len(values) == len(pool)
    assert min(values) >= 0
    assert sum(values) > 0


def test_an_empty_pool_is_an_error() -> None:
    with pytest.raises(ValueError, match="no candidate"):
        select_parent("best", [], seed=0, generation=1)


def test_an_unknown_rule_is_an_error() -> None:
    with pytest.raises(ValueError, match="no weights"):
        select_parent("worst", POOL, seed=0, generation=1)


# The same formulas, written from their description with exact arithmetic, for a pool with every
# special case.
CASES = (
    [("initial", 0.2, 3), (1, 0.6, 0), (2, 0.6, 8), (3, 0.1, 1)],
    [("initial", 0.0, 0)],
    [("initial", 0.5, 2), (4, 0.5, 2)],
    [(0, 0.3, 24), (1, 0.9, 1), (2, 0.9, 1), (5, 0.9, 0), (6, 1.0, 40)],
)


def exactly(rule: str, pool: list[tuple[str | int, float, int]]) -> list[float]:
    """Return the probabilities by the description of the rule."""
    top = sorted((score for _, score, _ in pool), reverse=True)[:3]
    middle = 0.5 if rule == "dgm" else sum(top) / len(top)
    values = []
    for _, score, children in pool:
        sig = 1 / (1 + math.exp(-10 * (score - middle)))
        by_children = {
            "score_child_prop": math.exp(-((children / 8) ** 3)),
            "dgm": 1 / (1 + children),
        }
        values.append(1.0 if rule == "random" else sig * by_children.get(rule, 1.0))
    total = sum(values)
    return [value / total for value in values]


@pytest.mark.parametrize("pool", CASES)
@pytest.mark.parametrize("rule", ["random", "score_prop", "score_child_prop", "dgm"])
def test_probabilities_equal_those_of_the_description(
    rule: str, pool: list[tuple[str | int, float, int]]
) -> None:
    found = weights(rule, [Candidate(*one) for one in pool])
    assert [value / sum(found) for value in found] == pytest.approx(exactly(rule, pool), rel=1e-12)


# The 99.9th percentile of chi-square, by degrees of freedom.
CRITICAL = {1: 10.828, 3: 16.266, 4: 18.467}


@pytest.mark.parametrize("pool", [case for case in CASES if len(case) > 1])
@pytest.mark.parametrize("rule", ["random", "score_prop", "score_child_prop", "dgm"])
@pytest.mark.parametrize("drawn_over", ["seeds", "generations"])
def test_draws_over_seeds_and_over_generations_fit_the_probabilities(
    drawn_over: str, rule: str, pool: list[tuple[str | int, float, int]]
) -> None:
    draws, some = 1000, [Candidate(*one) for one in pool]
    pairs = [(n, 1) if drawn_over == "seeds" else (12, n) for n in range(draws)]
    drawn = Counter(
        select_parent(rule, some, seed=seed, generation=number) for seed, number in pairs
    )
    chances = exactly(rule, pool)
    # too few for the statistic: merged into one
    rare = [n for n, chance in enumerate(chances) if chance * draws < 5]
    assert sum(drawn[pool[n][0]] for n in rare) <= 5 + 6 * math.sqrt(
        sum(chances[n] * draws for n in rare)
    )
    kept = [n for n in range(len(pool)) if n not in rare]
    statistic = sum(
        (drawn[pool[n][0]] - draws * chances[n]) ** 2 / (draws * chances[n]) for n in kept
    )
    assert statistic < CRITICAL[len(pool) - 1]


def test_latest_takes_the_last_archived_and_best_the_first_of_equal_scores() -> None:
    tied = [Candidate("initial", 0.5, 0), Candidate(2, 0.7, 9), Candidate(1, 0.7, 0)]
    assert select_parent("best", tied, seed=0, generation=3) == 2
    assert select_parent("latest", tied, seed=0, generation=3) == 1


@pytest.mark.parametrize("rule", FORMULAS)
def test_the_only_candidate_is_the_parent(rule: str) -> None:
    assert (
        select_parent(rule, [Candidate("initial", 0.0, 10**6)], seed=5, generation=9) == "initial"
    )
