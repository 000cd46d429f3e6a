"""The shipped agent ``mutator``: its programs, its operators and its contract; it improves the
score.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hyperdomain_math.circles import exact_circles, first_violation
from hyperdomain_math.packing import CirclePacking
from hyperruntime.agents import copy_template
from hyperruntime.git.store import RepositoryStore
from hyperruntime.loop.run.plan import plan_run
from hyperruntime.loop.run.run import start_run
from hyperruntime.loop.run_files.options import GenerateOptions
from tests.doubles.fake_runtime import FakeRuntime
from tests.runs import start

ROOT = Path(__file__).resolve().parents[3]
AGENT = ROOT / "hyperruntime" / "agents" / "mutator"
Modules = Any  # the modules are imported at run time
MODULES = (
    "budget",
    "genome",
    "memory",
    "forecast",
    "operators",
    "meta_agent",
    "packing",
    "task_agent",
    "run_meta_agent",
)


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Modules]:
    """Import the agent's modules from their own folder, as a container does; unload them at the
    end.
    """
    monkeypatch.syspath_prepend(str(AGENT.with_name("shared")))
    monkeypatch.syspath_prepend(str(AGENT))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loaded = {name: importlib.import_module(name) for name in MODULES}
    yield type("Agent", (), loaded)
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """Copy the template into a new git repository and commit it; return the folder."""
    copy = tmp_path / "the agent's repo"
    copy_template("mutator", copy)
    git(copy, "init", "-q", "-b", "main")
    git(copy, "add", "-A")
    git(copy, "commit", "-qm", "initial")
    return copy


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=test", "-c", "user.email=test@localhost", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, check=True).stdout.decode()


def run_meta(
    repo: Path, outdir: Path, *arguments: str, **env: str
) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-B", "run_meta_agent.py", "--outdir", str(outdir), *arguments]
    return subprocess.run(command, cwd=repo, capture_output=True, env={**os.environ, **env})


def test_a_program_is_rendered_back_unchanged(agent: Modules) -> None:
    text = (AGENT / "packing.py").read_text()
    assert agent.genome.render(agent.genome.parse(text)) == text
    agent.genome.check(text)


def test_every_block_of_the_library_gives_a_valid_packing(agent: Modules) -> None:
    library = agent.genome.load_library(AGENT)
    assert {slot for slot, _ in library} == {"seed", "radii", "search", "stage"}
    for (slot, name), block in library.items():
        program = agent.genome.parse((AGENT / "packing.py").read_text())
        program.put(slot, name, block)
        if slot == "stage":
            program.stages = [name]
        names: dict[str, Any] = {}
        exec(compile(agent.genome.render(program), name, "exec"), names)
        for n in (1, 2, 9):
            circles = names["pack"](n, 1, 60_000, 5.0)
            assert len(circles) == n
            assert first_violation(exact_circles(circles, n)) == "", (slot, name, n)


def test_matching_finds_the_largest_radii(agent: Modules) -> None:
    names: dict[str, Any] = {}
    exec(agent.genome.load_library(AGENT)["radii", "matching"], {"math": __import__("math")}, names)
    budget = agent.budget.Budget(10**9, 10.0)
    assert names["radii"]([0.5], [0.5], budget) == [0.5]
    corners = names["radii"]([0.25, 0.75, 0.25, 0.75], [0.25, 0.25, 0.75, 0.75], budget)
    assert sum(corners) == pytest.approx(1.0)
    # A chain: radii a, b, c with a + b <= 0.2, b + c <= 0.2; the best solution sets the middle
    # radius to 0.
    assert names["radii"]([0.3, 0.5, 0.7], [0.5] * 3, budget) == pytest.approx([0.2, 0.0, 0.2])


def test_repeated_mutations_keep_programs_complete_and_compilable(agent: Modules) -> None:
    library, rng = agent.genome.load_library(AGENT), random.Random(5)
    parent = agent.genome.parse((AGENT / "packing.py").read_text())
    scored = [("initial", 0.8, parent)]
    for turn in range(150):
        shop = agent.operators.Workshop(library, scored, rng)
        child = rng.choice(scored)[2].copy()
        for operator in agent.operators.plan(child, shop):
            operator(child, shop)
        text = agent.genome.render(child)
        agent.genome.check(text)
        assert agent.genome.render(agent.genome.parse(text)) == text
        assert len(child.stages) <= agent.operators.MOST_STAGES
        scored.append((str(turn), rng.uniform(0.7, 0.99), child))
    assert len({agent.genome.render(program) for _, _, program in scored}) > 120


def test_the_meta_agent_writes_a_patch_and_a_history_that_depend_only_on_the_seed(
    repo: Path, tmp_path: Path
) -> None:
    patches = []
    for name in ("one", "two"):
        done = run_meta(repo, tmp_path / name, HYPERRUN_SEED="3", HYPERRUN_GENERATION="1")
        assert done.returncode == 0, done.stderr.decode()
        patches.append((tmp_path / name / "model_patch.diff").read_bytes())
        account = (tmp_path / name / "meta_agent_chat_history.md").read_text()
        assert "handed in" in account
        git(repo, "checkout", "-q", ".")
    assert patches[0] == patches[1]
    assert b"+++ b/packing.py" in patches[0]
    run_meta(repo, tmp_path / "three", HYPERRUN_SEED="4", HYPERRUN_GENERATION="1")
    assert (tmp_path / "three" / "model_patch.diff").read_bytes() != patches[0]


def test_a_patch_contains_new_and_binary_files_but_no_bytecode_and_no_output(repo: Path) -> None:
    (repo / "notes é.bin").write_bytes(bytes(range(256)))
    (repo / "__pycache__").mkdir()
    (repo / "__pycache__" / "x.pyc").write_bytes(b"x")
    before = git(repo, "status", "--porcelain")
    done = run_meta(repo, repo / "out dir")
    assert done.returncode == 0, done.stderr.decode()
    patch = (repo / "out dir" / "model_patch.diff").read_bytes()
    assert b"GIT binary patch" in patch
    assert b"pyc" not in patch
    assert b"out dir" not in patch
    assert set(before.splitlines()) < set(git(repo, "status", "--porcelain").splitlines()), (
        "the index was changed"
    )
    clone = repo.parent / "clone"
    git(repo.parent, "clone", "-q", str(repo), str(clone))
    git(clone, "apply", str(repo / "out dir" / "model_patch.diff"))
    assert (clone / "notes é.bin").read_bytes() == bytes(range(256))
    assert (clone / "packing.py").read_text() == (repo / "packing.py").read_text()


def test_a_failed_meta_agent_exits_with_1(repo: Path, tmp_path: Path) -> None:
    (repo / "packing.py").write_text("no program at all")
    done = run_meta(repo, tmp_path / "out")
    assert done.returncode == 1
    assert b"ValueError" in done.stderr


@pytest.mark.slow
def test_memory_rebuilds_programs_and_ignores_damaged_generations(
    agent: Modules, repo: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert run_meta(repo, run / "gen_1" / "agent_output").returncode == 0
    child = (repo / "packing.py").read_text()
    git(repo, "checkout", "-q", ".")
    (run / "gen_1" / "metadata.json").write_text('{"parent_genid": "initial", "current_genid": 1}')
    (run / "gen_1" / "circle_packing_eval").mkdir()
    (run / "gen_1" / "circle_packing_eval" / "report.json").write_text('{"score": 0.9}')
    (run / "gen_initial" / "agent").mkdir(parents=True)
    (run / "gen_initial" / "agent" / "packing.py").write_text((repo / "packing.py").read_text())
    for number, metadata in (
        (2, "{torn"),
        (3, '{"parent_genid": 3}'),
        (4, '["list"]'),
        (5, '{"parent_genid": 1}'),
    ):
        (run / f"gen_{number}" / "agent_output").mkdir(parents=True)
        (run / f"gen_{number}" / "metadata.json").write_text(metadata)
    (run / "gen_5" / "agent_output" / "model_patch.diff").write_text(
        "this is no patch of b/packing.py\n"
    )
    known = {one.name: one for one in agent.memory.recall(str(run), repo)}
    assert set(known) == {"initial", "1"}
    assert known["1"].text == child
    assert (known["1"].score, known["1"].parent) == (0.9, "initial")
    assert known["initial"].text == (repo / "packing.py").read_text()
    assert agent.memory.recall(str(tmp_path / "nowhere"), repo) == []
    assert run_meta(repo, tmp_path / "out", "--evals_folder", str(run)).returncode == 0


@pytest.mark.slow
def test_in_a_run_the_meta_agent_knows_its_parent_and_all_earlier_programs(
    agent: Modules, tmp_path: Path
) -> None:
    summary = start(FakeRuntime(), tmp_path, max_generation=2, parent_selection="latest", seed=1)
    root = Path(summary.run_dir)
    for number, parent in ((1, "initial"), (2, 1)):
        said = (root / f"gen_{number}" / "agent_output" / "meta_agent_chat_history.md").read_text()
        assert f"- parent: generation {parent}, training score " in said
        assert "unknown" not in said
        assert all(
            f"- generation {earlier} (from " in said for earlier in ("initial", *range(1, number))
        )
    last = (root / "gen_2/agent_output/meta_agent_chat_history.md").read_text()
    assert "- 4 trials of programs" in last, "the first generation's candidates and their parent"
    known = {one.name: one for one in agent.memory.recall(str(root / "view"), AGENT)}
    store = RepositoryStore(root / "repository.git")
    for number in (1, 2):
        commit = store.commit_of(number)
        assert commit is not None
        assert known[str(number)].text.encode() == store.read_file(commit, "packing.py")
    alone = tmp_path / "no archive"
    shutil.copytree(root / "view/gen_2", alone / "gen_2")
    (only,) = agent.memory.recall(str(alone), root / "view/gen_initial/agent")
    assert (only.name, only.score) == ("2", known["2"].score)


def test_the_memory_of_trials_guides_the_next_candidates(
    agent: Modules, repo: Path, tmp_path: Path
) -> None:
    run, library = tmp_path / "run", agent.genome.load_library(AGENT)
    text = (repo / "packing.py").read_text()

    def variant(*stages: str) -> Any:
        program = agent.genome.parse(text)
        for stage in stages:
            program.put("stage", stage, library["stage", stage])
        program.stages = list(stages)
        return program

    trials = {
        agent.genome.render(variant("push")): 1.4,
        agent.genome.render(variant("nudge")): 1.1,
        "no program": 9,
    }
    for number, written in (
        (1, json.dumps(trials)),
        (2, "{torn"),
        (3, '["list"]'),
        (4, '{"a": "b", "c": 1e999}'),
    ):
        (run / f"gen_{number}" / "agent_output").mkdir(parents=True)
        (run / f"gen_{number}" / "agent_output" / "trials.json").write_text(written)
    assert agent.memory.recall_trials(str(run)) == trials
    assert agent.memory.recall_trials(None) == {}
    forecast = agent.forecast.Forecast(library, trials)
    assert agent.forecast.Forecast(library, {}).expect(variant("push")) == 0
    assert (
        forecast.expect(variant("push"))
        > forecast.expect(variant("spread"))
        > forecast.expect(variant("nudge"))
    )
    ordered = {variant("push", "nudge"): 1.2, variant("nudge", "push"): 1.3}
    forecast = agent.forecast.Forecast(
        library, {agent.genome.render(one): result for one, result in ordered.items()}
    )
    assert forecast.kinds == {one.describe() for one in ordered}
    assert forecast.expect(variant("spread", "push")) > forecast.expect(
        variant("push", "spread")
    ), "the order counts"
    assert run_meta(repo, tmp_path / "out", "--evals_folder", str(run)).returncode == 0
    made = json.loads((tmp_path / "out" / "trials.json").read_text())
    assert len(made) == agent.meta_agent.CANDIDATES
    assert not made.keys() & {text, *trials}
    assert (repo / "packing.py").read_text() == max(made, key=made.__getitem__)


def test_the_task_agent_gives_valid_and_reproducible_answers(
    agent: Modules, tmp_path: Path
) -> None:
    domain, history = CirclePacking(), tmp_path / "history.md"
    for split in ("train", "val"):
        for task in domain.tasks(split):
            prediction, _ = agent.task_agent.TaskAgent("none", str(history)).forward(
                dict(task.inputs)
            )
            score = domain.score(task, json.loads(json.dumps(prediction)))
            assert score.valid
            assert 0.8 < score.value < 0.95
            assert agent.task_agent.TaskAgent(None, None).forward(task.inputs)[0] == prediction
    assert len(history.read_text().splitlines()) == 6


@pytest.mark.slow
def test_three_generations_improve_the_packing(tmp_path: Path) -> None:
    options = GenerateOptions(
        domains="circle_packing", max_generation=3, seed=1, output_dir_parent=str(tmp_path)
    )
    first, *later = start_run(FakeRuntime(), plan_run(options)).generations
    assert max(record.score or 0.0 for record in later) > (first.score or 1.0) + 0.05
