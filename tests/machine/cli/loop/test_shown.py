"""A run in a terminal: ``status``, sorted and as it goes on, and ``show``."""

from __future__ import annotations

import errno
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from hyperruntime.cli import main
from hyperruntime.cli.command import State
from hyperruntime.cli.live_page import live_page
from hyperruntime.host.process import spawn
from hyperruntime.loop.run_files.layout import LOG, Layout
from hyperruntime.report.live.followed import LoopSource
from hyperruntime.runs.lock import RunLock
from hyperruntime.secrets.known import Secrets
from tests.doubles.shown_runs import grow, loop_run, plain, rollout_run

HYPERRUN = [sys.executable, "-m", "hyperruntime.cli"]


def shown(capsys: pytest.CaptureFixture[str], *words: str | Path) -> list[str]:
    """Return the first cells of the rows that a command prints."""
    assert main([str(word) for word in words]) == 0
    lines = capsys.readouterr().out.splitlines()
    heads = [n for n, line in enumerate(lines) if line.startswith(("GENERATION", "TRAJECTORY"))]
    rows = lines[heads[0] + 1 :] if heads else []
    return [line.split("  ")[0] for line in rows if not line.startswith("models:")]


def test_rows_are_sorted_and_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = loop_run(tmp_path / "generate_1", 20)
    assert shown(capsys, "status", run_dir, "--sort", "-generation", "--tail", "2") == [
        "1",
        "initial",
    ]
    by_score = shown(capsys, "status", run_dir, "--sort", "score")
    assert by_score[:3] == ["3", "10", "17"], "these have no score"
    assert by_score[-1].endswith(" *")
    assert len(by_score) == 20
    by_failure = shown(capsys, "status", run_dir, "--sort", "Failure", "--tail", "3")
    assert by_failure == ["3", "10", "17"]
    assert len(shown(capsys, "status", run_dir, "--tail", "100")) == 20
    rolled = rollout_run(tmp_path / "rollout_1", 3, 2)
    assert shown(capsys, "status", rolled, "--sort", "-trajectory", "--tail", "1") == ["item 0/0"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sort", "-size"], "--sort: unknown column 'size'; known: "),
        (["--sort", "scor"], "--sort: unknown column 'scor'; did you mean 'score'?"),
        (["--tail", "-1"], "-1 is not in the range x>=0"),
        (["--json", "--watch"], "--json prints everything once"),
    ],
)
def test_a_wrong_choice_of_rows_is_named_in_one_sentence(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", str(loop_run(tmp_path / "generate_1", 3)), *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_status_follows_a_run_until_it_ends(tmp_path: Path) -> None:
    run_dir = loop_run(tmp_path / "generate_1", 8, made=3)
    with RunLock(run_dir):
        command = [*HYPERRUN, "status", str(run_dir), "--watch", "--tail", "20"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(5)]
        assert "running, 3 of 8 generations" in lines[0]
        assert [line.split()[0] for line in lines[1:]] == ["GENERATION", "initial", "1", "2"]
        grow(run_dir, 8, [3, 4])
        assert [process.stdout.readline().split()[0] for _ in range(2)] == ["3", "4"]
        grow(run_dir, 8, [6, 5, 7])
        assert [process.stdout.readline().split()[0] for _ in range(3)] == ["5", "6", "7"]
    assert "finished, 8 of 8 generations" in process.stdout.read()
    assert process.wait(120) == 0
    process.stdout.close()


@pytest.mark.parametrize("words", [("status", "--watch"), ("watch",)], ids=" ".join)
def test_ctrl_c_is_the_usual_end_of_what_shows_a_run_until_then(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    run_dir = loop_run(tmp_path / "generate_1", 8, made=3)
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    for number, code in ((signal.SIGINT, 0), (signal.SIGTERM, 143)):
        with RunLock(run_dir):
            pipe = subprocess.PIPE
            process = subprocess.Popen(
                [*HYPERRUN, *words, str(run_dir)], stdout=pipe, stderr=pipe, text=True, env=env
            )
            assert process.stdout is not None
            assert process.stdout.readline()
            process.send_signal(number)
            _, said = process.communicate(timeout=120)
        assert (process.returncode, said.strip()) == (code, "hyperrun: interrupted" if code else "")


def test_a_status_names_the_generation_that_is_made_its_step_and_its_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = loop_run(tmp_path / "generate_1", 8, made=3)
    layout = Layout(run_dir)
    layout.partial(3).mkdir(parents=True)
    layout.phases(3).touch()
    since = datetime.now(UTC).isoformat(timespec="milliseconds")
    log = f"== meta agent\n   since {since}\n{'output' * 99}\n== evaluate\n   since {since}\nmore\n"
    (layout.partial(3) / LOG).write_text(log)
    with RunLock(run_dir):
        assert main(["status", str(run_dir)]) == 0
        source = LoopSource(run_dir, Secrets())
        source.read_new()
        assert source.head()["now"] == [
            ["3", "evaluate", datetime.fromisoformat(since).timestamp()]
        ]
    assert re.search(
        r"^now: generation 3 \(evaluate, [\d.]+m?s\)$", capsys.readouterr().out, re.MULTILINE
    )
    assert main(["status", str(run_dir)]) == 0
    assert "now:" not in capsys.readouterr().out


def test_a_status_shows_another_run_in_the_directory(tmp_path: Path) -> None:
    run_dir = loop_run(tmp_path / "generate_1", 8, made=3)
    with RunLock(run_dir):
        process = subprocess.Popen(
            [*HYPERRUN, "status", str(run_dir), "--watch"], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(5)]
        assert [line.split()[0] for line in lines[2:]] == ["initial", "1", "2"]
        other = loop_run(tmp_path / "other", 8, made=1)
        os.replace(other / "journal.jsonl", run_dir / "journal.jsonl")
        again = [process.stdout.readline() for _ in range(3)]
        assert "running, 1 of 8 generations" in again[0]
        assert again[2].split()[0] == "initial"
    process.stdout.read()
    assert process.wait(120) == 0
    process.stdout.close()


@pytest.mark.parametrize("broken", ["process", "thread"])
def test_a_run_goes_on_without_its_page(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[subprocess.Popen[bytes]] = []

    def spawned(args: Sequence[str], **more: Any) -> subprocess.Popen[bytes]:
        if broken == "process":
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        made.append(spawn(["sleep", "1000"], **more))
        return made[-1]

    def no_thread(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("hyperruntime.cli.live_page.spawn", spawned)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        state = State()
        state.has_live_page = True
        with live_page(state) as start:
            start(tmp_path)
    assert capsys.readouterr().err.count("the live page cannot be started: ") == 1
    assert [one.returncode for one in made] == ([] if broken == "process" else [-signal.SIGKILL])


def test_a_generation_is_shown_without_keys_and_without_escapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "upstream-key-0123456789-abcdefghij"
    monkeypatch.setenv("OPENAI_API_KEY", secret)
    hostile = f"\x1b]0;owned\x07\x1b[2J\x9b31m \u202egnp.exe {secret}\nnext\tline"

    def said(number: int) -> dict[str, str]:
        return {
            **plain(number),
            "history": f"## {hostile}\n{hostile}",
            "log": hostile,
            "task": hostile,
        }

    run_dir = loop_run(tmp_path / "generate_1", 5, said)
    assert main(["show", str(run_dir), "best"]) == 0
    text = capsys.readouterr().out
    assert "generation 4: score" in text
    assert "+new 4" in text
    assert "TRANSCRIPT: META AGENT" in text
    assert "\\x1b]0;owned\\x07\\x1b[2J\\x9b31m \\u202egnp.exe" in text
    assert "next\tline" in text
    assert secret not in text
    assert not set(text) & set("\x1b\x07\x9b\u202e\r")
    assert main(["show", str(run_dir), "9"]) == 2
    assert "generation 9 of" in capsys.readouterr().err
    assert main(["show", str(run_dir), "last"]) == 2
    assert "generation='last' is not allowed" in capsys.readouterr().err
    rolled = rollout_run(tmp_path / "rollout_1", 2, 2, lambda _: hostile)
    assert main(["show", str(rolled), "item 1/0"]) == 0
    text = capsys.readouterr().out
    assert "reward 0." in text
    assert "calls bash:" in text
    assert secret not in text
    assert not set(text) & set("\x1b\x07\x9b\u202e\r")


def test_a_generation_is_paged_on_a_terminal(tmp_path: Path) -> None:
    run_dir = loop_run(tmp_path / "generate_1", 3)
    ours, theirs = pty.openpty()
    env = {**os.environ, "PAGER": "sed s,^,paged:,", "TERM": "xterm"}
    process = subprocess.Popen(
        [*HYPERRUN, "show", str(run_dir), "2"], stdin=theirs, stdout=theirs, env=env
    )
    os.close(theirs)
    found = b""
    while True:
        try:
            if not (chunk := os.read(ours, 65536)):
                break
        except OSError:  # the terminal has no writer any more
            break
        found += chunk
    os.close(ours)
    assert process.wait(120) == 0
    assert b"paged:" in found
    assert b"+new 2" in found


def test_a_page_that_a_run_started_waits_for_the_run_and_ends_with_it(tmp_path: Path) -> None:
    run_dir = tmp_path / "generate_1"
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
    command = [*HYPERRUN, "watch", str(run_dir), "--with-parent"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    )
    assert process.stdin is not None
    assert process.stdout is not None
    loop_run(run_dir, 2)
    address = process.stdout.readline().strip()
    with urllib.request.urlopen(address, timeout=60) as page:
        assert b"generate_1" in page.read()
    process.stdin.close()
    assert process.wait(60) == 0
    process.stdout.close()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address, timeout=60)
