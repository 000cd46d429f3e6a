"""Run directories that another person made: a command reads no file outside of one, writes none,
and always ends.

Each attack is planted at every name that a run directory may have, in copies of a real run. One
process runs all commands on all copies. Its memory is limited, and a hang fails the test.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from tests.doubles.shown_runs import rollout_run
from tests.machine.loop.conftest import WholeRun
from tests.original_run import Old, OriginalRun

ROOT = Path(__file__).parents[4]
SECRET = "the private text of the user"
MOST_BYTES = 1 << 30
DEADLINE_S = 300.0
READS = ("status", "show 1", "report", "watch", "export best")
EVALUATION = "gen_1/circle_packing_eval"
FILES = (
    "run.json", "journal.jsonl", "archive.jsonl", "exchanges.jsonl", "owner.json", "generate_loop.log", "report.html",
    ".report.html.partial", ".run.json.partial", "run.json.partial", ".archive.jsonl.partial",
    "gen_1/metadata.json", "gen_1/generate.log",
    "gen_1/agent_output/model_patch.diff", "gen_1/agent_output/meta_agent_chat_history.md",
    f"{EVALUATION}/report.json", f"{EVALUATION}/predictions.jsonl", f"{EVALUATION}/agent_evals/chat.md",
    "work/gen_4.phases.jsonl", "evaluations/exchanges.jsonl", "evaluations/.gen_1_train_1_0.lock",
)  # fmt: skip
FOLDERS = (
    "gen_1", "gen_1/agent_output", EVALUATION, f"{EVALUATION}/agent_evals", "view", "view/gen_1", "view/gen_4", "work",
    "work/gen_4", "work/gen_4/circle_packing_eval", "evaluations",
)  # fmt: skip
ROLLOUT_FILES = (
    "run.json",
    "trajectories.jsonl",
    "groups.jsonl",
    "owner.json",
    "report.html",
    ".report.html.partial",
)
ORIGINAL_FILES = (
    "archive.jsonl", "generate_loop.log", "gen_1/metadata.json", "gen_1/agent_output/model_patch.diff",
    "gen_1/paper_review_eval/report.json", "gen_initial/hyperagents/.git/HEAD",
)  # fmt: skip
ORIGINAL_FOLDERS = (
    "gen_1",
    "gen_1/agent_output",
    "left_over",
    "view",
    "gen_initial/hyperagents/.git/objects",
)
# a command ends at these, so each gets its own copy
NEEDED = ("run.json", "journal.jsonl", "trajectories.jsonl")
WRITTEN = (
    "run.json", "journal.jsonl", "archive.jsonl", "owner.json", "generate_loop.log", "work/gen_4.phases.jsonl",
    "evaluations/.gen_1_train_1_0.lock",
)  # fmt: skip


@attrs.frozen
class Victim:
    """Files of the user outside of the run.

    Attributes:
        file: a private file; each line could be a line of a file of a run.
        folder: a private directory, with a file for each name that a run may have.
    """

    file: Path
    folder: Path

    @classmethod
    def make(cls, place: Path) -> Victim:
        folder = place / "private"
        for name in (
            *FILES,
            *ROLLOUT_FILES,
            "chat.md",
            "generate.log",
            "model_patch.diff",
            "report.json",
        ):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{SECRET}\n")
        return cls(folder / "chat.md", folder)

    def content(self) -> dict[str, str]:
        """Return all files below the directory."""
        found = (path for path in self.folder.rglob("*") if path.is_file())
        return {str(path.relative_to(self.folder)): path.read_text() for path in found}


Attack = Callable[[Path, Victim], object]


def sparse(path: Path, victim: Victim) -> None:
    with path.open("wb") as file:
        file.truncate(10 << 30)


ATTACKS: dict[str, Attack] = {
    "link to a file": lambda path, victim: path.symlink_to(victim.file),
    "pipe": lambda path, victim: os.mkfifo(path),
    "link to /dev/zero": lambda path, victim: path.symlink_to("/dev/zero"),
    "10 GiB": sparse,
    "directory": lambda path, victim: path.mkdir(),
}
LINK_TO_FOLDER: dict[str, Attack] = {
    "link to a directory": lambda path, victim: path.symlink_to(victim.folder)
}


@attrs.frozen
class Copies:
    """Makes copies of a run with attacks.

    Attributes:
        run: the run, which is not changed.
        place: directory of the copies.
        victim: what the attacks lead to.
    """

    run: Path
    place: Path
    victim: Victim

    def of(self, attack: Attack, *names: str) -> Path:
        """Return a copy with an attack at each name."""
        home = self.place / f"copy {len(list(self.place.iterdir()))}"
        copy = Path(shutil.copytree(self.run, home / self.run.name, symlinks=True))
        for name in names:
            path = copy / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            path.unlink(missing_ok=True)
            attack(path, self.victim)
        return copy

    def at_all(self, names: Sequence[str]) -> list[Path]:
        """Return copies with each attack on files: one at all names together, and one at each
        needed name.
        """
        beside = [name for name in names if name not in NEEDED]
        alone = [name for name in names if name in NEEDED]
        return [
            self.of(attack, *group)
            for attack in ATTACKS.values()
            for group in (beside, *([name] for name in alone))
        ]


def outcomes(place: Path, cases: Sequence[tuple[Path, str]]) -> list[dict[str, Any]]:
    """Return the outcome of each command on its directory; fail if a command hangs or needs much
    memory.
    """
    file = place / "cases.json"
    file.write_text(json.dumps([[str(run), command] for run, command in cases]))
    args = [sys.executable, "-m", "tests.doubles.run_reader", str(file)]
    with (place / "said").open("w+b") as said:
        try:
            code = subprocess.run(
                args, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=said, timeout=DEADLINE_S
            ).returncode
        except subprocess.TimeoutExpired:
            code = -1
        said.seek(0)
        lines = [json.loads(line) for line in said]
    stopped_at = f"it ended with {code} at case {cases[min(len(lines), len(cases) - 1)]}"
    assert code == 0, stopped_at
    assert lines[-1]["peak_bytes"] < MOST_BYTES
    return lines[:-1]


def check(found: dict[str, Any]) -> None:
    """Check that an outcome shows nothing private, and that a failure is one sentence."""
    assert SECRET not in found["said"], found
    assert "Traceback" not in found["said"], found
    if found["code"] != 0:
        sentences = [line for line in found["said"].splitlines() if "error: " in line]
        assert len(sentences) == 1, found


@pytest.fixture
def copies(tmp_path: Path) -> Callable[[Path], Copies]:
    """Return a function that makes the copies of a run."""
    (place := tmp_path / "copies").mkdir()
    return lambda run: Copies(run, place, Victim.make(tmp_path))


CopiesOf = Callable[[Path], Copies]


def check_all(copies: Copies, cases: Sequence[tuple[Path, str]]) -> list[dict[str, Any]]:
    """Return the outcomes of all cases, after checks: nothing private is shown, and nothing outside
    is changed.
    """
    before = copies.victim.content()
    found = outcomes(copies.place, cases)
    for one in found:
        check(one)
    assert copies.victim.content() == before
    return found


def test_commands_read_nothing_outside_of_a_run_and_end(
    whole_run: WholeRun, copies: CopiesOf
) -> None:
    made = copies(whole_run.root)
    link, pipe = LINK_TO_FOLDER["link to a directory"], ATTACKS["pipe"]
    runs = [
        *made.at_all(FILES),
        *(made.of(attack, name) for name in FOLDERS for attack in (link, pipe)),
    ]
    check_all(made, [(run, command) for run in runs for command in READS])


def test_resume_writes_nothing_outside_of_a_run_and_names_the_link(
    whole_run: WholeRun, copies: CopiesOf
) -> None:
    made = copies(whole_run.root)
    link, other, pipe = (
        ATTACKS["link to a file"],
        LINK_TO_FOLDER["link to a directory"],
        ATTACKS["pipe"],
    )
    runs = [*(made.of(link, name) for name in FILES), *(made.of(other, name) for name in FOLDERS)]
    runs += [made.of(pipe, name) for name in WRITTEN]
    for found, name in zip(
        check_all(made, [(run, "resume") for run in runs]), [*FILES, *FOLDERS], strict=False
    ):
        if not name.startswith("gen_1/"):  # nothing is written there
            refused = (
                f"{str(Path(found['directory'], name))!r} is a symbolic link, which a run "
                "directory must not have"
            )
            assert refused in found["said"]


def test_evaluate_writes_nothing_outside_of_a_run(whole_run: WholeRun, copies: CopiesOf) -> None:
    made = copies(whole_run.root)
    inside = [name for name in (*FILES, *FOLDERS) if name.startswith("evaluations")]
    runs = [
        made.of(attack, name)
        for name in inside
        for attack in (*ATTACKS.values(), *LINK_TO_FOLDER.values())
    ]
    check_all(made, [(run, "evaluate") for run in runs])


def test_commands_read_nothing_outside_of_a_rollout_run_and_end(
    tmp_path: Path, copies: CopiesOf
) -> None:
    made = copies(rollout_run(tmp_path / "rollout_1", 2, 2))
    commands = ("status", "show item", "report", "watch", "rollout-export")
    check_all(made, [(run, command) for run in made.at_all(ROLLOUT_FILES) for command in commands])


def test_the_import_of_a_run_of_hyperagents_takes_nothing_from_outside(
    tmp_path: Path, copies: CopiesOf
) -> None:
    run = OriginalRun(tmp_path / "generate_old", parent_selection="best", skip_staged_eval=True)
    run.add(1, Old(keyword="novel"))
    made = copies(run.path)
    link, pipe = ATTACKS["link to a file"], ATTACKS["pipe"]
    runs = [made.of(attack, name) for name in ORIGINAL_FILES for attack in (link, pipe)]
    runs += [made.of(LINK_TO_FOLDER["link to a directory"], name) for name in ORIGINAL_FOLDERS]
    for found in check_all(made, [(one, "import") for one in runs]):
        for path in Path(found["directory"]).rglob("*"):
            assert (
                path.is_symlink() or not path.is_file() or SECRET.encode() not in path.read_bytes()
            )
