"""``hyperrun rollout`` reports a wrong command line before it opens an engine."""

import json
from pathlib import Path

import pytest

from hyperruntime.cli import main
from hyperruntime.option_fields import to_json
from hyperruntime.rollout.models import ModelOptions
from hyperruntime.rollout.run.options import RolloutOptions
from hyperruntime.rollout.run_files.run_dir import write_run

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
    ],
)
def test_wrong_usage_prints_one_line_and_exits_with_2(
    args: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--runtime", "no-such-engine", "rollout", "run", *args]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_resumed_run_keeps_its_options_and_its_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = RolloutOptions(environment="x", model=ModelOptions(name="m", base_url="http://h/v1")).settled()
    write_run(tmp_path, {"options": to_json(options)})
    asked = ["--runtime", "no-such-engine", "rollout", "run"]
    assert main([*asked, "--resume-from", str(tmp_path), "--group-size", "4"]) == 2
    assert "--group-size cannot change" in capsys.readouterr().err
    assert main([*asked, "--environment", "x", *MODEL, "--output-dir", str(tmp_path)]) == 2
    assert "--resume-from" in capsys.readouterr().err
    assert main([*asked, "--resume-from", str(tmp_path / "none")]) == 2
    assert "rollout run" in capsys.readouterr().err
    (tmp_path / "run.json").write_text(json.dumps({"schema": 1, "options": {"environment": 3, "odd": 1}}))
    assert main([*asked, "--resume-from", str(tmp_path)]) == 2
    assert "another version" in capsys.readouterr().err


def test_the_group_lists_its_commands_without_importing_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rollout", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "preflight" in shown
    assert main(["rollout", "rnu"]) == 2
    assert "did you mean 'run'" in capsys.readouterr().err
