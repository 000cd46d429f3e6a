"""Runs that end at once because nothing can be built on their first generation, and runs that make
nothing of use.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from hyperruntime.cli.loop.progress import exit_code
from hyperruntime.errors import GatewayConfigError, RunError
from hyperruntime.git.command import git
from hyperruntime.loop.run.plan import plan_resume, plan_run
from hyperruntime.loop.run.run import RunSummary, resume_run
from hyperruntime.loop.run_files.archive import Archive, load_run
from hyperruntime.loop.run_files.layout import Layout
from hyperruntime.loop.run_files.options import GenerateOptions
from tests.doubles.fake_runtime import FakeRuntime, make_agent_repository
from tests.doubles.upstream import forget_model_servers

STANDIN = Path(__file__).parents[3] / "standin"
Run = Callable[..., RunSummary]


def change(agent: Path, old: str, new: str) -> None:
    """Replace a text in the agent's task agent, and commit it."""
    text = (agent / "task_agent.py").read_text()
    assert old in text
    (agent / "task_agent.py").write_text(text.replace(old, new))
    git(["-C", str(agent), "commit", "-q", "--all", "-m", "changed"])


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    return make_agent_repository(tmp_path / "an agent's repo", {1: "improve()"})


def test_a_first_generation_that_does_not_load_ends_the_run_and_a_resume_makes_it_again(
    run: Run, agent: Path, tmp_path: Path
) -> None:
    here = tmp_path / "a missing module.py"
    change(agent, "import math", f"import math\nopen({str(here)!r}).close()")
    runtime = FakeRuntime()
    with pytest.raises(
        RunError, match=r"initial, has no score .does-not-load: .*a missing module"
    ) as caught:
        run(runtime=runtime, max_generation=200)
    assert runtime.started == 1
    root = tmp_path / "out" / "generate_r"
    assert "a missing module" in (root / "work/gen_initial/generate.log").read_text()
    assert "work/gen_initial/generate.log" in str(caught.value)
    assert load_run(root).state == "interrupted"
    here.touch()
    resumed = resume_run(FakeRuntime(), plan_resume(root, max_generation=1))
    assert [record.failure for record in resumed.generations] == [None, None]


def test_a_first_generation_that_answers_no_task_ends_the_run_with_its_first_error(
    run: Run, agent: Path
) -> None:
    change(
        agent,
        'n = inputs["n"]',
        'n = inputs["n"]\n        raise RuntimeError("OPENAI_API_KEY is not set")',
    )
    with pytest.raises(RunError, match="none of 1 tasks: RuntimeError: OPENAI_API_KEY is not set"):
        run(max_generation=200)


def test_a_run_of_an_earlier_version_that_was_built_on_a_failed_generation_is_not_continued(
    finished: Path,
) -> None:
    layout = Layout(finished)
    records = [
        attrs.evolve(record, failure="does-not-load", valid_parent=False)
        for record in Archive.load(layout)
    ]
    layout.journal.unlink()
    archive = Archive(layout)
    for record in records:
        archive.add(record)
    started: list[Path] = []
    with pytest.raises(RunError, match="start another run"):
        resume_run(FakeRuntime(), plan_resume(finished, max_generation=9), on_start=started.append)
    assert started == []


def test_a_command_whose_new_generations_have_no_score_exits_with_1(
    run: Run, agent: Path, tmp_path: Path
) -> None:
    shutil.rmtree(agent)
    make_agent_repository(agent, {1: "raise SystemExit(3)", 2: "pass", 3: "improve()", 4: "pass"})
    root = tmp_path / "out" / "generate_r"
    summary = run(max_generation=2)
    assert summary.best is not None
    assert exit_code(summary, 0) == 1
    codes = [
        exit_code(resume_run(FakeRuntime(), plan_resume(root, max_generation=last)), 0)
        for last in (2, 3, 4)
    ]
    assert codes == [0, 0, 1], "nothing to do; one with a score; one without"


@pytest.mark.parametrize("said", [None, "models = false"])
def test_an_agent_of_the_hyperagents_layout_needs_a_key_before_the_run_starts(
    said: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget_model_servers(monkeypatch)
    checkout = Path(shutil.copytree(STANDIN, tmp_path / "checkout"))
    options = GenerateOptions(
        domains="paper_review", agent=str(checkout), output_dir_parent=str(tmp_path)
    )
    if said is None:
        with pytest.raises(GatewayConfigError, match=r"agent asks models.*OPENAI_API_KEY"):
            plan_run(options)
        (checkout / ".env").write_text("OPENAI_API_KEY=sk-1\n")
        assert plan_run(options).gateway is not None
    else:
        (checkout / "hyperrun.toml").write_text(f"[agent]\n{said}\n")
        assert plan_run(options).gateway is None
