"""Domains in a file that the user names: ``--domains ./file.py:Class``. Nobody else can name
one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hyperruntime.cli.config_file import agent_domains
from hyperruntime.domain import DialogueDomain, Task, TriedDomain
from hyperruntime.errors import AgentError, DriverLoadError, HyperRuntimeError, RunError, SpecError
from hyperruntime.loop.generation.default_adapter import DefaultContract
from hyperruntime.loop.run.one_generation import evaluate_generation, image_to_evaluate
from hyperruntime.loop.run.plan import (
    absolute_references,
    domains_to_show,
    load_domains,
    plan_resume,
)
from hyperruntime.loop.run_files.archive import load_run
from hyperruntime.runs.own_mark import ReceivedRunError
from tests.doubles.fake_runtime import FakeRuntime

CODE = """
from pathlib import Path
from hyperdomain_math.packing import CirclePacking
Path(__file__).with_suffix(".ran").touch()

class Mine(CirclePacking):
    pass

class Half:
    name = "half"

class Plain:
    name = description = image = agent = "plain"
    splits, needs_gpu, protected_paths, task_timeout_s = (), False, (), 1.0
    parallel_tasks = True
    def __init__(self): self.given = {"odd": "no label"}
    @property
    def left_out(self): return self.given
    def tasks(self, split, limit=None): return ()
    def score(self, task, prediction): ...
    def report(self, split, scores): return {"score": 0.5}
    def picture(self, task, prediction): ...
    def trial(self, task, prediction): return "the trial"
    def verdict(self, task, prediction, result): ...

def broken():
    raise RuntimeError("of the file")
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(CODE)
    return path


def has_run(file: Path) -> bool:
    return file.with_suffix(".ran").exists()


def test_a_domain_of_a_file_is_loaded_where_the_user_names_it(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    (domain,) = load_domains(["./mine.py:Mine"], DefaultContract(), code=True)
    assert (type(domain).__name__, domain.name, has_run(file)) == ("Mine", "circle_packing", True)
    DefaultContract().check_tasks(["./mine.py:Mine"], [domain])
    assert absolute_references(["./mine.py:Mine", "circle_packing"]) == (
        f"{file}:Mine",
        "circle_packing",
    )


def test_a_domain_without_the_base_class_has_its_defaults_and_keeps_its_own_members(
    file: Path,
) -> None:
    (domain,) = load_domains([f"{file}:Plain"], DefaultContract(), code=True)
    task = Task(id="t", inputs={})
    assert (type(domain).__name__, domain.parallel_tasks, domain.left_out) == (
        "Plain",
        True,
        {"odd": "no label"},
    )
    assert (domain.container_per_task, domain.needs, domain.picture_png(task, 1)) == (
        False,
        "",
        None,
    )
    assert domain.report("train", []) == {"score": 0.5}
    assert not isinstance(domain, DialogueDomain)
    assert isinstance(domain, TriedDomain)
    trial: object = domain.trial(task, 1)
    assert trial == "the trial"


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        (
            "Half",
            SpecError,
            "all members of hyperruntime.domain.Domain; it lacks description, splits",
        ),
        ("Min", SpecError, "has no class 'Min'; did you mean 'Mine'"),
        ("broken", DriverLoadError, "is broken: RuntimeError: of the file"),
    ],
)
def test_a_file_that_holds_no_such_domain_is_a_clear_error(
    file: Path, name: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        load_domains([f"{file}:{name}"], DefaultContract(), code=True)


def test_a_file_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"none\.py.* does not exist"):
        load_domains([f"{tmp_path}/none.py:Mine"], DefaultContract(), code=True)


def test_an_agents_file_cannot_name_code(file: Path) -> None:
    (file.parent / "hyperrun.toml").write_text(f'[agent]\ndomains = "circle_packing {file}:Mine"\n')
    with pytest.raises(
        AgentError, match=r"whose argument may name a file of this machine.*--domains"
    ):
        agent_domains(file.parent)
    assert not has_run(file)


def test_a_received_run_cannot_run_code_by_its_domains(file: Path, finished: Path) -> None:
    value = json.loads((finished / "run.json").read_text())
    value["options"]["domains"] = [f"{file}:Mine"]
    (finished / "run.json").write_text(json.dumps(value))
    attempts: list[Callable[[], object]] = [
        lambda: plan_resume(finished),
        lambda: evaluate_generation(FakeRuntime(), finished, "best", split="train"),
        lambda: image_to_evaluate(finished, trust=False),
    ]
    for attempt in attempts:
        with pytest.raises(ReceivedRunError, match=r"asks for --domains .*mine\.py:Mine"):
            attempt()
    with pytest.raises(RunError, match="the run was made elsewhere, and the argument of"):
        domains_to_show(load_run(finished))
    with pytest.raises(HyperRuntimeError, match="loaded only if a user names it"):
        load_domains([f"{file}:Mine"], DefaultContract())
    assert not has_run(file)
    assert plan_resume(finished, trust=True).domains[0].name == "circle_packing"
    assert has_run(file)
