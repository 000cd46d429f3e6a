"""The options of ``hyperrun generate``: HyperAgents' spelling, configuration files, combinations,
resuming.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import attrs
import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperruntime.cli import main
from hyperruntime.cli.command import spread
from hyperruntime.cli.loop.generate import ORIGINAL as PREFERRED
from hyperruntime.cli.loop.generate import changed_options, generate, make_options
from hyperruntime.cli.loop.generations import failure_counts, failure_text
from hyperruntime.cli.loop.progress import exit_code
from hyperruntime.errors import AgentError, SpecError
from hyperruntime.loop.run.run import RunSummary
from hyperruntime.loop.run_files.archive import load_run
from hyperruntime.loop.run_files.options import GenerateOptions
from hyperruntime.loop.run_files.record import GenerationRecord
from hyperruntime.option_fields import to_json
from hyperruntime.spec import Limits

DOMAINS = ("--domains", "circle_packing")
NOT_OPTIONS = ("as_json", "resume_from", "resume_or_start", "runtime", "wait")
# The options of HyperAgents with their defaults (without `--domains`, which is required).
ORIGINAL = {
    "run_id": None,
    "max_generation": 10,
    "eval_samples": None,
    "eval_workers": 10,
    "parent_selection": "score_child_prop",
    "resume_from": None,
    "output_dir_parent": "outputs",
    "meta_patch_files": (),
    "reset_task_agent": False,
    "reset_meta_agent": False,
    "copy_root_dir": None,
    "run_baseline": None,
    "optimize_option": "only_agent",
    "agent_archive_path": None,
    "eval_test": False,
    "skip_staged_eval": False,
    "edit_select_parent": False,
}


def parsed(*args: str) -> GenerateOptions:
    """Return the options of ``hyperrun generate`` with these arguments."""
    context = generate.make_context("generate", list(args))
    values = {name: value for name, value in context.params.items() if name not in NOT_OPTIONS}
    with context:
        return make_options(values)


def limits(**changes: Any) -> Limits:
    """Return the default limits of a run, with these changes."""
    return attrs.evolve(GenerateOptions(domains="circle_packing").limits, **changes)


def test_every_field_of_the_options_has_an_option_with_the_same_default() -> None:
    made = parsed("--domains", "circle_packing")
    expected = GenerateOptions(domains=("circle_packing",))
    for field in attrs.fields(GenerateOptions):
        if field.name not in ("run_id", "seed", "contract"):  # which settled() fills in
            assert getattr(made, field.name) == getattr(expected, field.name), field.name
    assert made.run_id is not None
    assert made.seed is not None


def test_an_invalid_value_names_its_option() -> None:
    with pytest.raises(SpecError, match=r"--timeout-meta='soon'"):
        parsed("--domains", "circle_packing", "--timeout-meta", "soon")
    with pytest.raises(click.UsageError):
        parsed("--domains", "circle_packing", "--max-generation", "-3")


@pytest.mark.parametrize("name", ORIGINAL)
def test_every_hyperagents_option_exists_with_its_default(name: str) -> None:
    option = next(param for param in generate.params if f"--{name.replace('_', '-')}" in param.opts)
    assert option.name == name
    if name == "resume_from":
        assert generate.make_context("generate", list(DOMAINS)).params[name] is None
    else:
        made = attrs.evolve(parsed(*DOMAINS), run_id=None)
        assert getattr(made, name) == ORIGINAL[name]


@pytest.mark.parametrize(
    ("args", "field", "value"),
    [
        (("--eval_workers", "3"), "eval_workers", 3),
        (("--eval_test", "--skip_staged_eval", "--edit_select_parent"), "edit_select_parent", True),
        (("--run_baseline=dgm+no_selfimprove",), "run_baseline", "dgm+no_selfimprove"),
        (("--copy_root_dir", "a_b"), "copy_root_dir", "a_b"),
        (
            ("--optimize_option", "only_ensemble", "--agent_archive_path", "x_y"),
            "agent_archive_path",
            "x_y",
        ),
        (
            ("--meta_patch_files", "a.diff", "b c.diff", "--reset_task_agent"),
            "meta_patch_files",
            ("a.diff", "b c.diff"),
        ),
        (("--timeout_report", "2m"), "timeout_report_s", 120.0),
        (("--timeout-ensemble", "3s"), "timeout_ensemble_s", 3.0),
        (("--timeout-select", "4s"), "timeout_select_s", 4.0),
        (("--budget-requests", "7"), "budget_requests", 7),
        (("--max-file-bytes", "1m"), "max_file_bytes", 1024**2),
        (("--timeout-check", "90"), "timeout_check_s", 90.0),
        (("--timeout-eval", "2h"), "timeout_eval_s", 7200.0),
        (("--budget-generation-money", "0.5"), "budget_generation_money", 0.5),
        (("--budget-generation-tokens", "9"), "budget_generation_tokens", 9),
        (("--model", "m", "--gateway", "g.toml"), "gateway", os.path.abspath("g.toml")),
        (("--valid-parent", "hyperagents"), "valid_parent", "hyperagents"),
        (
            ("--run-baseline", "no_archive", "--parent-selection", "best"),
            "parent_selection",
            "latest",
        ),
    ],
)
def test_options_set_their_fields(args: tuple[str, ...], field: str, value: object) -> None:
    assert getattr(parsed(*DOMAINS, *args), field) == value


@pytest.mark.parametrize(
    "args",
    [
        ("--domains", "circle_packing", "other", "--eval-samples", "5", "-1"),
        ("--domains", "circle_packing,other", "--eval-samples", "5,-1"),
        (
            "--domains",
            "circle_packing",
            "--domains",
            "other",
            "--eval-samples",
            "5",
            "--eval-samples",
            "-1",
        ),
        ("--domains=circle_packing", "other", "--eval_samples=5", "-1"),
        ("--eval_samples", "5", "-1", "--skip-staged-eval", "--domains", "circle_packing", "other"),
    ],
)
def test_several_values_may_be_written_in_three_ways(args: tuple[str, ...]) -> None:
    made = parsed(*args)
    assert made.domains == ("circle_packing", "other")
    assert made.eval_samples == (5, -1)


WORDS = st.text(
    st.characters(categories=("L", "N"), include_characters=" =,._-"), min_size=1
).filter(lambda text: not text.startswith("-"))


@given(st.lists(WORDS, min_size=1), WORDS)
def test_values_of_a_list_option_are_passed_on_unchanged(values: list[str], single: str) -> None:
    found = spread(["--x_y", *values, "--a_b", single], {"--x-y"})
    assert found[-2:] == ["--a-b", single]
    assert found[:-2] == [part for value in values for part in ("--x-y", value)]


@given(st.lists(st.text()))
def test_words_that_are_not_options_or_follow_two_dashes_are_unchanged(words: list[str]) -> None:
    plain = [word for word in words if not word.startswith("--")]
    assert spread(plain, {"--x-y"}) == plain
    assert spread(["--", *words], {"--x-y"}) == ["--", *words]


@pytest.mark.parametrize(
    ("args", "field", "value"),
    [
        # as in the original, although there is --max-file-bytes
        (("--max", "3"), "max_generation", 3),
        (("--eval_s", "5"), "eval_samples", (5,)),
        (("--parent=best",), "parent_selection", "best"),
        (("--skip",), "skip_staged_eval", True),
        (("--budget-r", "7"), "budget_requests", 7),
    ],
)
def test_an_unambiguous_prefix_stands_for_its_option(
    args: tuple[str, ...], field: str, value: object
) -> None:
    assert getattr(parsed("--domain", "circle_packing", *args), field) == value
    assert {name.removeprefix("--").replace("-", "_") for name in PREFERRED} == {
        "domains",
        *ORIGINAL,
    }


@pytest.mark.parametrize("prefix", ["--eval", "--budget", "--reset"])
def test_an_ambiguous_prefix_is_rejected_with_the_options_that_it_fits(prefix: str) -> None:
    with pytest.raises(
        click.UsageError, match=f"{prefix} is ambiguous; write {prefix}-.* or {prefix}-"
    ):
        parsed(*DOMAINS, prefix, "1")


def test_a_second_value_for_a_single_option_is_rejected() -> None:
    with pytest.raises(click.UsageError):
        parsed(*DOMAINS, "--max-generation", "3", "4")


@pytest.mark.parametrize(
    ("args", "wanted"),
    [
        (
            ("--limits", "memory=2g,cpus=1.5,pids=64"),
            limits(memory_bytes=2 * 1024**3, cpus=1.5, pids=64),
        ),
        (("--limits", "memory=2g", "--memory", "1g"), limits(memory_bytes=1024**3)),
        (("--pids", "none", "--limits", "pids=64,cpus=2"), limits(cpus=2.0, pids=None)),
        (("--limits", "pids=none,disk=1g"), limits(pids=None, disk_bytes=1024**3)),
        (("--limits", "disk=1g,shm=1m"), limits(disk_bytes=1024**3, shm_bytes=1024**2)),
    ],
)
def test_limits_may_be_combined_in_one_option_and_single_options_override_it(
    args: tuple[str, ...], wanted: Limits
) -> None:
    assert parsed(*DOMAINS, *args).limits == wanted


@pytest.mark.parametrize(
    ("text", "said"),
    [("memry=2g", "did you mean 'memory'"), ("memory", "give memory a value"), ("cpus=-1", "cpus")],
)
def test_an_invalid_limit_is_rejected(text: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        parsed(*DOMAINS, "--limits", text)


def test_a_file_sets_options_and_the_command_line_overrides_them(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(
        '[generate]\ndomains = ["circle_packing", "other"]\neval-samples = [5, -1]\nmax_generation = 3\n'
        'timeout-meta = "10m"\nskip-staged-eval = true\nlimits = "memory=2g,pids=99"\nmeta-patch-files = ["a", "b"]\n'
        "[gateway]\nupstream = 1\n"
    )
    made = parsed("--max-generation", "4", "--limits", "cpus=1,pids=77", "--config", str(path))
    assert made.domains == ("circle_packing", "other")
    assert made.eval_samples == (5, -1)
    assert (made.max_generation, made.timeout_meta_s, made.skip_staged_eval) == (4, 600.0, True)
    assert made.limits == limits(memory_bytes=2 * 1024**3, cpus=1.0, pids=77)
    assert made.meta_patch_files == ("a", "b")
    assert made.gateway == str(path)
    assert parsed("--config", str(path), "--gateway", "other.toml").gateway == os.path.abspath(
        "other.toml"
    )
    assert parsed("--config", str(path), *DOMAINS, "--eval-samples", "1").domains == (
        "circle_packing",
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[generate]\nmax-generatin = 3\n", "did you mean 'max-generation'"),
        ("[generat]\nmax-generation = 3\n", "unknown table 'generat'; did you mean 'generate'"),
        ("[generate]\nconfig = 'x'\n", "unknown option 'config'"),
        ("[generate\n", "cannot be read as TOML"),
        ("generate = 3\n", "must be a table"),
    ],
)
def test_a_file_with_unknown_keys_is_rejected(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(AgentError, match=said):
        parsed("--config", str(path), *DOMAINS)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--optimize-option", "only_ensemble"), "requires --agent-archive-path"),
        (("--agent-archive-path", "x"), "it requires --optimize-option only_ensemble"),
        (("--reset-task-agent",), "--meta-patch-files"),
        (("--reset_meta_agent",), "--meta-patch-files"),
        (
            ("--optimize-option", "both_agent_ensemble", "--run-baseline", "no_archive"),
            "baseline no_archive has no ensemble",
        ),
        (("--eval-samples", "1", "2"), "one count for each of 1 domains"),
        (("--eval-samples", "0"), "a positive count of tasks, or -1 for all"),
        (("--run-baseline", "dmg"), "'dmg' is not one of"),
        (("--config", "/no/such.toml"), "does not exist"),
        (("--meta-patch-files", "/no/such.diff"), "'/no/such.diff' cannot be read"),
        (("--copy-root-dir", "/no/such"), "'/no/such' is not a directory"),
    ],
)
def test_missing_or_exclusive_options_print_one_line_and_exit_with_2(
    args: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", *DOMAINS, *args]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Return the directory of a run that was interrupted before its first generation."""
    path = tmp_path / "generate_1"
    path.mkdir()
    options = GenerateOptions(
        domains=("circle_packing",),
        max_generation=5,
        run_id="1",
        seed=7,
        output_dir_parent=str(tmp_path),
    )
    (path / "run.json").write_text(json.dumps({"seed": 7, "options": to_json(options)}))
    return path


def test_budgets_counts_timeouts_and_the_parent_rule_may_change_on_resume(run_dir: Path) -> None:
    args = [
        "--resume-from",
        str(run_dir),
        "--budget-tokens",
        "5",
        "--max_generation",
        "9",
        *DOMAINS,
    ]
    args += [
        "--eval-workers",
        "2",
        "--timeout-eval",
        "1m",
        "--executor",
        "local",
        "--parent-selection",
        "best",
    ]
    context = generate.make_context("generate", args)
    values = {name: value for name, value in context.params.items() if name not in NOT_OPTIONS}
    changes = changed_options(context, values, load_run(run_dir).options, str(run_dir))
    assert changes == {
        "max_generation": 9,
        "budget_tokens": 5,
        "eval_workers": 2,
        "timeout_eval_s": 60.0,
        "executor": "local",
        "parent_selection": "best",
    }


def test_only_the_limits_that_are_given_must_equal_those_of_the_run(tmp_path: Path) -> None:
    stored = GenerateOptions(
        domains="d", limits=Limits(memory_bytes=1024**3, cpus=2), output_dir_parent=str(tmp_path)
    )
    run_dir = str(tmp_path / "generate_1")
    context = generate.make_context("generate", ["--memory", "1g"])
    values = {name: value for name, value in context.params.items() if name not in NOT_OPTIONS}
    assert changed_options(context, values, stored, run_dir) == {}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--seed", "8"), "--seed cannot change when a run is resumed; run "),
        (("--domains", "other"), "has circle_packing; leave it out"),
        (("--run-id", "2"), "--run-id cannot change"),
        (("--memory", "2g"), "has None; leave it out"),
        (("--output-dir-parent", "/elsewhere"), "--output-dir-parent cannot change"),
        (("--network", "host"), "--network cannot change"),
    ],
)
def test_other_options_cannot_change_on_resume(
    run_dir: Path, args: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "--resume_from", str(run_dir), *args]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("initial", "new", "code"),
    [
        ("", ("", ""), 0),
        ("", ("x", ""), 0),
        ("", ("x", "x"), 1),
        ("x", ("", "x"), 0),
        ("x", (), 1),
        ("", (), 0),
    ],
)
def test_a_run_without_any_new_ensemble_exits_with_1(
    initial: str, new: tuple[str, ...], code: int
) -> None:
    first = GenerationRecord(genid="initial", score=0.5, ensemble_failure=initial)
    failed = GenerationRecord(genid=9, parent="initial", failure="agent")
    later = [
        GenerationRecord(genid=n, parent="initial", ensemble_failure=why)
        for n, why in enumerate(new, 1)
    ]
    records = (first, *later, failed)
    assert (
        exit_code(RunSummary(run_dir="x", generations=records, best=first, interrupted=False), 0)
        == code
    )


def test_a_failed_ensemble_and_unanswered_tasks_are_counted_and_shown_like_a_failure() -> None:
    records = [
        GenerationRecord(genid=1, failure="agent", detail="it ended"),
        GenerationRecord(genid=2, ensemble_failure="it wrote\nno table"),
        GenerationRecord(genid=3),
        GenerationRecord(genid=4, score=0.5, unanswered="2 of 5 tasks timed out"),
    ]
    assert failure_counts(records) == {"agent": 1, "ensemble": 1, "tasks": 1}
    shown = ["agent: it ended", "ensemble: it wrote no table", "", "tasks: 2 of 5 tasks timed out"]
    assert [failure_text(record) for record in records] == shown


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--resume-or-start",), "requires --run-id"),
        (
            ("--resume-or-start", "--run-id", "1", "--seed", "8"),
            "--seed cannot change when a run is resumed",
        ),
        (
            ("--resume-or-start", "--run-id", "2", "--copy-root-dir", "/no/such"),
            "'/no/such' is not a directory",
        ),
        (("--wait", "--run-id", "1"), "--wait requires --resume-from or --resume-or-start"),
    ],
)
def test_a_run_is_resumed_by_its_id_if_it_exists_and_started_otherwise(
    run_dir: Path, args: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(
            [
                "generate",
                "--runtime",
                "none",
                *DOMAINS,
                "--output-dir-parent",
                str(run_dir.parent),
                *args,
            ]
        )
        == 2
    )
    assert said in capsys.readouterr().err


def test_an_unknown_executor_is_rejected_on_resume(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["resume", str(run_dir), "--exec", "lcal"]) == 2
    assert "did you mean 'local'" in capsys.readouterr().err
