"""Several runs compared: figures over runs, tests, tables for a paper, and returned lines."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from scipy.stats import mannwhitneyu

from hyperruntime.cli import main
from hyperruntime.loop.run_files.archive import load_run
from hyperruntime.loop.run_files.layout import Layout
from hyperruntime.report.study.content import Comparison, compare
from hyperruntime.report.study.returned import Lines, lines_of
from hyperruntime.report.study.runs import AXES, curve_of, spread
from hyperruntime.report.study.tables import Table, to_csv, to_latex
from tests.doubles.study_runs import study, write_run
from tests.unit.report.test_page import Read

HOSTILE = (
    '=HYPERLINK("http://x")\n</script><script>alert(1)</script> $\\input{/etc/passwd}$ % & _ # ^ ~'
)


@pytest.fixture
def two(tmp_path: Path) -> Comparison:
    """Return two studies of three runs."""
    one = study(tmp_path / "study_1", [0.1, None, 0.5], [0.2, 0.1, 0.4], [0.1, 0.3, 0.9])
    other = study(tmp_path / "study_2", [0.1, 0.2, 0.2], [0.1, 0.1, 0.1], [0.1, 0.3, 0.35])
    return compare([one, other], "0.45")


def rows(table: Table) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(to_csv(table))))


def test_scores_over_runs_are_their_median_and_quartiles(two: Comparison) -> None:
    one, other = two.groups
    assert (one.name, other.name) == ("study_1", "study_2")
    by_name = {axis.name: axis for axis in AXES}
    points = curve_of(one, by_name["generations"])
    assert [(x, at.median) for x, at in points] == [(0, 0.1), (1, 0.2), (2, 0.5)]
    assert [x for x, _ in curve_of(one, by_name["tokens"])] == [10, 20, 30]
    # the failed generation was not evaluated: that run had two evaluations, and keeps its score
    assert [(x, at.median) for x, at in curve_of(one, by_name["evaluations"])] == [
        (1, 0.1),
        (2, 0.3),
        (3, 0.5),
    ]
    assert [axis.name for axis in two.axes] == ["generations", "evaluations", "tokens", "seconds"]
    first = rows(two.summary())[0]
    assert [first[name] for name in ("runs", "median", "25 %", "75 %", "max", "tokens")] == [
        "3", "0.5", "0.45", "0.7", "0.9", "30",
    ]  # fmt: skip
    assert spread([3.0, 1.0]).median == 2.0


def test_a_run_that_ended_earlier_keeps_its_best_score(tmp_path: Path) -> None:
    root = study(tmp_path / "study_1", [0.4], [None, 0.2, 0.6], [None, None, None])
    (group,) = compare([root]).groups
    points = curve_of(group, AXES[0])
    assert [x for x, _ in points] == [1, 2]
    figures = [figure for _, at in points for figure in (at.low, at.high)]
    assert figures == pytest.approx([0.25, 0.35, 0.45, 0.55])
    assert group.scores == (0.4, 0.6)


def test_groups_are_tested_against_each_other_and_against_a_number(two: Comparison) -> None:
    pair, against, also = two.tests
    found = mannwhitneyu([0.5, 0.4, 0.9], [0.2, 0.1, 0.35], alternative="two-sided")
    assert (pair[0], pair[1]) == ("study_1", "study_2")
    assert (pair[2].p, pair[2].wins) == (found.pvalue, 1.0)
    assert against[1] == "baseline 0.45"
    assert against[2].wins == pytest.approx(2 / 3)
    assert also[2].wins == 0.0


def test_runs_of_no_study_are_grouped_by_their_options(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / f"generate_{n}", [0.1 * n], seed=n, parent_selection=rule)
        for n, rule in enumerate(("best", "best", "random", "random"), 1)
    ]
    groups = compare([*runs, runs[0]]).groups
    assert [(group.name, len(group.runs)) for group in groups] == [
        ("parent-selection best", 2),
        ("parent-selection random", 2),
    ]
    again = compare(runs[:2], str(runs[3]))
    assert [group.name for group in again.groups] == ["runs"]
    assert again.baseline is not None
    assert (again.baseline.name, again.baseline.score) == ("baseline generate_4", 0.4)


def test_the_front_has_the_scores_that_no_run_reached_for_less(two: Comparison) -> None:
    assert two.cost.name == "tokens"
    assert [(point.cost, point.score) for point in two.pareto()] == [
        (10, 0.2),
        (20, 0.3),
        (30, 0.9),
    ]


def diff(removed: Sequence[str], added: Sequence[str], name: str = "a.py") -> str:
    body = "".join(f"-{line}\n" for line in removed) + "".join(f"+{line}\n" for line in added)
    hunk = f"@@ -1,{len(removed)} +1,{len(added)} @@\n"
    return f"diff --git a/{name} b/{name}\n--- a/{name}\n+++ b/{name}\n{hunk}{body}"


def test_lines_return_that_an_earlier_diff_of_the_lineage_removed(tmp_path: Path) -> None:
    diffs = {
        1: diff(["x = 1", "-- y"], ["x = 2", "}"]),
        2: diff(["x = 2"], ["x = 1", "x = 1", "-- y", "x = 3"]),  # both removed lines, one twice
        3: diff([], ["x = 1"]),  # a child of 2, which has it already
        4: diff([], ["x = 1"]),  # a child of 1
        5: diff([], ["x = 1"], name="b.py") + diff(["}"], ["}"]),  # another file; moved in one diff
    }
    run = write_run(tmp_path / "r", [0.1] * 6, parents=[0, 1, 2, 1, 0], diffs=diffs)
    found = lines_of(load_run(run))
    assert found == {
        "initial": Lines(),
        1: Lines(added=2, removed=2, judged=1),
        2: Lines(added=4, removed=1, judged=4, returned=2),
        3: Lines(added=1, judged=1),
        4: Lines(added=1, judged=1, returned=1),
        5: Lines(added=2, removed=1, judged=1),
    }
    assert sum(found.values(), Lines()).share == pytest.approx(3 / 8)


def test_the_way_to_the_best_generation_names_the_gain_of_each_diff(tmp_path: Path) -> None:
    diffs = {2: diff(["x = 1"], ["x = 2", "y = 3"])}
    run = write_run(tmp_path / "r", [0.25, 0.1, 0.75], parents=[0, 0], diffs=diffs)
    path = rows(compare([run]).best_paths())
    assert [(row["generation"], row["gain"], row["added"]) for row in path] == [
        ("initial", "", "0"),
        ("2", "0.5", "2"),
    ]


def test_hostile_names_stay_names_in_every_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [
        write_run(tmp_path / f"generate_{n}", [0.1, 0.2], agent=HOSTILE * n, metrics={HOSTILE: 0.5})
        for n in (1, 2)
    ]
    odd = write_run(tmp_path / "=cmd|' $r$_^#&% {a}\\", [0.3])
    words = ["report", *map(str, (*runs, odd))]
    out = tmp_path / "out"
    assert main([*words, "--tables", str(out), "--pictures", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {Path(one["svg"]).name for one in told["pictures"]} == {
        "progress_generations.svg", "progress_evaluations.svg", "progress_tokens.svg",
        "progress_seconds.svg", "pareto.svg", "best_path.svg",
    }  # fmt: skip
    for path in map(Path, told["tables"]):
        text = path.read_text()
        if path.suffix == ".csv":
            cells = [cell for row in csv.reader(io.StringIO(text)) for cell in row]
            assert not [cell for cell in cells if cell.startswith(("=", "@", "+"))]
            continue
        assert r"\input" not in text.replace(r"\textbackslash{}input", "")
    page = tmp_path / "page.html"
    assert main([*words, "-o", str(page), "--baseline", "0.15"]) == 0
    read = Read(page)
    executed = [text for facts, text in read.scripts if "type" not in facts]
    assert len(executed) == 1
    assert "=cmd|' $r$_^#&% {a}\\" in read.words
    chart = next(text for facts, text in read.scripts if facts.get("id") == "chart")
    assert json.loads(chart)["baseline"]["score"] == 0.15
    assert f"circle_packing val {HOSTILE}" in read.data[0]["scores"]


def test_latex_and_csv_have_each_special_character_as_itself() -> None:
    table = Table(
        name="t",
        caption="50 %",
        columns=("a_b", "n"),
        rows=((r"$x & [y]~\z", -0.5), ("-", None), ("*?`'", 1)),
    )
    text = to_latex(table)
    assert r"\caption{50 \%}" in text
    assert r"\begin{tabular}{lr}" in text
    assert r"a\_b & n \\" in text
    assert r"\$x \& {[}y{]}\textasciitilde{}\textbackslash{}z & $-$0.5000 \\" in text
    assert r"{*}?\textasciigrave{}\textquotesingle{} & 1 \\" in text
    assert to_csv(table) == "a_b,n\r\n$x & [y]~\\z,-0.5\r\n'-,\r\n*?`',1\r\n"


def test_wrong_comparisons_are_refused_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "generate_1", [None])
    waiting = study(tmp_path / "study_1", [0.1])
    Layout(waiting / "generate_study_1_0").journal.write_text("")
    for words, said in (
        ([str(run), "--baseline", "nan"], "unknown run directory 'nan'"),
        ([str(run), "--baseline", str(run)], "has a score"),
        ([str(waiting)], "has begun; resume it first"),
        ([str(run), "--tables", "t", "-o", "x.html"], "cannot be combined with --output"),
    ):
        assert main(["report", *words]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1


def test_a_run_without_generations_has_empty_tables(tmp_path: Path) -> None:
    empty = write_run(tmp_path / "generate_1", [], max_generation=1)
    assert main(["report", str(empty), "--tables", str(tmp_path / "t")]) == 0
    with open(tmp_path / "t" / "runs.csv", newline="") as file:
        assert [(row["made"], row["best"]) for row in csv.DictReader(file)] == [("0", "")]
