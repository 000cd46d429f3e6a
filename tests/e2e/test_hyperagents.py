"""Unmodified repositories of the HyperAgents layout, on real containers and with a scripted
model.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import hyperruntime as hr
from hyperruntime import Runtime
from hyperruntime.cli import main
from hyperruntime.cli.loop.progress import exit_code
from hyperruntime.errors import EngineUnavailableError
from hyperruntime.git.command import git
from hyperruntime.loop.run.one_generation import evaluate_generation, export_generation
from hyperruntime.loop.run.plan import plan_resume
from hyperruntime.loop.run.run import RunSummary, resume_run
from hyperruntime.loop.run_files.archive import load_run
from hyperruntime.loop.run_files.record import GenerationRecord
from tests.doubles.upstream import (
    Received,
    Reply,
    ScriptedUpstream,
    chat,
    forget_model_servers,
    scripted_upstream,
)
from tests.params import first_quick
from tests.runs import failures, parents
from tests.runs import start as start_run

pytestmark = pytest.mark.engine

STANDIN = Path(__file__).parents[1] / "standin"
KEY = "sk-of-the-host-0123456789"
WORDS = ("thorough", "novel", "sound", "clear")
SEED = 3
FAILING_CHOICE = "\n\ndef select_next_parent(*_):\n    raise RuntimeError('no idea')\n"
SEARCH_FAILS = """

forward = TaskAgent.forward
TaskAgent.forward = lambda agent, inputs: forward(agent, inputs) if "paper_text" in inputs else ("neither", [])
"""
LOOKS = """

from utils.archive import get_saved_score, load_archive

edit = MetaAgent.forward


def forward(agent, repo_path, eval_path, iterations_left):
    edit(agent, repo_path, eval_path, iterations_left)
    archive = load_archive(eval_path)
    paths = [entry.path for entry in os.scandir(eval_path) if entry.is_file()]
    files = {os.path.basename(path): open(path).read() for path in paths}
    ensemble = get_saved_score("paper_review", eval_path, archive[-1], type="ensemble")
    with open(os.path.join(os.path.dirname(agent.chat_history_file), "seen.json"), "w") as file:
        json.dump({"archive": archive, "files": files, "ensemble": ensemble}, file)


MetaAgent.forward = forward
"""
Edits = Mapping[str, str]
Run = Callable[..., RunSummary]


def word_of(left: int) -> Edits:
    """Return the edit that the scripted model makes when ``left`` generations are left."""
    return {"keywords.txt": WORDS[left % len(WORDS)] + "\n"}


class Model:
    """A scripted model that answers with text to append to files; ``edits`` maps generations left
    to this text.
    """

    def __init__(self) -> None:
        self.edits: dict[int, Edits] = {}

    def reply(self, received: Received) -> Reply:
        line = received.body["messages"][-1]["content"].splitlines()[0]
        left = int(line.removeprefix("iterations left: "))
        return chat(json.dumps({"append": self.edits.get(left, word_of(left))}))


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def upstream(model: Model) -> Iterator[ScriptedUpstream]:
    with scripted_upstream(model.reply) as running:
        yield running


@pytest.fixture
def checkout(tmp_path: Path, upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a checkout of the stand-in, with keys in its ``.env``."""
    forget_model_servers(monkeypatch)
    folder = tmp_path / "a user's checkout"
    shutil.copytree(STANDIN, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / ".env").write_text(f"OPENAI_BASE_URL={upstream.url}\nOPENAI_API_KEY={KEY}\n")
    return folder


@pytest.fixture
def run(tmp_path: Path, runtime: Runtime, base_image: str, checkout: Path) -> Run:
    """Return a function that runs the checkout on the engine."""

    def start(**options: Any) -> RunSummary:
        chosen = options.pop("runtime", runtime)
        defaults = {"domains": "paper_review", "image": base_image, "max_generation": 2}
        return start_run(chosen, tmp_path, agent=str(checkout), **{**defaults, **options})

    return start


def facts(record: GenerationRecord) -> tuple[object, ...]:
    return record.genid, record.parent, record.score, record.scores, record.commit, record.failure


def read_csv(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def original_archive() -> ModuleType:
    """Return the stand-in's module that reads the files of a run, as the tools around HyperAgents
    do.
    """
    spec = importlib.util.spec_from_file_location(
        "original_archive", STANDIN / "utils" / "archive.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def files_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_run_has_the_files_and_scores_of_the_original(run: Run) -> None:
    summary = run()
    root = Path(summary.run_dir)
    assert failures(summary) == [None] * 3
    first = summary.generations[0]
    assert (first.staged_only, first.scores) == (
        True,
        {"paper_review": {"train": 0.05, "val": 0.04}},
    )
    last = root / "gen_2"
    expected = {"metadata.json", "generate.log"}
    expected |= {"agent_output/model_patch.diff", "agent_output/meta_agent_chat_history.md"}
    for name, split, count in (
        ("paper_review_eval", "train", 12),
        ("paper_review_eval_val", "val", 10),
    ):
        expected |= {f"{name}/predictions.csv", f"{name}/report.json"}
        expected |= {
            f"{name}/agent_evals/chat_history_{split}-{number:02}.md" for number in range(count)
        }
        rows = read_csv(last / name / "predictions.csv")
        right = sum(row["prediction"] == row["outcome"] for row in rows)
        report = json.loads((last / name / "report.json").read_text())
        assert (len(rows), report["total"], report["total_correct"]) == (count, count, right)
        assert (
            report["overall_accuracy"]
            == summary.generations[2].scores["paper_review"][split]
            == right / count
        )
    assert files_of(last) == expected
    metadata = json.loads((last / "metadata.json").read_text())
    assert (metadata["run_eval"], metadata["run_full_eval"], metadata["valid_parent"]) == (
        True,
        True,
        True,
    )
    assert "run_full_eval" not in json.loads((root / "gen_initial" / "metadata.json").read_text())
    assert json.loads((root / "archive.jsonl").read_text().splitlines()[-1])["archive"] == [
        "initial",
        1,
        2,
    ]


def test_an_agent_finds_no_label_and_no_key(run: Run, checkout: Path, upstream: object) -> None:
    with open(checkout / "task_agent.py", "a") as file:
        file.write(
            "\n\nclass TaskAgent(TaskAgent):\n    def forward(self, inputs):\n        import "
            "csv, glob\n        places = ('/hyperagents/**/*.csv', '/tmp/**/*.csv')\n        "
            "tables = [path for place in places for path in glob.glob(place, recursive=True)]\n "
            "       rows = [row for path in tables for row in csv.DictReader(open(path, "
            "newline=''))]\n        found = {row.get('outcome') for row in rows if "
            "row['paper_text'] == inputs['paper_text']}\n        keys = [key for key in "
            "('/hyperagents/.env',) if os.path.exists(key)]\n        if '-'.join(['of', 'the', "
            "'host']) in str(os.environ): keys.append('environment')\n        return "
            "(max(found) if len(tables) > 2 else 'no tables') or ('key' if keys else 'none'), "
            "[]\n"
        )
    summary = run(max_generation=1)
    root = Path(summary.run_dir)
    for name in ("paper_review_eval", "paper_review_eval_val"):
        assert {
            row["prediction"] for row in read_csv(root / "gen_initial" / name / "predictions.csv")
        } == {"none"}
    for path in [*root.rglob("view/**/*.csv"), *root.rglob("standings/**/*.csv")]:
        assert {row["outcome"] for row in read_csv(path)} == {""}, path
    shown = {path for path in files_of(root / "view") if not path.startswith("gen_initial/agent/")}
    assert not any("_val" in path or "_test" in path for path in shown)
    objects = git(
        ["-C", str(root / "repository.git"), "cat-file", "--batch-all-objects", "--batch"]
    )
    tables = re.findall(rb'second line: [a-z ]+\.",([a-z]*)', objects)
    assert len(tables) == 30
    assert set(tables) == {b""}
    assert KEY.encode() not in objects


@pytest.mark.slow
def test_a_meta_agent_finds_the_overview_of_the_run_where_the_original_has_it(
    run: Run, checkout: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open(checkout / "meta_agent.py", "a") as file:
        file.write(LOOKS)
    summary = run(optimize_option="both_agent_ensemble")
    root = Path(summary.run_dir)
    assert failures(summary) == [None] * 3
    seen = json.loads((root / "gen_2/agent_output/seen.json").read_text())
    assert seen["archive"] == ["initial", 1]
    top = "progress_info_paper_review_train_max.txt"
    assert sorted(seen["files"]) == ["archive.jsonl", "generate_loop.log", top]
    assert seen["files"]["generate_loop.log"].startswith("Args: domains=['paper_review'], ")
    best = max(record.scores["paper_review"]["train"] for record in summary.generations[:2])
    assert f": {best:.6f}" in seen["files"][top]
    assert seen["ensemble"] == pytest.approx(summary.generations[1].scores["paper_review"]["train"])
    text = json.dumps(seen)
    for hidden in (
        str(tmp_path),
        KEY,
        f"{summary.generations[1].scores['paper_review']['val']:.6f}",
    ):
        assert hidden not in text
    names = sorted(name for name in files_of(root / "view") if "_val" in name or "_test" in name)
    shown = "gen_initial/agent/domains/paper_review/dataset_filtered_100_{}.csv"
    # the first agent's own, as in every checkout:
    assert names == [shown.format("test"), shown.format("val")]
    # without labels
    assert {row["outcome"] for name in names for row in read_csv(root / "view" / name)} == {""}
    assert main(["report", summary.run_dir]) == 0
    assert "report.html" in capsys.readouterr().out


def test_an_agent_cannot_forge_its_score(run: Run, checkout: Path, model: Model) -> None:
    forged = (
        "\n\nimport json\n"
        "for name in ('paper_review_eval', 'paper_review_eval_val'):\n"
        "    os.makedirs(f'/tmp/{name}', exist_ok=True)\n"
        "    with open(f'/tmp/{name}/report.json', 'w') as file:\n"
        "        json.dump({'overall_accuracy': 1.0, 'total': 10}, file)\n"
        "    with open('domains/report.py', 'a') as file:\n"
        "        file.write('raise SystemExit(0)')\n"
        "print('overall_accuracy: 1.0')\n"
    )
    model.edits[0] = {
        "task_agent.py": forged,
        "domains/report.py": "# mine\n",
        "domains/extra.py": "# mine\n",
    }
    with open(checkout / "utils/git.py", "a") as file:
        file.write("\n\nreset = git\n")
        file.write(
            "git = lambda where, *args, **kw: '' if 'domains/' in args else reset(where, *args, "
            "**kw)\n"
        )
    summary = run(max_generation=1)
    record = summary.generations[1]
    assert record.failure is None
    for name, split in (("paper_review_eval", "train"), ("paper_review_eval_val", "val")):
        rows = read_csv(Path(summary.run_dir) / "gen_1" / name / "predictions.csv")
        right = sum(row["prediction"] == row["outcome"] for row in rows)
        assert record.scores["paper_review"][split] == right / len(rows) < 1
    assert {path for path, _ in record.dropped} == {"domains/report.py", "domains/extra.py"}


@pytest.mark.parametrize(
    "deed",
    first_quick(
        "shutil.rmtree(folder); os.symlink('/etc', folder)",
        "os.remove(table); os.mkfifo(table)",
        "os.remove(table); os.symlink('/etc/passwd', table)",
        "open(table, 'w').truncate(1 << 40)",
        "open(table, 'w').write('no table')",
        "open(table, 'ab').write(b'\\xff\\x00\"')",
    ),
)
def test_invalid_result_files_fail_only_the_evaluation(run: Run, model: Model, deed: str) -> None:
    """The agent damages the harness's results when its process exits."""
    at_exit = (
        "\n\nimport atexit, shutil\nfolder = '/tmp/paper_review_eval'\ntable = folder + "
        "'/predictions.csv'\n"
    )
    model.edits[1] = {"task_agent.py": f"{at_exit}atexit.register(lambda: exec({deed!r}))\n"}
    summary = run(max_generation=2, parent_selection="best")
    assert failures(summary) == [None, "evaluation", None]
    assert not list((Path(summary.run_dir) / "work").iterdir())


@pytest.mark.slow
def test_each_kind_of_failure_is_recorded_separately(run: Run, model: Model) -> None:
    model.edits = {
        3: {"task_agent.py": "import nothing_of_this_name\n"},
        2: {
            "keywords.txt": "\n",
            "task_agent.py": "\n\ndef fail(*_):\n    raise ValueError('none')\n\n\nTaskAgent.forward = "
            "fail\n",
        },
        1: {},
        0: {"task_agent.py": "\n\nTaskAgent.forward = lambda *_: ('maybe', [])\n"},
    }
    summary = run(max_generation=4)
    assert failures(summary) == [None, "does-not-load", "evaluation", "empty-diff", None]
    assert "nothing_of_this_name" in summary.generations[1].detail
    last = summary.generations[4]
    assert (last.staged_only, last.score) == (True, 0.0)
    assert parents(summary)[1:] == ["initial"] * 4


@pytest.mark.slow
def test_the_score_of_several_domains_is_their_mean(run: Run) -> None:
    summary = run(domains=("search_arena", "paper_review"), max_generation=1, eval_samples=(4, -1))
    record = summary.generations[1]
    tables = {
        name: read_csv(Path(summary.run_dir) / f"gen_1/{name}_eval_val/predictions.csv")
        for name in record.scores
    }
    assert {name: len(rows) for name, rows in tables.items()} == {
        "search_arena": 4,
        "paper_review": 10,
    }
    assert record.score == sum(scores["val"] for scores in record.scores.values()) / 2


@pytest.mark.slow
def test_one_domain_that_fails_its_first_stage_stops_the_full_evaluation(
    run: Run, model: Model
) -> None:
    model.edits[0] = {"task_agent.py": SEARCH_FAILS}
    summary = run(domains=("search_arena", "paper_review"), max_generation=1)
    record = summary.generations[1]
    assert (record.failure, record.staged_only) == (None, True)
    assert record.scores["search_arena"] == {"train": 0.0, "val": 0.0}
    assert len(read_csv(Path(summary.run_dir) / "gen_1/paper_review_eval/predictions.csv")) == 10


def write_initial_results(checkout: Path, **scores: float) -> None:
    """Write the results of the first agent, as the original leaves them, with one right answer."""
    for split, score in scores.items():
        folder = checkout / "outputs" / f"initial_paper_review_filtered_100_{split}_0"
        folder.mkdir(parents=True)
        (folder / "report.json").write_text(json.dumps({"overall_accuracy": score}))
        (folder / "predictions.csv").write_text(
            "question_id,paper_text,outcome,prediction\nval-00,t,accept,accept\n"
        )


@pytest.mark.slow
def test_initial_results_of_the_checkout_are_used(run: Run, checkout: Path) -> None:
    write_initial_results(checkout, train=0.5, val=0.7)
    summary = run(max_generation=0)
    assert summary.generations[0].scores == {
        "paper_review": {"train": 0.05, "val": pytest.approx(0.07)}
    }
    root = Path(summary.run_dir)
    assert (
        read_csv(root / "gen_initial/paper_review_eval/predictions.csv")[0]["outcome"] == "accept"
    )
    assert read_csv(root / "view/gen_initial/paper_review_eval/predictions.csv")[0]["outcome"] == ""


@pytest.mark.slow
def test_the_test_split_is_evaluated_on_request(run: Run, runtime: Runtime) -> None:
    summary = run(max_generation=1, eval_test=True, skip_staged_eval=True)
    assert set(summary.generations[1].scores["paper_review"]) == {"train", "val", "test"}
    made = evaluate_generation(runtime, summary.run_dir, 1, split="val", samples=4)
    assert len(made) == 1
    view = load_run(summary.run_dir)
    assert [record.genid for record in view.generations] == ["initial", 1]


@pytest.mark.slow
def test_a_repeatedly_killed_run_ends_like_an_undisturbed_one(
    run: Run, checkout: Path, tmp_path: Path, runtime_name: str, base_image: str
) -> None:
    """The run starts from the command line in the checkout, as the original does."""
    whole = run(max_generation=3, edit_select_parent=True, optimize_option="both_agent_ensemble")
    root, source = checkout / "outputs/generate_killed", random.Random(1)
    program = [str(Path(sys.executable).with_name("hyperrun")), "--runtime", runtime_name]
    flags = (
        "--domains paper_review --max-generation 3 --seed 3 --edit-select-parent --run-id killed"
    )
    flags += f" --optimize-option both_agent_ensemble --image={base_image}"
    start = [*program, "generate", *flags.split()]
    for number in range(9):
        args = [*program, "resume", str(root)] if (root / "run.json").exists() else start
        with open(tmp_path / "output", "wb") as output:
            process = subprocess.Popen(args, cwd=checkout, stdout=output, stderr=output)
        try:
            assert process.wait(source.uniform(1.0, 6.0) if number < 8 else 120) == 0, (
                tmp_path / "output"
            ).read_text()
            break
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    view = load_run(root)
    assert view.state == "finished"
    assert [facts(record) for record in view.generations] == [
        facts(record) for record in whole.generations
    ]
    for record in view.generations:
        name = f"gen_{record.genid}"
        assert files_of(root / name) == files_of(Path(whole.run_dir) / name)
    assert not list((root / "work").iterdir())


@pytest.mark.slow
def test_the_seed_determines_which_parents_agents_choose(run: Run) -> None:
    """The stand-in draws uniformly, so its choices are those of Python's generator with the
    documented seed.
    """
    drawn = [
        random.Random(f"{SEED}:{number}").choice(["initial", 1, 2][:number]) for number in (1, 2, 3)
    ]
    assert drawn == ["initial", 1, 2]
    assert parents(run(edit_select_parent=True, seed=SEED, max_generation=3))[1:] == drawn


@pytest.mark.slow
def test_a_generation_whose_choice_failed_is_not_asked_again(run: Run, model: Model) -> None:
    model.edits = {2: {"keywords.txt": "novel\n", "select_next_parent.py": FAILING_CHOICE}}
    summary = run(max_generation=3, edit_select_parent=True)
    root = Path(summary.run_dir)
    asked = re.findall(
        r"== generation (\d): generation (\w+) is asked",
        (root / "select_next_parent.log").read_text(),
    )
    assert asked[:3] == [("1", "initial"), ("2", "1"), ("2", "initial")]
    assert ("3", "1") not in asked
    assert failures(summary) == [None] * 4
    selecting = [
        json.loads((root / f"gen_{name}/metadata.json").read_text())["can_select_next_parent"]
        for name in ("initial", 1)
    ]
    assert selecting == [True, False]


@pytest.mark.slow
@pytest.mark.parametrize(
    "choice",
    first_quick(
        "raise RuntimeError('no idea')",
        "return 99",
        "return 'initial\\nand more'",
        "import time; time.sleep(60)",
        "import os; os._exit(3)",
    ),
)
def test_the_runs_own_rule_chooses_if_no_agent_can(run: Run, checkout: Path, choice: str) -> None:
    (checkout / "select_next_parent.py").write_text(f"def select_next_parent(*_):\n    {choice}\n")
    summary = run(max_generation=1, edit_select_parent=True, timeout_select_s=2.0)
    assert (failures(summary), parents(summary)) == ([None, None], [None, "initial"])


@pytest.mark.slow
def test_the_host_scores_an_ensemble_from_its_answers(run: Run) -> None:
    summary = run(optimize_option="both_agent_ensemble")
    root = Path(summary.run_dir)
    for name in ("initial", "1", "2"):
        folder = root / f"gen_{name}"
        logs = []
        for split, count in (("train", 12), ("val", 10)):
            rows = read_csv(folder / f"predictions_ensemble_paper_review_{split}.csv")
            report = json.loads((folder / f"report_ensemble_paper_review_{split}.json").read_text())
            right = sum(row["prediction"] == row["outcome"] for row in rows)
            assert (len(rows), report["overall_accuracy"]) == (count, right / count)
            scored = (
                f"-- ensemble_paper_review_{split}, scored by the host\n{right / count}\n"
                f"predictions_ensemble_paper_review_{split}.csv\n"
                f"report_ensemble_paper_review_{split}.json\n"
            )
            logs.append(scored)
        logged = (folder / "ensemble.log").read_text()
        assert [scored in logged for scored in logs] == [True, True]
        assert logged.endswith(logs[-1])
        assert logged.count("== ensemble_") == 2
    saved = original_archive().get_saved_score
    for record in summary.generations:
        found = {
            s: saved("paper_review", root, record.genid, s, type="max") for s in ("train", "val")
        }
        assert record.scores == {"paper_review": pytest.approx(found)}
        assert (record.staged_only, record.ensemble_failure) == (record.genid == "initial", "")
    for path in (root / "answers").rglob("*.csv"):
        assert {row["outcome"] for row in read_csv(path)} == {""}


def test_an_export_of_the_first_agent_stands_where_scripts_of_the_original_expect_it(
    run: Run, runtime: Runtime
) -> None:
    """`transfer_utils` names `gen_initial/hyperagents` and the patches of a generation."""
    root = Path(run(max_generation=2, parent_selection="latest").run_dir)
    first = export_generation(root, "initial", root / "gen_initial/hyperagents")
    evolved = export_generation(root, 2, root.parent / "evolved")
    known = json.loads((root / "gen_2/metadata.json").read_text())
    for patch in (*known["prev_patch_files"], *known["curr_patch_files"]):
        subprocess.run(["patch", "-p1", "-s", "-i", root / patch], cwd=first.path, check=True)
    assert len(known["prev_patch_files"]) == 1
    compared = ["diff", "-r", "--exclude=.git", first.path, evolved.path]
    assert subprocess.run(compared, capture_output=True).stdout == b""
    assert failures(resume_run(runtime, plan_resume(root, max_generation=3))) == [None] * 4


@pytest.mark.slow
def test_the_score_of_a_first_stage_is_scaled_for_an_ensemble(run: Run, checkout: Path) -> None:
    """Ten right answers of ten must not look better than most of a hundred."""
    write_initial_results(checkout, train=1.0, val=1.0)
    summary = run(max_generation=1, optimize_option="both_agent_ensemble")
    root = Path(summary.run_dir)
    agent = read_csv(root / "gen_1/paper_review_eval_val/predictions.csv")
    assert read_csv(root / "gen_1/predictions_ensemble_paper_review_val.csv") == agent
    seen = json.loads((root / "answers/gen_initial/paper_review_eval_val/report.json").read_text())
    assert seen["overall_accuracy"] == pytest.approx(0.1)


@pytest.mark.slow
def test_a_run_evolves_the_ensemble_of_another_run(run: Run, tmp_path: Path) -> None:
    other = run(max_generation=1, output_dir_parent=str(tmp_path / "other"))
    summary = run(
        max_generation=1, optimize_option="only_ensemble", agent_archive_path=other.run_dir
    )
    root = Path(summary.run_dir)
    assert failures(summary) == [None, None]
    assert not list(root.glob("gen_*/paper_review_eval*"))
    best = other.generations[1].scores["paper_review"]["val"]
    assert summary.generations[1].scores["paper_review"]["val"] == best
    assert not any("_val" in path for path in files_of(root / "agent_archive_view"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("deed", "why"),
    first_quick(
        (
            "csv.DictReader = None",
            r"wrote no predictions_ensemble_paper_review_train\.csv: no score: 'NoneType'",
        ),
        ("import nothing_of_this_name", "exit code 1: ModuleNotFoundError"),
    ),
)
def test_a_failed_ensemble_keeps_the_generation_and_is_shown(
    run: Run, model: Model, deed: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first deed makes the program end with exit code 0, with ``None`` in place of its
    files.
    """
    model.edits = {0: {"keywords.txt": "novel\n", "ensemble.py": f"\n\n{deed}\n"}}
    summary = run(max_generation=1, optimize_option="both_agent_ensemble")
    assert failures(summary) == [None, None]
    first, last = summary.generations
    assert (first.ensemble_failure, last.valid_parent) == ("", True)
    assert re.search(why, last.ensemble_failure)
    assert "== ensemble: failed" in (Path(summary.run_dir) / "gen_1/generate.log").read_text()
    assert exit_code(summary, 0) == 1
    assert main(["status", summary.run_dir]) == 0
    assert re.search(
        r"failed: 1 ensemble\n(.*\n)+1 +.*ensemble: the ensemble", capsys.readouterr().out
    )


@pytest.mark.slow
def test_an_answer_that_an_ensemble_does_not_give_is_wrong(run: Run, model: Model) -> None:
    """The original catches the error of each row; the answer is empty then."""
    model.edits = {0: {"keywords.txt": "novel\n", "ensemble.py": "\n\nensemble = None\n"}}
    summary = run(max_generation=1, optimize_option="both_agent_ensemble")
    report = json.loads(
        (Path(summary.run_dir) / "gen_1/report_ensemble_paper_review_val.json").read_text()
    )
    assert (report["overall_accuracy"], summary.generations[1].ensemble_failure) == (0.0, "")


@pytest.mark.slow
@pytest.mark.parametrize(
    "baseline", first_quick("dgm", "dgm_custom", "dgm+no_selfimprove", "dgm_custom+no_selfimprove")
)
def test_a_coding_agent_gets_a_failed_task_as_its_problem(run: Run, baseline: str) -> None:
    summary = run(run_baseline=baseline, max_generation=1)
    assert failures(summary) == [None, None]
    said = (Path(summary.run_dir) / "gen_1/agent_output/meta_agent_chat_history.md").read_text()
    failed = json.loads(
        (Path(summary.run_dir) / "gen_initial/paper_review_eval/report.json").read_text()
    )
    told = re.search(r"question_id: (\S+)", said)
    assert told is not None
    assert told[1] in failed["question_ids_failed"]
    assert "outcome" not in said
    assert ("yourself, the coding agent" in said) == baseline.startswith("dgm_custom")


@pytest.mark.slow
def test_a_parent_without_failures_gives_the_coding_agent_a_general_problem(
    run: Run, checkout: Path
) -> None:
    (checkout / "keywords.txt").write_text(".\n")
    table = checkout / "domains/paper_review/dataset_filtered_100_train.csv"
    table.write_text(table.read_text().replace(",reject", ",accept"))
    summary = run(run_baseline="dgm", max_generation=1)
    said = (Path(summary.run_dir) / "gen_1/agent_output/meta_agent_chat_history.md").read_text()
    assert "No task\nof its last evaluation is known to be answered wrongly" in said


def comparable(root: Path) -> dict[str, object]:
    """Return the contents of a run's files without times and durations."""
    found: dict[str, object] = {}
    for name in sorted(files_of(root)):
        if name.startswith(("repository.git/", ".", "work/")) or name in (
            "exchanges.jsonl",
            "owner.json",
        ):
            continue
        data = (root / name).read_text(errors="surrogateescape")
        if name.endswith((".json", ".jsonl")):
            found[name] = [
                without_times(json.loads(line))
                for line in ([data] if name.endswith(".json") else data.splitlines())
            ]
        else:
            found[name] = re.sub(r"\d+\.\d+ s|\d{4}-\d\d-\d\d\S* ?[\d:.,]*", "TIME", data)
    found["refs"] = git(["-C", str(root / "repository.git"), "for-each-ref"])
    return found


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        left_out = ("durations", "started", "duration_s", "mark")  # a mark is of one directory
        return {name: without_times(item) for name, item in value.items() if name not in left_out}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def test_every_engine_makes_the_same_run(run: Run, tmp_path: Path) -> None:
    engines = ("podman", "docker") if os.geteuid() == 0 else ("podman", "apptainer")
    made = []
    try:
        hr.open_runtime(engines[1]).close()
    except EngineUnavailableError as error:
        pytest.skip(f"NOT RUN: there is no second engine to compare with: {error}")
    for name in engines:
        with hr.open_runtime(name) as engine:
            image = engine.images.ensure("base")
            summary = run(
                runtime=engine,
                image=image,
                edit_select_parent=True,
                optimize_option="both_agent_ensemble",
            )
            assert failures(summary) == [None] * 3
            made.append(comparable(Path(summary.run_dir).rename(tmp_path / name)))
    first, second = made
    assert first.keys() == second.keys()
    for name, content in first.items():
        assert content == second[name], name
