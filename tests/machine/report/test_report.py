"""Pictures of a run: their content, and that every run can be drawn."""

from __future__ import annotations

import json
import os
import sys
import xml.dom.minidom
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.image import imread

from hyperruntime.cli import main
from hyperruntime.errors import ExtraMissingError
from hyperruntime.host.process import python_args, run_process
from hyperruntime.loop.generation.series import (
    Node,
    best_path,
    best_so_far,
    every_series,
    steps_up,
    whole_run,
    whose_scores,
)
from hyperruntime.loop.run_files.archive import RunView, load_run
from hyperruntime.loop.run_files.layout import Layout
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.run_files.record import GenerationRecord, record_to_json
from hyperruntime.option_fields import to_json
from hyperruntime.report.figures import draw_lineage, draw_progress
from hyperruntime.report.pictures import write_pictures, write_plots
from hyperruntime.storage.atomic import append_line
from tests.params import first_quick


def record(
    genid: int | str, parent: int | str | None, score: float | None, **domains: dict[str, float]
) -> GenerationRecord:
    """Return a generation; without a score, it failed."""
    failure = None if score is not None else "agent"
    return GenerationRecord(
        genid=genid,
        parent=parent,
        score=score,
        scores=domains,
        failure=failure,  # type: ignore[arg-type]
    )


FAMILY = (
    record("initial", None, 0.5),
    record(2, "initial", None),
    record(1, "initial", 0.6),
    record(3, 1, 0.9),
    record(4, 2, 0.7),
)


def texts(svg: bytes) -> set[str]:
    document = xml.dom.minidom.parseString(svg)
    return {
        "".join(n.data for n in t.childNodes if n.nodeType == n.TEXT_NODE)
        for t in document.getElementsByTagName("text")
    }


def colours(png: bytes) -> set[str]:
    """Return the colours of a picture's pixels as ``#rrggbb``."""
    pixels = imread(BytesIO(png), format="png").reshape(-1, 4)
    found = {tuple(pixel) for pixel in pixels[:, :3].tolist()}
    return {"#" + "".join(f"{round(part * 255):02x}" for part in pixel) for pixel in found}


def test_the_best_path_leads_from_the_first_to_the_best_generation() -> None:
    assert best_path(whole_run(FAMILY)) == ("initial", 1, 3)
    assert best_path(()) == ()
    endless = (Node(genid=1, parent=2, score=0.5), Node(genid=2, parent=1, score=0.4))
    assert best_path(endless) == (2, 1)  # a damaged archive


def test_the_best_score_so_far_never_falls() -> None:
    nodes = whole_run(FAMILY)
    assert [node.genid for node in nodes] == ["initial", 1, 2, 3, 4]
    assert best_so_far(nodes) == (0.5, 0.6, 0.6, 0.9, 0.9)
    assert [node.genid for node in steps_up(nodes)] == ["initial", 1, 3]
    assert best_so_far(whole_run((record("initial", None, None),))) == (None,)


def test_the_lineage_shows_each_generation_and_the_best_one() -> None:
    drawn = draw_lineage(whole_run(FAMILY), "lineage of <generate_$1$> & more")
    said = texts(drawn["svg"])
    assert {"0", "1", "2", "3", "4", "0.900", "no score", "generation", "score"} <= said
    assert "lineage of <generate_$1$> & more" in said
    assert "best 0.9000 in generation 3, 5 generations, 1 without a score" in said
    # the path to the best generation, and the failed one
    assert {"#d9822b", "#b4bcc2"} <= colours(drawn["png"])


@pytest.mark.parametrize(
    ("count", "score"),
    first_quick(
        (0, None), (1, 0.5), (3000, 0.5), (1, None), (2, 0.5), (41, None), (3000, None), quick=3
    ),
)
def test_any_run_can_be_drawn(count: int, score: float | None) -> None:
    nodes = whole_run(
        [
            record("initial" if k == 0 else k, None if k == 0 else "initial", score)
            for k in range(count)
        ]
    )
    for draw in (draw_lineage, draw_progress):
        drawn = draw(nodes, "title")
        xml.dom.minidom.parseString(drawn["svg"])
        assert imread(BytesIO(drawn["png"]), format="png").shape[:2] == (540, 960)


@settings(max_examples=5, deadline=None)
@given(
    st.lists(st.tuples(st.integers(-1, 8), st.none() | st.floats(-1e6, 1e6)), max_size=8),
    st.text(max_size=20),
)
def test_any_archive_can_be_drawn(lines: Sequence[tuple[int, float | None]], title: str) -> None:
    nodes = [
        Node(genid=k, parent=None if p < 0 else p, score=score)
        for k, (p, score) in enumerate(lines)
    ]
    for draw in (draw_lineage, draw_progress):
        xml.dom.minidom.parseString(draw(nodes, title)["svg"])


def test_the_same_data_gives_the_same_bytes() -> None:
    nodes = whole_run(FAMILY)
    assert draw_lineage(nodes, "x") == draw_lineage(nodes, "x")


def test_there_is_a_series_per_domain_and_split_and_one_for_all_domains() -> None:
    records = [
        record("initial", None, 0.3, a={"train": 0.1, "val": 0.2}, b={"train": 0.5}),
        record(1, "initial", 0.3, a={"train": 0.3}),
    ]
    series = {one.name: [node.score for node in one.nodes] for one in every_series(records)}
    assert (
        next(one.name for one in every_series(records, whose_scores("both_agent_ensemble")))
        == "a_train_max"
    )
    assert series == {
        "a_train_agent": [0.1, 0.3],
        "a_val_agent": [0.2, None],
        "b_train_agent": [0.5, None],
        "together_a_b_train_agent": [0.3, None],
        "together_a_b_val_agent": [None, None],
    }


@pytest.fixture
def view(tmp_path: Path) -> RunView:
    layout = Layout(tmp_path / "generate_1")
    layout.root.mkdir()
    options = GenerateOptions(domains="circle_packing", max_generation=1, seed=5)
    layout.run.write_text(json.dumps({"options": to_json(options), "seed": 5}))
    for one in (
        record("initial", None, 0.2, circle_packing={"train": 0.1, "val": 0.2}),
        record(1, "initial", 0.4, circle_packing={"train": 0.3, "val": 0.4}),
    ):
        append_line(layout.journal, record_to_json(one))
    return load_run(layout.root)


@pytest.mark.slow
def test_a_run_of_the_hyperagents_contract_is_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layout = Layout(tmp_path / "generate_2")
    layout.root.mkdir()
    domains = ("paper_review", "balrog_nle")
    options = GenerateOptions(
        domains=domains, contract="hyperagents", optimize_option="both_agent_ensemble", seed=5
    )
    layout.run.write_text(json.dumps({"options": to_json(options), "seed": 5}))
    scores = {"paper_review": {"train": 0.1, "val": 0.2}, "balrog_nle": {"train": 0.3}}
    append_line(layout.journal, record_to_json(record("initial", None, 0.2, **scores)))
    assert main(["report", str(layout.root), "--pictures", str(layout.root)]) == 0
    assert str(layout.root / "lineage.svg") in capsys.readouterr().out
    for name in (
        "paper_review_val_max",
        "balrog_nle_train_max",
        "together_paper_review_balrog_nle_train_max",
    ):
        assert (layout.root / f"progress_plot_{name}.png").is_file()


def test_plots_have_the_file_names_that_other_tools_expect(view: RunView) -> None:
    root = Path(view.run_dir)
    written = write_plots(view.generations, root)
    for split in ("train", "val"):
        name = f"circle_packing_{split}_agent"
        for kind in ("progress_plot", "archive_graph"):
            assert (root / f"{kind}_{name}.png").read_bytes().startswith(b"\x89PNG")
            assert b"<svg" in (root / f"{kind}_{name}.svg").read_bytes()
    said = (root / "progress_info_circle_packing_val_agent.txt").read_text()
    assert "best from generation 1: 0.400000" in said
    assert "initial -> 1" in said
    assert len(written) == 4
    assert [picture.svg.name for picture in write_pictures(view, None)] == ["lineage.svg"]


def test_a_missing_matplotlib_raises_an_error_with_the_extra_to_install(
    view: RunView, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ExtraMissingError, match=r"pip install 'hyperruntime\[report\]'"):
        write_plots(view.generations, Path(view.run_dir))


DRAWS = (
    "from hyperruntime.loop.generation.series import Node; from hyperruntime.report.figures "
    "import draw_lineage; import hashlib; drawn = draw_lineage([Node(genid='initial', "
    "parent=None, score=0.5)], 't'); import matplotlib; "
    "print(hashlib.sha256(drawn['png']).hexdigest(), matplotlib.rcParams['text.usetex'])"
)


def test_pictures_read_no_file_of_the_current_directory(tmp_path: Path) -> None:
    """With ``text.usetex``, matplotlib runs TeX, which can read any file of the machine into the
    picture.
    """
    plain, tex, waiting = tmp_path / "plain", tmp_path / "tex", tmp_path / "waiting"
    for folder in (plain, tex, waiting):
        folder.mkdir()
    (tex / "matplotlibrc").write_text(
        "text.usetex : True\ntext.latex.preamble : \\input{/etc/passwd}\n"
    )
    os.mkfifo(waiting / "matplotlibrc")
    drawn = [
        run_process([*python_args("-c", DRAWS)], cwd=folder, timeout_s=100).stdout
        for folder in (plain, tex, waiting)
    ]
    assert drawn[0].endswith(b" False\n")
    assert drawn == drawn[:1] * 3
