"""Write a run directory as HyperAgents writes it, from the description of its files; for the tests
of the import.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

ELSEWHERE = "/home/somebody/hyperagents/outputs/generate_old"
DOMAIN = "paper_review"
_STANDIN = Path(__file__).parent / "standin"
_MESSAGE = "a nonsense commit message"


@attrs.frozen(kw_only=True)
class Old:
    """A generation of the run.

    Attributes:
        parent: the id of its parent, or None for the first generation.
        keyword: the line that its diff appends to ``keywords.txt``; None for an empty diff.
        train: the accuracy in its report on ``train``; None for no report.
        val: the accuracy in its report on ``val``; None for no report.
        full: whether its full evaluation ran.
        metadata: entries that differ from the metadata of a successful generation.
        patch: a diff that replaces the one of ``keyword``.
    """

    parent: int | str | None = "initial"
    keyword: str | None = "sound"
    train: float | None = 0.5
    val: float | None = 0.5
    full: bool = True
    metadata: Mapping[str, Any] = attrs.field(factory=dict)
    patch: str | None = None


class OriginalRun:
    """The directory of a run, and the repository in it.

    Attributes:
        path: the run directory.
        repository: the shared work tree.
        root: the commit from which all diffs start.
        tree: the tree of this commit.
    """

    def __init__(self, path: Path, *, domains: Sequence[str] = (DOMAIN,), **arguments: Any) -> None:
        """Write the first generation, the log and an archive that lists it."""
        self.path, self.repository = path, path / "gen_initial" / "hyperagents"
        self._archive: list[int | str] = []
        self._chains: dict[int | str, list[tuple[int, str]]] = {"initial": []}
        shutil.copytree(
            _STANDIN, self.repository, ignore=shutil.ignore_patterns("__pycache__", ".gitignore")
        )
        (self.repository / ".env").write_text("OPENAI_API_KEY=sk-secret\n")
        self.git("init", "-q", "-b", "main", author="the.user@example.org")
        (self.repository / "LICENSE").write_text("theirs\n")
        for author, message in (
            ("the.user@example.org", "their own history"),
            ("you@example.com", _MESSAGE),
        ):
            (self.repository / "README.md").write_text(f"{message}\n")
            self.git("add", "--all", author=author)
            self.git("commit", "-q", "-m", message, author=author)
        self.root, self.tree = self.git("rev-parse", "HEAD"), self.git("rev-parse", "HEAD^{tree}")
        self._write_evaluations("initial", 0.4, 0.3)
        given = {
            "run_id": "old",
            "domains": list(domains),
            "max_generation": 3,
            "eval_samples": [-1],
            **arguments,
        }
        self.log({**given, "root_commit": self.root[:7]})
        if "meta_patch_files" not in arguments:
            self._list("initial")

    def log(self, arguments: Mapping[str, Any]) -> None:
        """Append the line of a start to the log of the run."""
        shown = ", ".join(f"{name}={value}" for name, value in arguments.items())
        with (self.path / "generate_loop.log").open("a") as file:
            file.write(f"2026-01-01 00:00:00,000 - INFO - Args: {shown}\n")

    def add(self, genid: int, old: Old, *, listed: bool = True) -> Path:
        """Write a generation; return its directory."""
        folder, parent = self.path / f"gen_{genid}", old.parent
        (folder / "agent_output").mkdir(parents=True)
        patch = self._patch(old) if old.patch is None else old.patch
        (folder / "agent_output" / "model_patch.diff").write_text(patch)
        (folder / "agent_output" / "meta_agent_chat_history.md").write_text(f"chat of {genid}\n")
        before = [] if parent is None else self._chains.get(parent, [])
        self._chains[genid] = [*before, (genid, old.keyword or "")]
        metadata = {
            "gen_output_dir": f"{ELSEWHERE}/gen_{genid}",
            "current_genid": genid,
            "parent_genid": parent,
            "run_baseline": None,
            "optimize_option": "only_agent",
            "agent_archive_path": None,
            "prev_patch_files": [
                f"{ELSEWHERE}/gen_{n}/agent_output/model_patch.diff" for n, _ in before
            ],
            "curr_patch_files": [f"{ELSEWHERE}/gen_{genid}/agent_output/model_patch.diff"],
            "parent_agent_success": True,
            "can_select_next_parent": True,
            "run_eval": bool(patch),
            **({"run_full_eval": True} if old.full and patch else {}),
            "valid_parent": bool(patch),
            **old.metadata,
        }
        (folder / "metadata.json").write_text(json.dumps(metadata, indent=4))
        self._write_evaluations(genid, old.train, old.val)
        if listed:
            self._list(genid)
        return folder

    def begin_with(self, keyword: str) -> None:
        """Write the diff with which the run begins, and generation 0, made from the initial
        agent.
        """
        folder = self.path / "meta_patch_files"
        folder.mkdir()
        (folder / "model_patch_0.diff").write_text(self._patch(Old(keyword=keyword)))
        before = {
            "prev_patch_files": [f"{ELSEWHERE}/meta_patch_files/model_patch_0.diff"],
            "curr_patch_files": [],
        }
        self.add(
            0,
            Old(parent=None, patch="", metadata={**before, "run_eval": True, "valid_parent": True}),
        )
        self._chains[0] = [(0, keyword)]

    def tear(self) -> None:
        """Append a truncated line to the archive."""
        with (self.path / "archive.jsonl").open("a") as file:
            file.write(json.dumps({"current_genid": 99, "archive": [*self._archive, 99]})[:-20])

    def leave_patched(self, keyword: str) -> None:
        """Leave the work tree as a killed generation does: with the patch applied and committed."""
        with (self.repository / "keywords.txt").open("a") as file:
            file.write(f"{keyword}\n")
        self.git("add", "--all")
        self.git("commit", "-q", "-m", _MESSAGE)

    def git(self, *args: str, author: str = "you@example.com") -> str:
        """Run git in the shared work tree."""
        who = {f"GIT_{role}_{part}": text for role in ("AUTHOR", "COMMITTER") for part, text in
               (("NAME", "user"), ("EMAIL", author), ("DATE", "1700000000 +0000"))}  # fmt: skip
        env = {**os.environ, **who, "GIT_CONFIG_GLOBAL": os.devnull}
        done = subprocess.run(
            ["git", "-C", str(self.repository), *args], env=env, capture_output=True, check=True
        )
        return done.stdout.decode().strip()

    def _patch(self, old: Old) -> str:
        """Return the diff that appends a keyword to the file as the parent's lineage left it."""
        if old.keyword is None:
            return ""
        chain = [] if old.parent is None else self._chains.get(old.parent, [])
        path = self.repository / "keywords.txt"
        self.git("checkout", "-q", self.root, "--", "keywords.txt")
        base = path.read_text()
        path.write_text(base + "".join(f"{word}\n" for _, word in chain if word))
        self.git("add", "keywords.txt")
        path.write_text(path.read_text() + f"{old.keyword}\n")
        text = self.git("diff", "--", "keywords.txt")
        self.git("checkout", "-q", self.root, "--", "keywords.txt")
        return text + "\n"

    def _write_evaluations(self, genid: int | str, train: float | None, val: float | None) -> None:
        for split, accuracy in (("", train), ("_val", val)):
            folder = self.path / f"gen_{genid}" / f"{DOMAIN}_eval{split}"
            if accuracy is not None:
                folder.mkdir(parents=True)
                (folder / "report.json").write_text(
                    json.dumps({"overall_accuracy": accuracy, "total": 10}, indent=4)
                )
                (folder / "predictions.csv").write_text(
                    "question_id,paper_text,outcome,prediction\n1,x,accept,reject\n"
                )

    def _list(self, genid: int | str) -> None:
        self._archive.append(genid)
        with (self.path / "archive.jsonl").open("a") as file:
            file.write(json.dumps({"current_genid": genid, "archive": self._archive}) + "\n")
