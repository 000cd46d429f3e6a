"""``hyperrun rollout`` reports a wrong command line before it opens an engine."""

import json
import os
from contextlib import ExitStack
from pathlib import Path

import attrs
import pytest

from hyperruntime.cli import main
from hyperruntime.cli.rollout.run import run_directory
from hyperruntime.cli.rollout.train import TrainSettings, _place, train
from hyperruntime.cluster.open_clusters import ClusterState, NodeState, directory_of_clusters
from hyperruntime.host.process import boot_id, process_start_ticks
from hyperruntime.option_fields import to_json
from hyperruntime.rollout.models import ModelOptions
from hyperruntime.rollout.run.options import RolloutOptions
from hyperruntime.rollout.run.store import resumable_options
from hyperruntime.rollout.run_files.record import Group, Trajectory
from hyperruntime.rollout.run_files.run_dir import to_line, write_run
from hyperruntime.runs.own_mark import MARK, ReceivedRunError
from hyperruntime.storage.atomic import json_document

MODEL = ("--model", "m", "--base-url", "http://127.0.0.1:9/v1")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((*MODEL,), "--environment NAME"),
        (("--environment", "x", "--base-url", "http://h"), "--model is missing"),
        (("--environment", "x", "--model", "m"), "--base-url is missing"),
        (("--environment", "x", "--model", "m", "--base-url", "h:1"), "http:// or https://"),
        (("--environment", "x", *MODEL, "--wire", "sglang"), "the model's directory"),
        (("--environment", "x", *MODEL, "--option", "items"), "NAME=VALUE"),
        (("--environment", "x", *MODEL, "--extra", "[1]"), "a JSON object"),
        (("--environment", "x", *MODEL, "--env", "NOT_SET_ANYWHERE"), "set here"),
        (("--environment", "x", *MODEL, "--group-size", "0"), "group-size"),
        (("--environment", "x", *MODEL, "--resume-or-start"), "requires --run-id or --output-dir"),
        (("--environment", "x", *MODEL, "--run-id=../out"), "--run-id '../out' is not allowed"),
        (("--environment", "x", *MODEL, "--run-id=."), "--run-id '.' is not allowed"),
        (("--environment", "x", *MODEL, "--run-id=-x"), "--run-id '-x' is not allowed"),
        (("--resume-from", "nothing/here"), "name the directory of a rollout run"),
    ],
)
def test_wrong_usage_prints_one_line_and_exits_with_2(
    args: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--runtime", "no-such-engine", "rollout", "run", *args]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_an_invalid_row_of_a_batch_is_reported_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "a"}\n{"promt": "b"}\n')
    asked = ["--runtime", "no-such-engine", "rollout", "batch", str(prompts), *MODEL]
    output = tmp_path / "out"
    assert main([*asked, "--unsupported", "fail", "--output-dir", str(output)]) == 2
    assert "line 2" in capsys.readouterr().err
    assert not output.exists()


def test_runs_that_start_in_the_same_second_get_different_directories(tmp_path: Path) -> None:
    values = {"output_dir": None, "run_id": None, "output_dir_parent": str(tmp_path)}
    with ExitStack() as stack:
        made = [stack.enter_context(run_directory(values)) for _ in range(3)]
        assert len({path for path in made if path.is_dir()}) == 3
        write_run(made[1], {})
        made.append(stack.enter_context(run_directory(values)))
    assert list(tmp_path.iterdir()) == [made[1]], "without a run, nothing is left"
    with run_directory({**values, "run_id": "a"}) as path:
        assert (path, path.exists()) == (tmp_path / "rollout_a", False), "made by the run"


def test_a_resumed_run_keeps_its_options_and_its_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = RolloutOptions(
        environment="x", model=ModelOptions(name="m", base_url="http://h/v1")
    ).settled()
    write_run(tmp_path, {"options": to_json(options)})
    asked = ["--runtime", "no-such-engine", "rollout", "run"]
    assert main([*asked, "--resume-from", str(tmp_path), "--group-size", "4"]) == 2
    assert "--group-size cannot change" in capsys.readouterr().err
    assert main([*asked, "--environment", "x", *MODEL, "--output-dir", str(tmp_path)]) == 2
    assert "--resume-from" in capsys.readouterr().err
    (tmp_path / "run.json").write_text(
        json.dumps({"schema": 1, "options": {"environment": 3, "odd": 1}})
    )
    assert main([*asked, "--resume-from", str(tmp_path)]) == 2
    assert "another version" in capsys.readouterr().err


def test_the_group_lists_its_commands_without_importing_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["rollout", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "preflight" in shown
    assert main(["rollout", "rnu"]) == 2
    assert "did you mean 'run'" in capsys.readouterr().err


@pytest.fixture
def rollout_dir(tmp_path: Path) -> Path:
    """Return the directory of a rollout run with one scored and one failed trajectory."""
    path = tmp_path / "rollout_1"
    path.mkdir()
    options = RolloutOptions(
        environment="swe", model=ModelOptions(name="m", base_url="http://h/v1")
    ).settled()
    write_run(path, {"options": to_json(options)})
    error = {"kind": "ContainerLostError", "message": "it ended", "phase": "tools"}
    made = (
        Trajectory(
            id="a/0",
            item_id="a",
            index=0,
            environment="swe",
            model="m",
            status="scored",
            reward=0.5,
        ),
        Trajectory(
            id="b/0",
            item_id="b",
            index=0,
            environment="swe",
            model="m",
            status="infrastructure",
            error=error,
        ),
    )
    (path / "trajectories.jsonl").write_bytes(b"".join(map(to_line, made)))
    group = Group(
        item_id="a", size=1, trajectories=["a/0"], rewards=[0.5], advantages=[0.0], complete=True
    )
    (path / "groups.jsonl").write_bytes(to_line(group))
    return path


def test_status_shows_a_rollout_run(rollout_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(rollout_dir)]) == 0
    said = capsys.readouterr()
    assert said.out == (
        f"{rollout_dir}: a rollout run of swe, not running, 2 trajectories, 1 scored, mean "
        "reward 0.5000, 1 full groups; failed: 1 ContainerLostError\n"
    )
    assert f"hyperrun rollout run --resume-from {rollout_dir}" in said.err
    assert main(["status", "--json", str(rollout_dir)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["trajectories"], shown["scored"], shown["mean_reward"], shown["groups"]) == (
        2,
        1,
        0.5,
        1,
    )


def test_status_names_the_node_of_each_container(
    rollout_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    directory_of_clusters().mkdir(parents=True)
    nodes = (NodeState(name="node-1", state="ready", host="n7", containers=("c1", "c2")),)
    opened = ClusterState(
        name="here", directory=str(rollout_dir / "cluster"), host="head", boot=boot_id(), pid=os.getpid(),
        start_ticks=process_start_ticks(os.getpid()) or 0, provider="slurm", opened=0.0, written=0.0, nodes=nodes,
    )  # fmt: skip
    beside = attrs.evolve(
        opened, name="loop", directory=str(rollout_dir.parent / f".{rollout_dir.name}.jobs-x")
    )
    other = attrs.evolve(opened, name="other", directory=str(tmp_path / "other" / "cluster"))
    for shown, copies in ((opened, 1), (beside, 1), (other, 0)):
        path = directory_of_clusters() / f"{shown.name}.json"
        path.write_bytes(json_document(attrs.asdict(shown)))
        assert main(["status", str(rollout_dir)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[1:] == copies * ["container c1 on node-1 (n7)", "container c2 on node-1 (n7)"]
        assert main(["status", "--json", str(rollout_dir)]) == 0
        containers = json.loads(capsys.readouterr().out)["containers"]
        assert containers == copies * [
            {"name": name, "node": "node-1", "host": "n7"} for name in ("c1", "c2")
        ]
        path.unlink()


def test_status_works_if_the_cache_directory_is_none(
    rollout_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert main(["status", str(rollout_dir)]) == 0
    said = capsys.readouterr()
    assert "2 trajectories" in said.out
    assert "cannot be read: Not a directory" in said.err


@pytest.mark.parametrize("command", [["resume"], ["evaluate"], ["generate", "--resume-from"]])
def test_commands_of_the_loop_name_a_rollout_run(
    command: list[str], rollout_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, str(rollout_dir), *(["best"] if command == ["evaluate"] else [])]) == 2
    error = capsys.readouterr().err
    assert f"a rollout run: `hyperrun status {rollout_dir}` shows it" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "said"),
    [("results.jsonl", "a batch of `hyperrun rollout batch`"), ("metrics.jsonl", "rollout train`")],
)
def test_report_and_status_name_other_directories(
    name: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text("")
    for command in ("report", "status"):
        assert main([command, str(tmp_path)]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert f"results are in {name}" in error


@pytest.fixture
def any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a training be placed without torch."""
    monkeypatch.setattr("hyperruntime.cli.rollout.train._check_trainer", lambda: None)


def placed(*words: str) -> TrainSettings:
    """Return the settings of the training that a command line begins or resumes."""
    values = train.make_context("train", list(words)).params
    return _place(train.make_context("train", list(words)), values, trust=values.pop("trust"))[1]


@pytest.mark.usefixtures("any_machine")
def test_a_training_stores_its_files_of_code_with_absolute_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    placed("--environment", "env.py:Env", "--policy", "mine.py:Policy", "--output-dir", "out")
    stored = json.loads((tmp_path / "out" / "train.json").read_text())
    assert (stored["environment"], stored["policy"]) == (
        f"{tmp_path}/env.py:Env",
        f"{tmp_path}/mine.py:Policy",
    )


@pytest.mark.usefixtures("any_machine")
def test_a_training_that_somebody_else_made_runs_its_code_only_with_consent(tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    path.write_text(json.dumps(before := to_json(TrainSettings(policy="/theirs/evil.py:Policy"))))
    with pytest.raises(
        ReceivedRunError, match=r"was made elsewhere and asks for --policy /theirs/evil\.py:Policy"
    ):
        placed("--resume-from", str(tmp_path))
    assert json.loads(path.read_text()) == before, "a refusal marks nothing"
    accepted = placed("--resume-from", str(tmp_path), "--trust")
    assert placed("--resume-from", str(tmp_path)) == accepted


def test_a_run_of_rollouts_that_somebody_else_made_runs_its_code_only_with_consent(
    tmp_path: Path,
) -> None:
    model = ModelOptions(name="m", base_url="http://127.0.0.1:9/v1")
    options = RolloutOptions(environment="/theirs/evil.py:World", model=model)
    write_run(tmp_path, {"options": to_json(options)})
    value = json.loads((tmp_path / "run.json").read_text())
    del value[MARK]
    (tmp_path / "run.json").write_text(json.dumps(value))
    with pytest.raises(
        ReceivedRunError,
        match=r"was made elsewhere and asks for --environment /theirs/evil\.py:World",
    ):
        resumable_options(tmp_path, trust=False)
    assert resumable_options(tmp_path, trust=True) == options
