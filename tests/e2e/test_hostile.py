"""Hostile agents: every attack fails, the host stays unchanged, and the run continues with correct
scores.

The agents are in ``tests/hostile``. Each attempt writes its result to the chat history of its
generation.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from hyperruntime import Limits, Runtime
from hyperruntime.git.command import git
from hyperruntime.git.store import RepositoryStore
from hyperruntime.host.disk import measure
from hyperruntime.loop.run.run import RunSummary
from hyperruntime.loop.run_files.record import GenerationRecord
from hyperruntime.units import GIB, MIB
from tests.doubles.upstream import chat, scripted_upstream
from tests.runs import containers_of, run_name
from tests.runs import start as start_run

pytestmark = pytest.mark.engine

AGENT = Path(__file__).parents[1] / "hostile" / "agent"
ROWS = 8
SPLITS = {"train": "t", "val": "v", "test": "x"}
HARMLESS = (
    "lo",
    "tunl0",
    "sit0",
    "ip6tnl0",
    "gre0",
    "gretap0",
    "erspan0",
    "ip_vti0",
    "ip6_vti0",
    "ip6gre0",
)
Step = Mapping[str, Any]


class Host:
    """The targets of the attacks, and the checks that no attack reached them.

    Attributes:
        folder: the directory of the test.
        canary: a directory that no agent may change.
        keys: secrets; the first is in a file of the canary, the second in the environment.
        mark: a text in the arguments of the processes that agents leave.
        facts: the facts that the agents get.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.canary = folder / "canary"
        self.canary.mkdir()
        (self.canary / "file").write_text("untouched")
        self.keys = [f"key-{secrets.token_hex(8)}" for _ in range(2)]
        (self.canary / "secret").write_text(self.keys[0])
        self.mark = f"hostile-{secrets.token_hex(6)}"
        self.facts: dict[str, Any] = {
            "canary": str(self.canary / "planted"),
            "secret_file": str(self.canary / "secret"),
            "mark": self.mark,
            "harmless": HARMLESS,
        }

    def check(self) -> None:
        """Check that the host is unchanged and that no process of the agents is left."""
        assert sorted(path.name for path in self.canary.iterdir()) == ["file", "secret"]
        assert (self.canary / "file").read_text() == "untouched"
        assert (self.canary / "secret").read_text() == self.keys[0]
        deadline = time.monotonic() + 60
        while left := [
            process.pid
            for process in psutil.process_iter()
            if self.mark in " ".join(_cmdline(process))
        ]:
            assert time.monotonic() < deadline, f"processes left: {left}"
            time.sleep(0.1)


def _cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.fixture
def host(tmp_path: Path, runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """Yield the host, with secrets to steal and files to change; check it after the test."""
    host = Host(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", host.keys[1])
    monkeypatch.setenv("HOSTILE_SECRET", host.keys[1])
    directories = set(os.listdir(tempfile.gettempdir()))
    yield host
    host.check()
    assert containers_of(runtime, run_name(tmp_path)) == []
    new = set(os.listdir(tempfile.gettempdir())) - directories
    assert not [name for name in new if host.mark in name or "planted" in name]


def label(split: str, n: int) -> str:
    """Return the label of a row; the agents' ``honest.py`` computes the same one."""
    import hashlib

    return f"lbl-{split}-" + hashlib.blake2s(str(n).encode(), digest_size=8).hexdigest()


def write_table(folder: Path, task_timeout_s: int = 300) -> Path:
    """Write a table of three splits with hashes as labels; return its definition file."""
    folder.mkdir()
    lines = ['name = "secrets"', 'inputs = ["n", "split"]', 'label = "label"', 'id = "id"']
    lines.append(f"task_timeout_s = {task_timeout_s}")
    for split, letter in SPLITS.items():
        rows = [
            {"id": f"{letter}{n}", "n": n, "split": split, "label": label(split, n)}
            for n in range(ROWS)
        ]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        lines += [f"[splits.{split}]", f'file = "{split}.jsonl"']
    (folder / "secrets.toml").write_text("\n".join(lines) + "\n")
    return folder / "secrets.toml"


def write_agent(
    path: Path, steps: Mapping[int, Step], facts: Mapping[str, Any], env_file: str
) -> Path:
    """Make a repository of the hostile agent; ``steps`` says what each generation does."""
    shutil.copytree(AGENT, path, ignore=shutil.ignore_patterns("__pycache__"))
    plan = {
        "steps": {str(number): dict(step) for number, step in steps.items()},
        "facts": dict(facts),
    }
    (path / "plan.json").write_text(json.dumps(plan))
    (path / "task.json").write_text("{}")
    (path / "notes.txt").write_text("")
    if env_file:
        (path / ".env").write_text(env_file)
    for command in (
        ["init", "-q", "-b", "main"],
        ["add", "--all"],
        ["commit", "-q", "-m", "agent"],
    ):
        git(["-C", str(path), "-c", "user.name=t", "-c", "user.email=t@localhost", *command])
    return path


Attack = Callable[..., RunSummary]


@pytest.fixture
def attack(host: Host, runtime: Runtime, base_image: str) -> Attack:
    """Return a function that runs the attacking generations, and an honest one at the end.

    Tasks whose attack may hang need a short ``task_timeout_s``; all others end by themselves, on a
    busy machine late.
    """

    def start(
        *steps: Step, env_file: str = "", task_timeout_s: int = 300, **options: Any
    ) -> RunSummary:
        table = write_table(host.folder / "table", task_timeout_s)
        agent = write_agent(host.folder / "agent", dict(enumerate(steps, 1)), host.facts, env_file)
        chosen = {"domains": f"table:{table}", "parent_selection": "best", "seed": 5, **options}
        summary = start_run(
            runtime, host.folder, agent=str(agent), image=base_image,
            max_generation=len(steps) + 1, **chosen,
        )  # fmt: skip
        check_run(summary, len(steps) + 1)
        return summary

    return start


def check_run(summary: RunSummary, last: int) -> None:
    """Check that a run is complete and leaves no work files, and that its honest generation has the
    right score.
    """
    assert [record.genid for record in summary.generations] == ["initial", *range(1, last + 1)]
    assert not summary.interrupted
    first, honest = summary.generations[0], summary.generations[-1]
    assert (first.score, honest.failure, honest.score) == (0.25, None, 0.5), honest.detail
    assert list((Path(summary.run_dir) / "work").iterdir()) == []
    for record in summary.generations:
        check_scores(summary, record)


def check_scores(summary: RunSummary, record: GenerationRecord) -> None:
    """Check that the scores of a generation follow from its recorded answers."""
    for split in record.scores.get("secrets", {}) if record.failure is None else ():
        folder = (
            Path(summary.run_dir)
            / f"gen_{record.genid}"
            / ("secrets_eval" + ("" if split == "train" else f"_{split}"))
        )
        lines = [
            json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()
        ]
        assert [line["task_id"] for line in lines] == [f"{SPLITS[split]}{n}" for n in range(ROWS)][
            : len(lines)
        ]
        right = [line["prediction"] == label(split, n) for n, line in enumerate(lines)]
        assert [line["score"] for line in lines] == [float(value) for value in right]
        assert record.scores["secrets"][split] == sum(right) / ROWS
        assert json.loads((folder / "report.json").read_text())["overall_accuracy"] == sum(
            right
        ) / len(lines)


def said_by_meta(summary: RunSummary, number: int) -> dict[str, Any]:
    """Return the results of a meta agent's attempts."""
    return read_report(
        Path(summary.run_dir) / f"gen_{number}/agent_output/meta_agent_chat_history.md"
    )


def said_by_tasks(
    summary: RunSummary, number: int, evaluation: str = "secrets_eval"
) -> dict[str, dict[str, Any]]:
    """Return the results of the attempts, by task."""
    folder = Path(summary.run_dir) / f"gen_{number}" / evaluation / "agent_evals"
    return {path.stem: read_report(path) for path in sorted(folder.glob("*.md"))}


def read_report(path: Path) -> dict[str, Any]:
    value = json.loads(path.read_text())
    assert isinstance(value, dict)
    return value


def worked(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, text) for name, text in report.items() if str(text).startswith("WORKED")]


def test_labels_and_keys_are_out_of_reach(attack: Attack, host: Host) -> None:
    summary = attack({"meta": "steal"}, {"task": "steal"})
    meta, tasks = said_by_meta(summary, 1), said_by_tasks(summary, 2)
    assert worked(meta) == []
    assert len(meta) == 11
    assert sorted(tasks) == [f"t{n}" for n in range(ROWS)]
    for report in tasks.values():
        assert worked(report) == []
        assert len(report) == 11
        assert report["seen beside the inputs"] == []
    assert ("hyperrun.toml", "hyperrun.toml is protected") in summary.generations[1].dropped
    assert summary.generations[2].score == 0.0
    text = b"".join(
        path.read_bytes() for path in Path(summary.run_dir).rglob("*") if path.is_file()
    )
    assert not [key for key in host.keys if key.encode() in text]


@contextmanager
def listeners(facts: dict[str, Any]) -> Iterator[list[str]]:
    """Listen wherever an agent might reach the host; yield the kinds of sockets that were
    reached.
    """
    reached: list[str] = []
    with ExitStack() as stack:
        addresses = {"127.0.0.1", "::1"} | {
            entry.address
            for entries in psutil.net_if_addrs().values()
            for entry in entries
            if entry.family == socket.AF_INET
        }
        first = stack.enter_context(
            socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        )
        port = first.getsockname()[1]
        second = stack.enter_context(socket.socket(socket.AF_INET6, socket.SOCK_DGRAM))
        second.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        second.bind(("::", port))
        third = stack.enter_context(socket.socket(socket.AF_UNIX))
        third.bind("\0" + facts["mark"])
        fourth = stack.enter_context(socket.socket(socket.AF_UNIX))
        fourth.bind(os.path.join(tempfile.mkdtemp(), "s"))
        for listener in (third, fourth):
            listener.listen()
        facts |= {"addresses": sorted(addresses), "port": port, "abstract": facts["mark"],
                  "socket": fourth.getsockname()}  # fmt: skip

        def take(name: str, listener: socket.socket) -> None:
            try:
                while True:
                    listener.recv(100) if listener.type == socket.SOCK_DGRAM else listener.accept()[
                        0
                    ].close()
                    reached.append(name)
            except OSError:
                return

        for name, listener in {
            "TCP": first,
            "UDP": second,
            "abstract": third,
            "path": fourth,
        }.items():
            threading.Thread(target=take, args=(name, listener), daemon=True).start()
            stack.callback(listener.shutdown, socket.SHUT_RDWR) if listener is not second else None
        yield reached
    shutil.rmtree(os.path.dirname(facts["socket"]))


def test_the_network_is_out_of_reach(attack: Attack, host: Host) -> None:
    with listeners(host.facts) as reached:
        summary = attack({"meta": "network"}, {"task": "network"})
        assert reached == []
    meta, task = said_by_meta(summary, 1), said_by_tasks(summary, 2)["t0"]
    assert meta.keys() == task.keys()
    assert len(meta) >= 2 * len(host.facts["addresses"]) + 12
    assert worked(meta) == worked(task) == []


def test_the_same_attempts_succeed_with_the_network_of_the_host(attack: Attack, host: Host) -> None:
    with listeners(host.facts) as reached:
        summary = attack({"meta": "network"}, network="host")
        assert {"TCP", "UDP", "abstract"} <= set(reached)
    assert dict(worked(said_by_meta(summary, 1))).keys() >= {
        "TCP to 127.0.0.1",
        "an abstract Unix socket",
    }


def test_the_gateways_key_is_out_of_reach_and_the_gateway_reaches_only_its_upstream(
    attack: Attack, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    with (
        scripted_upstream(lambda received: chat(f"you said {dict(received.headers)}")) as upstream,
        listeners(host.facts) as reached,
    ):
        settings = f"OPENAI_API_KEY={host.keys[0]}\nOPENAI_BASE_URL={upstream.url}\n"
        summary = attack({"meta": "models"}, {"task": "models"}, env_file=settings)
        assert reached == []
        assert {received.headers["authorization"] for received in upstream.received} == {
            f"Bearer {host.keys[0]}"
        }
        assert {received.path.partition("?")[0] for received in upstream.received} <= {
            "/v1/chat/completions", "/v1/models",
        }  # fmt: skip
    for report in (said_by_meta(summary, 1), said_by_tasks(summary, 2)["t0"]):
        assert worked(report) == []
        assert report["ask for it"] == "failed: nothing came of it"
        assert len(report) == 19
    text = b"".join(
        path.read_bytes() for path in Path(summary.run_dir).rglob("*") if path.is_file()
    )
    assert host.keys[0].encode() not in text


def test_an_agent_cannot_write_outside_its_clone(attack: Attack, host: Host) -> None:
    summary = attack({"meta": "outside"}, {"task": "outside"})
    report = said_by_meta(summary, 1)
    assert len(report) == 12
    assert worked(report) == []
    first, second = summary.generations[1:3]
    assert (first.failure, first.score) == (None, 0.25), (
        "links are dropped; the files that they replaced stay"
    )
    assert {
        "link0",
        "link1",
        "link2",
        "link4",
        "passwd",
        "pipe",
        "sparse",
        "meta_agent.py",
        "plan.json",
    } <= {path for path, _ in first.dropped}
    assert second.score == 0.0
    kept = [path for path in Path(summary.run_dir).rglob("*") if "repository.git" not in path.parts]
    assert not [path for path in kept if path.is_symlink() or not (path.is_file() or path.is_dir())]
    assert not [
        path for path in kept if path.is_file() and host.keys[0].encode() in path.read_bytes()
    ]
    store = RepositoryStore(Path(summary.run_dir) / "repository.git")
    tree = store.git("ls-tree", "-r", "--full-tree", summary.generations[-1].commit).decode()
    assert not [line for line in tree.splitlines() if not line.startswith("100")]


DIFFS = (
    "dots", "dots inside", "absolute", "quoted dots", "hook", "configuration", "short name", "submodule", "link",
    "link, then a file below it", "link to git's files, then a file", "rename from outside", "copy from outside",
    "a file that a delta makes",
)  # fmt: skip
ODD = (
    "link to the host", "link to passwd", "link to itself", "pipe", "directory", "socket", "sparse file of 10 GiB",
)  # fmt: skip


def test_no_diff_writes_outside_the_clone(attack: Attack) -> None:
    summary = attack(*({"meta": "outside", "diff": kind} for kind in DIFFS))
    found = {
        kind: record.failure for kind, record in zip(DIFFS, summary.generations[1:], strict=False)
    }
    assert set(found.values()) <= {"refused-patch", "empty-diff"}, found
    outright = {
        "dots",
        "dots inside",
        "absolute",
        "quoted dots",
        "hook",
        "configuration",
        "short name",
    }
    assert {found[kind] for kind in outright} == {"refused-patch"}
    passwd = Path("/etc/passwd").read_bytes().splitlines()[0]
    objects = RepositoryStore(Path(summary.run_dir) / "repository.git")
    listed = objects.git(
        "cat-file", "--batch-check=%(objectname) %(objecttype)", "--batch-all-objects"
    ).decode()
    blobs = [line.split()[0] for line in listed.splitlines() if line.endswith("blob")]
    assert not [blob for blob in blobs if passwd in objects.git("cat-file", "blob", blob)]


def test_links_and_special_files_in_place_of_the_diff_are_refused(
    attack: Attack, host: Host
) -> None:
    summary = attack(*({"meta": "outside", "odd": kind} for kind in ODD))
    found = {
        kind: record.failure for kind, record in zip(ODD, summary.generations[1:], strict=False)
    }
    assert found == dict.fromkeys(ODD, "refused-patch")
    patches = list(Path(summary.run_dir).glob("gen_*/agent_output/*"))
    assert not [
        path
        for path in patches
        if path.is_symlink() or (path.is_file() and path.stat().st_size > MIB)
    ]


def test_git_runs_no_program_that_an_agent_planted(attack: Attack) -> None:
    summary = attack(
        {"meta": "hooks"}, {"meta": "hooks", "as file": True}, {"meta": "hooks", "look": True}
    )
    assert said_by_meta(summary, 1)["live"] is True
    assert [record.failure for record in summary.generations] == [None] * 5
    later = said_by_meta(summary, 3)
    assert later["hooks"] == []
    assert "evil" not in later["configuration"]
    assert not later["alternates"]
    names = RepositoryStore(Path(summary.run_dir) / "repository.git").git(
        "ls-tree", "-r", "--name-only", summary.generations[1].commit
    )
    assert b".git/" not in names


def test_an_agent_cannot_change_the_evaluator(attack: Attack) -> None:
    summary = attack(
        {"meta": "evaluator", "task": "evaluator"}, {"task": "evaluator"}, {"task": "swap"}
    )
    first, second, third = summary.generations[1:4]
    assert {path for path, _ in first.dropped} == {"domains/secrets/report.py", "hyperrun.toml"}
    # forged results score nothing; an agent may end its own evaluation
    for record in (first, second, third):
        assert record.failure == "evaluation" or record.score == 0.0
    report = said_by_tasks(summary, 2)["t0"]
    assert len(report) == 6
    assert worked(report) == []
    for path in Path(summary.run_dir).glob("gen_*/*/predictions.jsonl"):
        known = {json.loads(line)["task_id"] for line in path.read_text().splitlines()}
        assert known <= {f"{letter}{n}" for letter in SPLITS.values() for n in range(ROWS)}


@pytest.mark.slow
def test_an_evaluation_whose_agent_stops_the_harness_ends_at_its_deadline(attack: Attack) -> None:
    stopped = attack({"task": "trace"}, timeout_eval_s=10.0).generations[1]
    assert (stopped.failure, stopped.attempts) == ("timeout", 1)


@pytest.mark.slow
def test_an_agent_that_fills_the_hosts_pipes_fails_only_its_own_evaluation(attack: Attack) -> None:
    jammed = attack({"task": "jam"}, task_timeout_s=30).generations[1]
    assert jammed.failure in ("evaluation", "timeout") or jammed.score == 0.0


@pytest.mark.slow
def test_background_processes_end_with_their_generation(attack: Attack, host: Host) -> None:
    summary = attack(
        {"meta": "daemons"},
        {"task": "daemons"},
        {"meta": "daemons", "bomb": True},
        {"meta": "daemons", "diff": True},
        task_timeout_s=30,
    )
    left, evaluated, bomb, spoilt = summary.generations[1:5]
    assert (left.failure, left.score) == (None, 0.25), (
        "the diff at the end of the meta agent counts"
    )
    store = RepositoryStore(Path(summary.run_dir) / "repository.git")
    assert b"LEVEL = 1" in (store.read_file(left.commit, "honest.py") or b"")
    assert evaluated.score == 0.0 or evaluated.failure in ("evaluation", "timeout")
    assert bomb.failure in (None, "agent", "empty-diff")
    assert spoilt.failure in (None, "refused-patch", "empty-diff"), (
        "an agent's processes may still change its own diff"
    )
    assert (spoilt.score or 0.25) == 0.25


WAYS = ("out", "repo", "image", "tmp", "deleted", "shut", "deep")


@pytest.mark.slow
def test_an_agent_cannot_fill_the_disk(attack: Attack) -> None:
    steps: list[Step] = [{"meta": "disk", "way": way} for way in WAYS]
    summary = attack(
        *steps, {"task": "disk"}, task_timeout_s=30, limits=Limits(disk_bytes=96 * MIB)
    )
    found = dict(zip(WAYS, summary.generations[1:], strict=False))
    assert {way: record.failure for way, record in found.items()} == dict.fromkeys(WAYS, "agent")
    assert all("limits.disk_bytes=100663296" in record.detail for record in found.values())
    assert {record.attempts for record in summary.generations} == {1}
    assert summary.generations[-2].failure == "evaluation"
    assert measure([summary.run_dir], None, GIB).used_bytes < 16 * MIB, (
        "the written files are removed"
    )


@pytest.mark.slow
def test_many_files_deep_directories_and_long_output_do_no_harm(attack: Attack) -> None:
    steps: list[Step] = [
        {"meta": "disk", "way": way} for way in ("many", "only deep", "special files", "output")
    ]
    summary = attack(*steps, limits=Limits(disk_bytes=96 * MIB))
    many, deep, special, loud = summary.generations[1:5]
    assert many.failure == "agent"
    assert "limits.disk_bytes" in many.detail
    assert (deep.failure, special.failure, loud.failure) == (None, None, None)
    assert len((Path(summary.run_dir) / "archive.jsonl").read_bytes()) < 100_000
    log = Path(summary.run_dir) / "gen_4/generate.log"
    assert log.stat().st_size < 65 * MIB
    assert sys.getrecursionlimit() < 3000, (
        "the recursion limit must be less than the depth of the directory"
    )
