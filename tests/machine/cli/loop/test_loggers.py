"""``--logger``: other programs hear of a run, and cannot end it or slow it down."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hyperruntime.cli import main
from hyperruntime.cli.command import State
from hyperruntime.cli.live_page import live_page
from hyperruntime.host.process import wait_until
from hyperruntime.loop.run.plan import plan_resume, plan_run
from hyperruntime.loop.run.run import RunSummary, resume_run, start_run
from hyperruntime.loop.run_files.options import GenerateOptions
from tests.doubles.fake_runtime import FakeRuntime, make_agent_repository

_LOGGERS = """
import json, time

class Kept:
    def __init__(self, path):
        self.path = path
    def keep(self, **said):
        print("libraries print")
        with open(self.path, "a") as file:
            file.write(json.dumps(said) + "\\n")
    def started(self, run):
        self.keep(started=run.name, study=run.study, seed=run.options["seed"], done=run.done)
    def archived(self, step, figures):
        self.keep(step=step, **figures)
    def ended(self, state, reason):
        self.keep(ended=state, reason=reason)

class Raises(Kept):
    def archived(self, step, figures):
        raise ValueError("no\\nspace")

class Hangs(Kept):
    def archived(self, step, figures):
        self.keep(hangs=step)
        time.sleep(600)

class Slow(Kept):
    def __init__(self, path):
        import pathlib
        self.path = path
        while not pathlib.Path(path + ".go").exists():
            time.sleep(0.05)

# as trackio and wandb
import sys, types
made = []
def init(**facts):
    kept = Kept(facts["project"])
    made[:] = [kept]
    kept.keep(name=facts["name"], resume=facts["resume"], group=facts["group"])
sys.modules["trackio"] = types.SimpleNamespace(
    init=init, log=lambda metrics, step: made[0].keep(step=step, **metrics), finish=lambda: made[0].keep(finished=1)
)
def trackio(project):
    from hyperruntime.loop.loggers.wandb_api import trackio_logger
    return trackio_logger(project)
"""


@pytest.fixture
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a package with loggers, for child processes."""
    place = tmp_path / "packages"
    metadata = place / "some_loggers-1.0.dist-info"
    metadata.mkdir(parents=True)
    (place / "some_loggers.py").write_text(_LOGGERS)
    (place / "wandb.py").write_text("raise ModuleNotFoundError('not installed', name='wandb')")
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: some-loggers\nVersion: 1.0\n")
    names = {"kept": "Kept", "raises": "Raises", "hangs": "Hangs", "slow": "Slow"}
    names["like_trackio"] = "trackio"
    points = "".join(f"{name} = some_loggers:{made}\n" for name, made in names.items())
    (metadata / "entry_points.txt").write_text(f"[hyperruntime.loggers]\n{points}")
    monkeypatch.setenv("PYTHONPATH", str(place), prepend=":")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for limit in ("_LOGGER_END_S", "_LOGGER_START_S", "_LATE_S"):
        monkeypatch.setattr(f"hyperruntime.cli.live_page.{limit}", 120.0)


def logged(
    folder: Path, *loggers: str, most: int = 1, before_end: Callable[[], object] = lambda: None
) -> RunSummary:
    """Make a run, or resume it, with these loggers; call ``before_end`` while they still run."""
    agent = folder / "agent"
    if not agent.exists():
        make_agent_repository(agent)
    options = GenerateOptions(
        domains="circle_packing", agent=str(agent), eval_samples=(1,), max_generation=most, seed=7,
        run_id="l", output_dir_parent=str(folder / "out"),
    )  # fmt: skip
    run_dir = folder / "out" / "generate_l"
    state = State()
    state.loggers = loggers
    with live_page(state) as start:
        if run_dir.exists():
            plan = plan_resume(run_dir, max_generation=most)
            return resume_run(FakeRuntime(), plan, on_start=start)
        summary = start_run(FakeRuntime(), plan_run(options), on_start=start)
        before_end()
        return summary


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.usefixtures("_installed")
def test_a_logger_hears_of_each_generation_once_also_after_a_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, other = tmp_path / "kept", tmp_path / "other"
    loggers = (f"kept:{kept}", f"like_trackio:{other}")
    summary = logged(tmp_path, *loggers)
    first, *figures, last = lines(kept)
    assert first == {"started": "generate_l", "study": "", "seed": 7, "done": 0}
    assert [one["step"] for one in figures] == [0, 1]
    scores = [record.score for record in summary.generations]
    assert [one["score"] for one in figures] == scores
    assert [one["circle_packing/val"] for one in figures] == scores
    assert figures[1]["best"] == max(score or 0.0 for score in scores)
    assert last == {"ended": "finished", "reason": ""}
    kept.unlink()
    logged(tmp_path, *loggers, most=2)
    first, *figures, last = lines(kept)
    assert first["done"] == 2
    assert [one["step"] for one in figures] == [2]
    said = lines(other)
    assert [one["resume"] for one in said if "resume" in one] == ["never", "allow"]
    assert [one["step"] for one in said if "step" in one] == [0, 1, 2]
    assert sum("finished" in one for one in said) == 2
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("_installed")
def test_a_run_goes_on_without_a_logger_that_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = logged(tmp_path, "raises:" + str(tmp_path / "a"), f"kept:{tmp_path / 'b'}", "wandb:p")
    assert [record.failure for record in summary.generations] == [None, None]
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert (
        f"logger raises:{tmp_path / 'a'} failed: ValueError: no space; the run goes on"
        in "".join(said)
    )
    assert "pip install 'hyperruntime[wandb]'" in "".join(said)
    assert lines(tmp_path / "b")[-1]["ended"] == "finished"


@pytest.mark.usefixtures("_installed")
def test_a_logger_that_hangs_is_left_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hyperruntime.cli.live_page._LOGGER_END_S", 0.1)
    kept = tmp_path / "a"
    reference = f"hangs:{kept}"

    def hangs() -> None:
        assert wait_until(lambda: kept.exists() and "hangs" in kept.read_text(), 120)

    summary = logged(tmp_path, reference, before_end=hangs)
    assert [record.failure for record in summary.generations] == [None, None]
    assert f"logger {reference} did not end within 0.1 s" in capsys.readouterr().err
    assert lines(kept)[-1] == {"hangs": 0}


@pytest.mark.usefixtures("_installed")
def test_a_short_run_waits_for_a_logger_whose_library_starts_slowly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def note(text: str) -> None:
        said.append(text)
        (tmp_path / "a.go").touch()

    monkeypatch.setattr("hyperruntime.cli.live_page._LATE_S", 0.1)
    monkeypatch.setattr("hyperruntime.cli.live_page.note", note)
    reference = f"slow:{tmp_path / 'a'}"
    logged(tmp_path, reference)
    assert said == [f"logger {reference} has not started yet; waiting for it up to 120 s"]
    assert [one["step"] for one in lines(tmp_path / "a") if "step" in one] == [0, 1]
    assert lines(tmp_path / "a")[-1]["ended"] == "finished"


@pytest.mark.usefixtures("_installed")
def test_a_logger_that_never_starts_is_left_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hyperruntime.cli.live_page._LOGGER_START_S", 0.1)
    reference = f"slow:{tmp_path / 'a'}"
    logged(tmp_path, reference)
    assert f"logger {reference} did not start within 0.1 s" in capsys.readouterr().err


def test_an_unknown_logger_is_refused_before_anything_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["generate", "--domains", "circle_packing", "--logger", "trakio"]) == 2
    assert "did you mean 'trackio'?" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
