"""Selection rules: what they choose, what they refuse, and that each choice can be reproduced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from hyperruntime.errors import DriverLoadError, HyperRuntimeError, RunError, SpecError
from hyperruntime.loop.run_files.archive import Archive
from hyperruntime.loop.run_files.layout import Layout
from hyperruntime.loop.run_files.parent_rules import (
    FORMULAS,
    RULES,
    Candidate,
    GenId,
    select_parent,
)
from hyperruntime.loop.run_files.record import GenerationRecord
from hyperruntime.loop.run_files.selection import Selection, choose_parent
from hyperruntime.registry import SELECTION, load_selection_rule, plugins

DIFF = "--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n"


def selection(
    candidates: Sequence[Candidate],
    *,
    generation: int = 9,
    seed: int = 0,
    parents: Mapping[GenId, GenId | None] | None = None,
    diffs: Mapping[GenId, str] | None = None,
) -> Selection:
    chain = {one.genid: "initial" if one.genid != "initial" else None for one in candidates}
    return Selection(
        generation=generation,
        candidates=tuple(candidates),
        parents=parents or chain,
        seed=seed,
        diff=lambda genid: (diffs or {}).get(genid, ""),
    )


def chosen(rule: str, candidates: Sequence[Candidate], **more: object) -> GenId:
    run = selection(candidates, **more)  # type: ignore[arg-type]
    return choose_parent(rule, load_selection_rule(rule), run)


def pool(count: int) -> list[Candidate]:
    scores = [0.1 + 0.8 * (7 * number % 10) / 10 for number in range(count)]
    initial = Candidate("initial", 0.1, 2)
    return [initial, *(Candidate(n, score, n % 3) for n, score in enumerate(scores, 1))]


def test_the_entry_points_are_the_shipped_rules() -> None:
    assert plugins(SELECTION).keys() >= set(RULES)


@pytest.mark.parametrize("rule", FORMULAS)
def test_a_formula_as_a_rule_chooses_what_the_formula_chooses(rule: str) -> None:
    for seed in range(20):
        run = selection(pool(12), generation=13, seed=seed)
        assert choose_parent(rule, load_selection_rule(rule), run) == select_parent(
            rule, pool(12), seed=seed, generation=13
        )


@pytest.mark.parametrize(
    "rule", ["islands", "islands:3,2", "map_elites:size", "novelty", "novelty:2"]
)
def test_a_choice_follows_from_seed_generation_and_archive(rule: str) -> None:
    choices = [
        [chosen(rule, pool(15), generation=number, seed=4) for number in range(16, 40)]
        for _ in range(2)
    ]
    assert choices[0] == choices[1]
    assert len(set(choices[0])) > 1 or rule == "map_elites:size"  # one cell: the best one


def test_islands_are_apart_until_their_best_members_migrate() -> None:
    candidates = pool(30)
    for number in range(31, 90):
        parent = chosen("islands:3,4", candidates, generation=number)
        turn, island = divmod(number, 3)
        assert isinstance(parent, int)
        if turn % 4:
            assert parent % 3 == island
        else:
            before = [one for one in candidates[1:] if int(one.genid) % 3 == (island - 1) % 3]
            assert parent == max(before, key=lambda one: one.score).genid
    assert chosen("islands:3", candidates[:2], generation=5) == "initial", "its island is empty"


def test_map_elites_choose_the_best_of_each_behaviour() -> None:
    candidates = [
        Candidate("initial", 0.1, 0, {"size": 0.0, "speed": 5.0}),
        Candidate(1, 0.9, 0, {"size": 1.0, "speed": 5.0}),
        Candidate(2, 0.8, 0, {"size": 2.0, "speed": 5.0}),
        Candidate(3, 0.2, 0, {"size": 99.0, "speed": 5.0}),
        Candidate(4, 0.3, 0, {"size": 100.0, "speed": 5.0}),
        Candidate(5, 0.0, 0, {"speed": 5.0}),
    ]

    def drawn(rule: str) -> Counter[GenId]:
        return Counter(chosen(rule, candidates, seed=seed) for seed in range(300))

    assert drawn("map_elites:size").keys() == {1, 4, 5}, "the one without the metric is a kind, too"
    assert drawn("map_elites:size,speed/200").keys() == {"initial", 1, 2, 3, 4, 5}
    assert drawn("map_elites:speed").keys() == {1}
    assert min(drawn("map_elites:size").values()) > 60, "all elites are equally likely"
    huge = [Candidate(n, 0.1, 0, {"size": size}) for n, size in enumerate([-1.7e308, 0.0, 1.7e308])]
    assert {chosen("map_elites:size", huge, seed=seed) for seed in range(60)} == {0, 1, 2}


def test_map_elites_refuse_a_metric_that_no_generation_has() -> None:
    candidates = [Candidate("initial", 0.1, 0, {"speed": 1.0})]
    with pytest.raises(RunError, match=r"'sped' is not allowed: did you mean 'speed'.*resume"):
        chosen("map_elites:sped", candidates)


def test_novelty_prefers_code_that_no_other_has_and_ignores_lines_that_came_and_went() -> None:
    alike = DIFF + "+same = 1\n+other = 2\n"
    diffs = dict.fromkeys(range(1, 7), alike) | {7: DIFF + "+++ new\n", 8: DIFF + "-++ new\n"}
    parents: dict[GenId, GenId | None] = dict.fromkeys(range(1, 8), "initial")
    parents |= {"initial": None, 8: 7}
    candidates = [Candidate(n, 0.5, 0) for n in (1, 2, 3, 4, 5, 6, 7)]
    drawn = Counter(
        chosen("novelty", candidates, seed=seed, parents=parents, diffs=diffs)
        for seed in range(100)
    )
    assert drawn == {7: 100}
    back = [Candidate("initial", 0.5, 0), Candidate(8, 0.5, 0)]
    both = {chosen("novelty", back, seed=n, parents=parents, diffs=diffs) for n in range(30)}
    assert both == {"initial", 8}, "the same code: no distance, so equal chances"


def test_novelty_weighs_the_score() -> None:
    diffs: dict[GenId, str] = {n: f"{DIFF}+line = {n}\n" for n in range(6)}
    parents: dict[GenId, GenId | None] = {"initial": None, **dict.fromkeys(range(6), "initial")}
    candidates = [Candidate(n, 0.95 if n == 2 else 0.1, 0) for n in range(6)]
    drawn = Counter(
        chosen("novelty", candidates, seed=seed, parents=parents, diffs=diffs)
        for seed in range(100)
    )
    assert drawn[2] > 60


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("bset", "did you mean 'best'"),
        ("zzz", "known: best, dgm, islands"),
        ("best:1", "takes no argument"),
        ("map_elites", "needs an argument: map_elites:ARGUMENT"),
        ("map_elites:a b", "map_elites:METRIC"),
        ("map_elites:a,a", "map_elites:METRIC"),
        ("map_elites:a/0", "whole numbers from 1"),
        ("islands:0", "whole numbers from 1"),
        ("islands:2,3,4", "whole numbers from 1"),
        ("novelty:many", "whole numbers from 1"),
        ("/no/such.py:Rule", "does not exist"),
    ],
)
def test_a_wrong_rule_is_refused_in_one_sentence(rule: str, said: str) -> None:
    with pytest.raises(SpecError, match=said) as caught:
        load_selection_rule(rule)
    assert "\n" not in str(caught.value)


CODE = """
class Oldest:
    def __call__(self, run):
        return run.candidates[0].genid
class Last:
    def __call__(self, run):
        return run.parents[run.candidates[-1].genid]
class Wrong:
    def __call__(self, run):
        return 77
class Broken:
    def __call__(self, run):
        return 1 / 0
class Plain:
    pass
"""


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("Wrong", RunError, "chose '77', which is not a generation that may become a parent"),
        ("Broken", DriverLoadError, "failed: ZeroDivisionError"),
        ("Plain", SpecError, "whose objects can be called"),
        ("Mine", SpecError, "has no class 'Mine'"),
    ],
)
def test_a_rule_of_a_file_is_used_and_its_faults_are_named(
    tmp_path: Path, name: str, error: type[HyperRuntimeError], said: str
) -> None:
    path = tmp_path / "rules.py"
    path.write_text(CODE)
    assert chosen(f"{path}:Oldest", pool(3)) == "initial"
    assert chosen(f"{path}:Last", pool(3)) == "initial"
    with pytest.raises(error, match=said):
        chosen(f"{path}:{name}", pool(3))


def test_a_rule_sees_the_archive_metrics_and_the_diffs_of_regular_files(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    archive = Archive(layout)
    metrics = {"d": {"train": {"size": 1.0}, "val": {"size": 2.0}}, "e": {"train": {"size": 4.0}}}
    archive._index(GenerationRecord(genid="initial", score=0.5, valid_parent=True))
    archive._index(GenerationRecord(genid=1, parent="initial", failure="agent"))
    archive._index(
        GenerationRecord(genid=2, parent="initial", score=0.6, valid_parent=True, metrics=metrics)
    )
    output = layout.generation(2) / "agent_output"
    output.mkdir(parents=True)
    (output / "model_patch.diff").write_bytes(b"+ a\xff\n")
    run = archive.selection(layout, generation=3, seed=1)
    assert [(one.genid, one.children, one.metrics) for one in run.candidates] == [
        ("initial", 2, {}),
        (2, 0, {"size": 3.0}),
    ]
    assert run.lineage(2) == ("initial", 2)
    assert run.parents == {"initial": None, 1: "initial", 2: "initial"}
    assert [run.diff(genid) for genid in ("initial", 2)] == ["", "+ a\ufffd\n"]
    (output / "model_patch.diff").unlink()
    (output / "model_patch.diff").symlink_to("/etc/passwd")
    assert run.diff(2) == ""
