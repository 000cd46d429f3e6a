"""Rows of data sets and reports of judges: parsing of text that others wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hyperruntime as hr
from hyperenvironment_swe import Swe
from hyperenvironment_swe.controls import Control
from hyperenvironment_swe.items import parse_row
from hyperenvironment_swe.judging import (
    UNKNOWN_TEST,
    Ended,
    Findings,
    nothing,
    passed_tests,
    read_answer,
    read_findings,
)
from hyperenvironment_swe.state import protected_paths, write_state
from hyperruntime.errors import ExtraMissingError, SpecError, StorageError
from hyperruntime.git.change_rules import ChangeRules
from hyperruntime.git.command import git
from hyperruntime.rollout.repositories import Repositories
from tests.swecase import make_repository, write_rows

ROW: dict[str, Any] = {
    "instance_id": "own__name-1",
    "repo": "own/name",
    "base_commit": "a" * 40,
    "problem_statement": "mend it",
    "FAIL_TO_PASS": ["tests/test_a.py::test_b"],
}


@given(
    st.lists(
        st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), min_size=1)
    )
)
def test_ids_may_be_a_list_or_a_json_string(names: list[str]) -> None:
    """SWE-bench writes JSON in a string, SWE-smith a list; ids are kept exactly."""
    ids = [f"t.py::{name}" for name in names if name.isprintable()]
    listed = parse_row({**ROW, "PASS_TO_PASS": ids}).pass_to_pass
    assert set(listed) == set(ids)
    assert parse_row({**ROW, "PASS_TO_PASS": json.dumps(ids)}).pass_to_pass == listed


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("repo", None),
        ("repo", ["a"]),
        ("base_commit", 7),
        ("base_commit", None),
        ("instance_id", "a b"),
        ("FAIL_TO_PASS", "tests/a.py::x"),
        ("FAIL_TO_PASS", {"a": 1}),
        ("FAIL_TO_PASS", ["../x.py::t"]),
        ("FAIL_TO_PASS", ["/etc/x.py::t"]),
        ("FAIL_TO_PASS", ["a.py::t\nx"]),
        ("repo_dir", "../x"),
        ("repo_dir", "a/b"),
        ("repo_dir", "-x"),
        ("runner", "sh"),
        ("env", {"A": 1}),
    ],
)
def test_a_malformed_row_is_rejected_with_its_field(field: str, value: object) -> None:
    """W24, W26: rows are checked before a run."""
    with pytest.raises(SpecError, match=field):
        parse_row({**ROW, field: value})


def swe(path: Path, **options: Any) -> Swe:
    """Return the environment of a path."""
    return Swe(items=str(path), cache_dir=str(path.parent / "cache"), **options)


def ids(path: Path, **options: Any) -> list[str]:
    """Return the ids of the items of a path."""
    return [item.id for item in swe(path, **options).items()]


def items(path: Path, rows: list[dict[str, Any]], **options: Any) -> list[str]:
    """Return the ids of the items of some rows; they are the same each time."""
    file = Path(write_rows(path / "rows.jsonl", *rows))
    found = ids(file, **options)
    assert found == ids(file, **options)
    return found


def test_options_select_items(tmp_path: Path) -> None:
    """Number, language and order; rows whose lists are JSON strings count as Python too."""
    rows = [{**ROW, "instance_id": f"i{n}", "PASS_TO_PASS": '["a.py::b"]'} for n in range(20)]
    rows += [{**ROW, "instance_id": "go", "PASS_TO_PASS": ["TestOther"]}]
    assert items(tmp_path, rows, max_items=3) == ["i0", "i1", "i2"]
    assert "go" not in items(tmp_path, rows, python_only=True)
    shuffled = items(tmp_path, rows, shuffle_seed=0)
    assert shuffled != items(tmp_path, rows)
    assert sorted(shuffled) == sorted(items(tmp_path, rows, shuffle_seed=1))


def test_items_without_tests_and_duplicate_ids_are_rejected(tmp_path: Path) -> None:
    """W23: an item without tests could not have a true reward."""
    with pytest.raises(SpecError, match="at least one test in FAIL_TO_PASS or PASS_TO_PASS"):
        items(tmp_path, [{**ROW, "FAIL_TO_PASS": []}])
    with pytest.raises(SpecError, match="a unique id"):
        items(tmp_path, [ROW, ROW], unsupported="fail")


def test_odd_rows_are_left_out_by_id(tmp_path: Path) -> None:
    """One of them makes no data set unusable; ``max_items`` counts the items that are left."""
    odd = [
        {**ROW, "instance_id": "none", "FAIL_TO_PASS": []},
        {**ROW, "instance_id": "text", "PASS_TO_PASS": "no"},
    ]
    lines = [
        *map(json.dumps, [*odd, {}, ROW, ROW]),
        "{oops",
        "[]",
        json.dumps({**ROW, "instance_id": "last"}),
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(lines))
    for most in (None, 2):
        made = swe(path, max_items=most)
        assert [item.id for item in made.items()] == [ROW["instance_id"], "last"], made.left_out
        names = ["none", "text", "row 3 without an id", ROW["instance_id"], "line 6", "line 7"]
        assert sorted(made.left_out) == sorted(names)
    with pytest.raises(SpecError, match="FAIL_TO_PASS or PASS_TO_PASS"):
        ids(path, unsupported="fail")


def test_rows_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    """A line that is not UTF-8, values of an array that are no objects, and nulls; a byte order
    mark is skipped.
    """
    good = json.dumps(ROW).encode()
    cases = {
        "lines.jsonl": (b"\xef\xbb\xbf" + good + b'\n{"instance_id": "caf\xe9"}\n', {"line 2"}),
        "array.json": (
            b"\n [" + good + b', 3, null, {"instance_id": "x", "repo": null}]',
            {"row 2", "row 3", "x"},
        ),
    }
    for name, (content, left) in cases.items():
        (tmp_path / name).write_bytes(content)
        made = swe(tmp_path / name)
        assert [item.id for item in made.items()] == [ROW["instance_id"]]
        assert set(made.left_out) == left
        with pytest.raises(SpecError):
            ids(tmp_path / name, unsupported="fail")


def test_a_line_may_contain_unicode_line_separators_and_a_bad_line_is_named(tmp_path: Path) -> None:
    """JSON does not escape U+2028 and U+0085, and data sets often contain them."""
    text = "a\u2028b\u0085c"
    path = tmp_path / "rows.jsonl"
    path.write_text(
        json.dumps({**ROW, "problem_statement": text}, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    assert [item.data["problem_statement"] for item in swe(path).items()] == [text]
    path.write_text(json.dumps(ROW) + "\n\n{oops\n")
    with pytest.raises(SpecError, match=r"rows\.jsonl:3.*one JSON object on each line"):
        ids(path, unsupported="fail")


@pytest.mark.parametrize(
    ("option", "value"),
    [("max_items", -1), ("max_items", 0), ("tests_per_process", 0), ("install_timeout_s", float("nan")),
     ("install_timeout_s", -1.0), ("test_timeout_s", 0.0), ("test_timeout_s", float("inf"))],
)  # fmt: skip
def test_invalid_numbers_are_rejected(option: str, value: float) -> None:
    options: dict[str, Any] = {option: value}
    with pytest.raises(SpecError, match=option):
        Swe(**options)


def test_a_cache_directory_that_cannot_be_made_raises_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cache_dir"):
        list(Swe(cache_dir=str(tmp_path / "file" / "cache")).items())


def test_a_directory_with_train_jsonl_and_a_json_list_are_read(tmp_path: Path) -> None:
    """A plain JSON Lines file is the third form."""
    write_rows(tmp_path / "train.jsonl", ROW)
    (tmp_path / "rows.json").write_text(json.dumps([ROW]))
    for place in (tmp_path, tmp_path / "rows.json"):
        assert ids(place) == ["own__name-1"]


PARQUET_ROW = {name: value for name, value in ROW.items() if name != "FAIL_TO_PASS"}


def snapshot(where: Path, **files: str) -> Path:
    """Write a snapshot of a data set: file name by instance id. SWE-smith's lists are lists
    there.
    """
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (where / "data").mkdir(parents=True)
    (where / "README.md").write_text("---\nlicense: mit\n---\n")
    for name, file in files.items():
        row = {
            **PARQUET_ROW,
            "instance_id": name,
            "FAIL_TO_PASS": ["t.py::a"],
            "PASS_TO_PASS": ["t.py::b"],
        }
        parquet.write_table(pa.Table.from_pylist([row]), where / "data" / file)
    return where


def test_a_snapshot_of_a_data_set_is_read_as_it_is(tmp_path: Path) -> None:
    """Its splits are in the names of its Parquet files, each of which may have several parts."""
    parts = {"a": "train-00000-of-00002.parquet", "b": "train-00001-of-00002.parquet"}
    assert ids(snapshot(tmp_path / "one", **parts)) == ["a", "b"]
    several = snapshot(
        tmp_path / "several", **parts, c="test-00000-of-00001-a1b2c3d4e5f60718.parquet"
    )
    assert ids(several, split="test") == ["c"]
    assert ids(several, split="train", max_items=1) == ["a"]
    with pytest.raises(SpecError, match="split=test or split=train"):
        ids(several)
    with pytest.raises(SpecError, match=r"split='dev' .* test, train"):
        ids(several, split="dev")
    (several / "data" / "test-00000-of-00001-a1b2c3d4e5f60718.parquet").write_text(
        "version https://git-lfs.x\n"
    )
    with pytest.raises(SpecError, match="git lfs pull"):
        ids(several, split="test")


def test_odd_rows_of_parquet_are_left_out(tmp_path: Path) -> None:
    """Text that is not UTF-8, which Parquet stores all the same; a null; an empty list of tests."""
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    good = {**PARQUET_ROW, "FAIL_TO_PASS": ["t.py::a"], "PASS_TO_PASS": ["t.py::b"]}
    odd: dict[str, dict[str, Any]] = {"bytes": {}, "none": {"repo": None}}
    odd["no-tests"] = {"FAIL_TO_PASS": [], "PASS_TO_PASS": None}
    rows = [{**good, "instance_id": name, **odd.get(name, {})} for name in ("a", *odd, "z")]
    table = pa.Table.from_pylist(rows)
    texts = [row["problem_statement"].encode() for row in rows]
    texts[1] = b"caf\xe9"
    column = pa.Array.from_buffers(pa.string(), len(texts), pa.array(texts, pa.binary()).buffers())
    place = table.schema.get_field_index("problem_statement")
    (tmp_path / "data").mkdir()
    parquet.write_table(
        table.set_column(place, "problem_statement", column), tmp_path / "data" / "train.parquet"
    )
    made = swe(tmp_path)
    assert [item.id for item in made.items()] == ["a", "z"]
    assert sorted(made.left_out) == ["no-tests", "none", "row 2"]
    with pytest.raises(SpecError, match="utf-8"):
        ids(tmp_path, unsupported="fail")


def test_parquet_files_need_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = snapshot(tmp_path / "one", a="train-00000-of-00001.parquet")
    monkeypatch.setattr("hyperenvironment_swe.items.find_spec", lambda name: None)
    with pytest.raises(ExtraMissingError, match=r"hyperruntime\[swe\]"):
        ids(place)


SMITH = {
    "instance_id": "own__name.0a1b2c3d.func_basic__x1y2z3",
    "repo": "swesmith/own__name.0a1b2c3d",
    "patch": "diff --git a/a.py b/a.py\n",
    "image_name": "someone/swesmith.x86_64.own_1776_name.0a1b2c3d",
    "problem_statement": "",
    "FAIL_TO_PASS": ["t.py::a"],
    "PASS_TO_PASS": ["t.py::b"],
}


def test_the_patch_of_a_row_of_swe_smith_is_the_bug_and_of_other_rows_never_read() -> None:
    """SWE-smith's rows have no commit, but an image."""
    item = parse_row(SMITH)
    assert (item.base_commit, item.bug_patch, item.image) == (
        "",
        SMITH["patch"],
        SMITH["image_name"],
    )
    assert parse_row({**ROW, "patch": "the solution"}).bug_patch == ""
    assert parse_row({**SMITH, "base_commit": "b" * 40}).bug_patch == ""


def test_options_set_the_directory_and_the_image_of_all_items(tmp_path: Path) -> None:
    """SWE-bench names its images by the id of the row, without double underscores; SWE-smith's rows
    name one.
    """

    class Images:
        def ensure(self, reference: str) -> str:
            return reference

    def image_and_directory(row: dict[str, Any], template: str, **options: Any) -> tuple[str, str]:
        environment = Swe(
            items=write_rows(tmp_path / "rows.jsonl", row),
            cache_dir=str(tmp_path),
            image_template=template,
            **options,
        )
        item = next(iter(environment.items()))
        spec = environment.spec(item, hr.ContainerSpec(image="base"), Images())  # type: ignore[arg-type]
        return spec.image, item.data["repo_dir"]

    bench = {**ROW, "instance_id": "Own__name-1"}
    template = "docker.io/swebench/sweb.eval.x86_64.{id_1776}:latest"
    found = image_and_directory(bench, template, repo_dir="/testbed")
    assert found == ("docker.io/swebench/sweb.eval.x86_64.own_1776_name-1:latest", "/testbed")
    assert (
        image_and_directory({**bench, "repo_dir": "/own"}, "mine/{id}", repo_dir="/testbed")[1]
        == "/own"
    )
    smith = image_and_directory(SMITH, "docker.io/{image_name}")
    assert smith == (f"docker.io/{SMITH['image_name']}", "own__name.0a1b2c3d")
    for wrong in ("{image_name}", "{nope}", "{", "{id.x}", "{0}"):
        with pytest.raises(
            SpecError, match=r"image_template.*\{id\} or \{id_1776\} for item Own__name-1"
        ):
            image_and_directory(bench, wrong)
    with pytest.raises(SpecError, match="repo_dir"):
        Swe(repo_dir="../x")


@pytest.mark.parametrize(
    "path",
    [
        "tests/test_a.py",
        "tests/helper.py",
        "src/conftest.py",
        "x.pth",
        "a/b.egg-info/entry_points.txt",
        "pytest.ini",
    ],
)
def test_files_that_decide_the_result_are_protected(path: str) -> None:
    """W22."""
    rules = ChangeRules(protected=protected_paths(parse_row(ROW), ROW["FAIL_TO_PASS"]))
    assert rules.problem(path.encode())
    assert not rules.problem(b"src/tests.py")
    assert not rules.problem(b"pyproject.toml")


CONTROL = Control("t1", "t.py", ())
START = {"exit_code": 0, "timed_out": False, "output": "", "report": json.dumps({"kind": "runner"})}


def end(*records: dict[str, Any], exit_code: int) -> dict[str, Any]:
    """Return the end of a process with a report of these records."""
    return {**START, "exit_code": exit_code, "report": "\n".join(map(json.dumps, records))}


def phases(name: str, outcome: str, **more: Any) -> list[dict[str, Any]]:
    """Return the records that a test writes while it runs."""
    calls = [("setup", "passed"), ("call", outcome), ("teardown", "passed")]
    return [
        {"kind": "test", "id": name, "when": when, "outcome": what, "xfail": False, **more}
        for when, what in calls
    ]


def findings(*ends: dict[str, Any]) -> Findings:
    """Return the findings for two tests and a control, in this order."""
    answer = {"protections": {"separate_user": True}, "installed": None, "runs": [START, *ends]}
    return read_findings(answer, [(("t1",), None), (("t2",), None), (("t1",), CONTROL)])


PASSED = [end(*phases(name, "passed"), exit_code=0) for name in ("t1", "t2")]
FAILED = end(*phases("t1", "failed"), exit_code=1)


def test_a_report_is_valid_only_if_exit_codes_and_controls_agree() -> None:
    """Otherwise it counts as forged, or the test does not count."""
    assert findings(*PASSED, FAILED).passed == {"t1", "t2"}
    unread = end({"kind": "collect", "id": "t.py", "text": ""}, exit_code=1)
    assert findings(*PASSED, unread).passed == {"t1", "t2"}
    for control in (
        PASSED[0],
        {**FAILED, "exit_code": 0},
        {**FAILED, "report": ""},
        end(exit_code=1),
    ):
        assert (findings(*PASSED, control).passed, findings(*PASSED, control).unfailed) == (
            frozenset(),
            ("t1",),
        )
    assert findings(*PASSED).unfailed == ("t1",)
    for code in (1, -9, 3):
        assert findings(PASSED[0], {**PASSED[1], "exit_code": code}, FAILED).passed == {"t1"}


@pytest.mark.parametrize(
    ("records", "exit_code"),
    [
        (phases("t2", "failed"), 1),
        (phases("t2", "skipped"), 0),
        (phases("t2", "passed", xfail=True), 0),
        (phases("t2", "passed")[:1], 0),
        ([*phases("t2", "passed")[:2], {**phases("t2", "passed")[2], "outcome": "failed"}], 1),
        ([*phases("t2", "passed"), *phases("t2", "failed")], 1),
        ([], 0),
    ],
)
def test_a_test_passes_only_if_all_its_phases_pass(
    records: list[dict[str, Any]], exit_code: int
) -> None:
    """Setup, call and teardown pass in every run of the test, without a skip or an expected
    failure.
    """
    found = findings(PASSED[0], end(*records, exit_code=exit_code), FAILED)
    assert found.passed == {"t1"}
    assert set(found.problems) == {"t2"}


def test_the_control_of_a_test_that_does_not_pass_says_nothing() -> None:
    """The control of a skipped test is skipped; a negated assertion passes where the assertion
    itself fails.
    """
    skipped = end(*phases("t1", "skipped"), exit_code=0)
    for test, control in ((skipped, skipped), (FAILED, PASSED[0])):
        found = findings(test, PASSED[1], control)
        assert found.passed == {"t2"}
        assert not found.unfailed
        assert found.protections["controls"] == 0
    assert findings(*PASSED, skipped).unfailed == ("t1",)


@pytest.mark.parametrize(
    ("ended", "unknown"),
    [
        (end(exit_code=4), True),
        (end(exit_code=5), True),
        (end(*phases("another of the same function", "failed"), exit_code=1), True),
        (end(exit_code=1), False),
        (end(exit_code=-9), False),
        (end({"kind": "collect", "id": "t.py", "text": "no module"}, exit_code=1), False),
    ],
)
def test_a_test_is_unknown_if_the_test_runner_ends_normally_without_it(
    ended: dict[str, Any], unknown: bool
) -> None:
    """Its base then decides whether the item can be judged at all."""
    assert (findings(PASSED[0], ended, FAILED).problems["t2"] == UNKNOWN_TEST) == unknown


@given(st.binary(max_size=300))
def test_any_bytes_are_parsed_as_a_report(data: bytes) -> None:
    """The candidate can write anything to the pipe, and to the judge's output if it is the same
    user.
    """
    text = data.decode("utf-8", "replace") + "\n[1]\n{\n"
    assert (
        passed_tests(Ended(exit_code=0, timed_out=False, output="", report=text), ["t1"])
        == frozenset()
    )
    assert read_answer(data + b"\n{}\n" + b"5ecret" + b'{"a": 1}\n' + data, "5ecret") == {"a": 1}


def test_the_judged_clone_shows_no_hidden_test_and_names_submodules(tmp_path: Path) -> None:
    """W22: code under test could compare its tests with those in the clone; its files are the
    judged ones.
    """
    made = make_repository(
        tmp_path / "repo", {"calc.py": "A = 0\n", "tests/test_a.py": "old = 1\n"}
    )
    library = f"160000,{made},library"
    for args in (
        ["update-index", "--add", "--cacheinfo", library],
        ["commit", "-q", "-m", "submodule"],
    ):
        git(["-C", str(tmp_path / "repo"), *args])
    commit = git(["-C", str(tmp_path / "repo"), "rev-parse", "HEAD"]).decode().strip()
    hidden = "--- a/tests/test_a.py\n+++ b/tests/test_a.py\n@@ -1 +1 @@\n-old = 1\n+hidden = 1\n"
    item = parse_row(
        {**ROW, "repo": str(tmp_path / "repo"), "base_commit": commit, "test_patch": hidden}
    )
    repositories = Repositories(tmp_path / "cache")
    checkout = repositories.prepare(str(tmp_path / "repo"), commit)
    agent, clone = tmp_path / "agent", tmp_path / "clone"
    with checkout.store() as store:
        store.checkout(commit, agent)
    (agent / "calc.py").write_text("A = 1\n")
    state = write_state(item, checkout, str(agent), str(clone))
    assert state.submodules == ("library",)
    assert nothing("", state).facts["submodules"] == ["library"]
    assert (clone / "tests/test_a.py").read_text() == "hidden = 1\n"
    where = ["-C", str(clone)]
    assert git([*where, "show", "HEAD:tests/test_a.py"]) == b"old = 1\n"
    assert git([*where, "show", "HEAD:calc.py"]) == b"A = 1\n"
    objects = git(
        [*where, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)"]
    ).split()
    assert not [
        one for one in objects if b"hidden" in git([*where, "cat-file", "-p", one.decode()])
    ]
