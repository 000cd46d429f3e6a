"""The shipped agent ``solver``: its answers are exact, and its memory is handed on."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from hyperdomain_math.table import PROBLEMS, verify
from hyperruntime.agents import copy_template
from tests.doubles.fake_runtime import FakeRuntime
from tests.runs import failures, start

ROOT = Path(__file__).resolve().parents[3]
AGENT = ROOT / "hyperruntime" / "agents" / "solver"
MODULES = tuple(path.stem for path in sorted(AGENT.glob("*.py")))
STEPS = {"capset": 10_000, "kissing": 2000, "matmul": 600, "sums": 4000, "uncertainty": 1000}
"""Questions to the clock; 60 for the other kinds of problems."""
Modules = Any  # the modules are imported at run time


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Modules]:
    """Import the agent's modules from their own folder; unload them at the end."""
    monkeypatch.syspath_prepend(str(AGENT))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    yield type("Agent", (), {name: importlib.import_module(name) for name in MODULES})
    for name in [*MODULES, *(name for name in sys.modules if name.startswith("discrete"))]:
        sys.modules.pop(name, None)


class Count:
    """A clock that ends after a number of questions, so that no machine's speed decides."""

    def __init__(self, most: int) -> None:
        self.left = most

    def over(self) -> bool:
        self.left -= 1
        return self.left < 0


def searched(agent: Modules, name: str, steps: int, **plan: Any) -> tuple[Any, Any]:
    """Return the kind of a problem, and the pool of a short search."""
    import numpy as np

    kind = agent.problems.kind_of(name)
    plan = {**agent.plans.DEFAULT, "size": kind.size, **plan}
    pool, _ = agent.search.search(kind, plan, Count(steps), np.random.default_rng(4))
    return kind, pool


@pytest.mark.parametrize("name", sorted(PROBLEMS))
def test_a_short_search_gives_exact_answers_that_beat_the_baseline(
    agent: Modules, name: str
) -> None:
    problem = PROBLEMS[name]
    kind, pool = searched(agent, name, STEPS.get(name.partition("-")[0], 60))
    sign = 1 if problem.goal == "maximise" else -1
    baseline = verify(name, json.loads(json.dumps(problem.baseline())))
    for merit, state, _ in pool.best:
        if abs(merit) < 1e-9:  # three points on a line, when the search ended
            continue
        value = verify(name, json.loads(json.dumps(kind.answer(state))))
        claimed = 1 / merit if name.startswith("ratio") else abs(merit)
        if value.denominator == 1:  # of two networks with as many comparators one is better
            claimed = round(claimed)
        assert float(value) == pytest.approx(claimed, rel=1e-6)
    best = verify(name, kind.answer(pool.best[0][1]))
    ahead = sign * (best - baseline)
    assert ahead > 0 or (ahead == 0 and best.denominator == 1)


def test_a_search_begins_with_the_answers_and_the_chains_of_its_plan(agent: Modules) -> None:
    for name in ("circles-26", "heilbronn-triangle-11", "overlap"):
        kind, pool = searched(agent, name, 90)
        answers = [(chain, kind.answer(state)) for _, state, chain in pool.best]
        chains = [(one["name"], kind.answer(one["state"]), one["fails"]) for one in pool.chains]
        again = searched(agent, name, 0, answers=answers, chains=chains)[1]
        assert again.best[0][0] == pytest.approx(pool.best[0][0], abs=1e-9)
        assert [(one["name"], one["fails"]) for one in again.chains] == [
            (one["name"], one["fails"]) for one in pool.chains
        ]


def test_a_chain_ends_when_it_is_stuck_and_when_another_one_had_its_answer(agent: Modules) -> None:
    pool = agent.search_pool.Pool()
    for name, merit in (("a", 5.0), ("b", 3.0), ("c", 1.0), ("d", 0.0), ("e", 2.0)):
        assert pool.needs_start()
        pool.offer(None, name, merit, merit)
    assert [one["name"] for one in pool.chains] == ["a", "b", "e"]
    assert not pool.needs_start()
    a, b, e = pool.chains
    assert pool.offer(e, "", 4.0, 4.0) == 2
    assert pool.offer(b, "", 5.0, 5.0) == 0, "the answer of a"
    assert [one["name"] for one in pool.chains] == ["a", "e"]
    for _ in range(agent.search_pool.PATIENCE):
        assert a in pool.chains
        pool.offer(a, "", 4.5, 4.5)
    assert [one["name"] for one in pool.chains] == ["e"]
    assert pool.needs_start()
    assert [(merit, name) for merit, _, name in pool.best][:2] == [(5.0, "a"), (4.0, "e")]


def test_another_seed_of_the_run_gives_another_first_answer(
    agent: Modules, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent.task_agent, "Clock", lambda _: Count(20))
    found = []
    for seed in ("1", "2", "1"):
        monkeypatch.setenv("HYPERRUN_SEED", seed)
        inputs = {"name": "circles-8", "seed": 1, "cpu_s": 0}
        found.append(agent.task_agent.TaskAgent().forward(inputs)[0])
    assert found[0] == found[2] != found[1]


def test_circles_on_top_of_each_other_become_disjoint(agent: Modules) -> None:
    import numpy as np

    kind = agent.problems.kind_of("circles-3")
    state = np.array([0.3, 0.5, 0.7, 0.5, 0.5, 0.5, 0.2, 0.1, 0.2, 1.0])
    found = kind.answer(state)
    rows = [[Fraction(value) for value in circle] for circle in found]
    assert all(
        (a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2 >= (a[2] + b[2]) ** 2
        for k, a in enumerate(rows)
        for b in rows[:k]
    )


def test_the_meta_agent_spends_tries_where_they_paid_and_hands_answers_on(
    agent: Modules, tmp_path: Path
) -> None:
    repo, evals = tmp_path / "repo", tmp_path / "evals"
    copy_template("solver", repo)
    moves = {
        "shake": {"tries": 10, "seconds": 1.0, "gains": 6.0, "sizes": [0.5, 0.5, 0.5]},
        "scatter": {"tries": 10, "seconds": 1.0, "gains": 0.0, "sizes": []},
        "cross": {"tries": 1, "seconds": 5.0, "gains": 1.0, "sizes": []},
    }
    first = {"problem": "p", "moves": moves, "chains": [["0/1", [[2.0]], 3]]}
    first["answers"] = [[value, [[value]], chain] for value, chain in ((3.0, "0/0"), (2.0, "0/1"))]
    second = {"problem": "p", "moves": moves, "chains": [["0/1", [[2.5]], 7]]}
    second["answers"] = [[2.5, [[2.5]], "0/1"]]
    for number, lines in (("initial", [first]), ("1", [second, ["list"], {}])):
        folder = evals / f"gen_{number}" / "math_p_eval" / "agent_evals"
        folder.mkdir(parents=True)
        (folder / "p.md").write_text("\n".join(map(json.dumps, lines)) + "\n{torn")
    agent.meta_agent.MetaAgent(None, str(tmp_path / "history.md")).forward(str(repo), str(evals))
    plan = agent.plans.read_plan(repo, "p")
    assert plan["answers"] == [["0/0", [[3.0]]], ["0/1", [[2.5]]]]
    assert plan["chains"] == [["0/1", [[2.5]], 7]]
    assert plan["moves"]["shake"] > plan["moves"]["scatter"] > plan["moves"]["cross"] > 0
    assert 0.5 < plan["size"] < 1
    (repo / "settings.json").write_text('{"memory": false}')
    agent.plans.write_plan(repo, "p", agent.plans.DEFAULT)
    agent.meta_agent.MetaAgent(None, str(tmp_path / "history.md")).forward(str(repo), str(evals))
    restarts = agent.plans.read_plan(repo, "p")
    assert restarts.pop("seed") != 0
    assert restarts == {key: value for key, value in agent.plans.DEFAULT.items() if key != "seed"}


@pytest.mark.slow
@pytest.mark.parametrize("problem", ["circles-26", "kissing-8"])
def test_in_a_run_no_generation_is_worse_than_an_earlier_one(tmp_path: Path, problem: str) -> None:
    summary = start(
        FakeRuntime(images=("science",)), tmp_path, max_generation=2, domains=f"math:{problem}"
    )
    assert failures(summary) == [None, None, None]
    scores = [record.score or 0.0 for record in summary.generations]
    assert scores[0] > 0.95
    assert scores[2] > scores[1] - 1e-9 > scores[0] - 2e-9
