"""The page about a run: one file, safe to open, of a bounded size, without keys."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from hyperruntime.cli import main
from hyperruntime.errors import SpecError
from hyperruntime.loop.run.plan import contract_adapter, load_domains
from hyperruntime.loop.run_files.archive import load_run
from hyperruntime.report.page.generations import LoopRun, markdown_parts, shortened
from hyperruntime.report.page.page import best_and_newest, write_page
from hyperruntime.report.page.trajectories import RolloutRun
from hyperruntime.report.pictures import write_pictures
from hyperruntime.rollout.models.tokenizer import DirectoryTokenizer
from hyperruntime.rollout.run_files.run_dir import read_run, write_run
from hyperruntime.secrets.known import Secrets
from tests.doubles.shown_runs import loop_run, plain, rollout_run
from tests.doubles.tokenizers import write_byte_tokenizer
from tests.params import first_quick

SECRET = "upstream-key-0123456789-abcdefghij"
LOOKS = (
    "sk-abcdefghijklmnopqrstuvwxyz012345", "hf_abcdefghijklmnopqrstuvwxyzABCDEF", "ghp_abcdefghijklmnopqrstuvwxyz0123",
    "AKIAABCDEFGHIJKLMNOP", "Bearer abcdefghijklmnopqrstuvwxyz", "-----BEGIN RSA PRIVATE KEY-----\nMIIabc\n",
)  # fmt: skip


class Read(HTMLParser):
    """What is in the file: its scripts, its blocks, its policy and its visible text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.tags: list[str] = []
        self.styles = self.policy = self.words = ""
        self._in = ""
        self.feed(path.read_text())
        self.data = json.loads(
            next(text for facts, text in self.scripts if facts.get("id") == "data")
        )
        self.blocks = [text for facts, text in self.scripts if facts.get("class") == "block"]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._in = tag
        if tag == "script":
            self.scripts.append((dict(attrs), ""))
        if dict(attrs).get("http-equiv") == "Content-Security-Policy":
            self.policy = dict(attrs)["content"] or ""

    def handle_endtag(self, tag: str) -> None:
        self._in = ""

    def handle_data(self, data: str) -> None:
        if self._in == "script":
            facts, text = self.scripts[-1]
            self.scripts[-1] = (facts, text + data)
        elif self._in == "style":
            self.styles += data
        else:
            self.words += data

    def details(self, run: int, entry: int) -> Any:
        place = self.data[run]["details"][entry]
        if place is None:
            return None
        before = sum(len({one[0] for one in other["details"] if one}) for other in self.data[:run])
        block, offset, length = place
        return json.loads(
            zlib.decompress(base64.b64decode(self.blocks[before + block][offset : offset + length]))
        )


def page_of(run_dir: Path, **options: Any) -> Read:
    path = run_dir.with_suffix(".html")
    write_page([LoopRun(load_run(run_dir), Secrets({}))], path, **options)
    return Read(path)


def test_a_page_has_the_records_and_the_details_of_each_generation(tmp_path: Path) -> None:
    read = page_of(loop_run(tmp_path / "run", 20))
    (run,) = read.data
    assert run["ids"][:3] == ["initial", "1", "2"]
    assert run["failure"][3] == "agent"
    assert run["score"][3] is None
    (model,) = run["models"]
    assert model == {"model": "small", "requests": 1, "errors": 0, "money": 0.5, "seconds": 1} | {
        "input_tokens": 10,
        "output_tokens": 2,
    }
    found = read.details(0, 5)
    assert "+new 5" in found["diff"]
    assert [title for title, _ in found["transcripts"][0]["parts"]] == [
        "System (m)", "Model", "Call of bash", "Tool bash", "Model",
    ]  # fmt: skip
    assert found["left_out"] == []
    (task,) = found["tasks"]
    assert task["score"] == run["score"][5]
    assert base64.b64decode(task["picture"]).startswith(b"<svg ")


def test_only_the_pages_own_script_may_run_and_nothing_is_loaded(tmp_path: Path) -> None:
    read = page_of(loop_run(tmp_path / "run", 3))
    (own,) = [text for facts, text in read.scripts if not facts]
    rules = dict(rule.strip().split(" ", 1) for rule in read.policy.split(";"))

    def allowed(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == allowed(own)
    assert rules["style-src"] == allowed(read.styles)
    assert (rules["img-src"], rules["base-uri"], rules["form-action"]) == (
        "data:",
        "'none'",
        "'none'",
    )
    assert "Permission is hereby granted" in (tmp_path / "run.html").read_text()
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", own
    )


def test_texts_of_agents_make_no_elements(tmp_path: Path) -> None:
    hostile = (
        "</script><script>alert(1)</script><img src=x onerror=alert(2)><!--<script>\u2028\"'&lt;"
    )
    quiet = page_of(loop_run(tmp_path / "quiet", 8))
    said = {**plain(0), **dict.fromkeys(("diff", "history", "log", "detail", "task"), hostile)}
    read = page_of(loop_run(tmp_path / "run", 8, lambda _: said))
    assert read.tags == quiet.tags
    assert read.details(0, 1)["diff"] == hostile


def test_keys_are_removed_from_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setenv("MY_UPSTREAM_TOKEN", other := "orange-horse-42")
    said = "\n".join((other, SECRET, base64.b64encode(SECRET.encode()).decode(), *LOOKS))
    shown = dict.fromkeys(("diff", "history", "log", "detail", "task"), said)
    texts = {**plain(0), **shown, "answer": json.dumps([said])}
    run_dir = loop_run(tmp_path / "generate_1", 5, lambda _: texts)
    rolled = rollout_run(tmp_path / "rollout_1", 2, 2, lambda _: said)
    for folder, many in ((run_dir, 5), (rolled, 4)):
        assert main(["report", str(folder)]) == 0
        read = Read(folder / "report.html")
        seen = (
            json.dumps([read.data, [read.details(0, entry) for entry in range(many)]]) + read.words
        )
        for key in (SECRET, *LOOKS):
            assert key.removeprefix("Bearer ").split("\n")[-2:][0] not in seen, key
        assert base64.b64encode(SECRET.encode()).decode() not in seen
        assert other not in seen
        assert "[redacted]" in seen


KEY = LOOKS[0]


def rolled_tokens(
    run_dir: Path, text: str, *, tokenizer: Path | None, said: str = "hello"
) -> tuple[dict[str, Any], str]:
    """Show a trajectory whose tokens say a text; return its segment, and what its visible ids
    say.
    """
    letters = DirectoryTokenizer(str(write_byte_tokenizer(run_dir.parent)))
    rollout_run(run_dir, 1, 1, lambda _: said)
    journal, ids = run_dir / "trajectories.jsonl", letters.encode(text)
    line = json.loads(journal.read_text())
    line["segments"] = [{"ids": ids, "mask": [1] * len(ids), "logprobs": [-0.1] * len(ids)}]
    journal.write_text(json.dumps(line) + "\n")
    options = json.loads((run_dir / "run.json").read_text())
    options["options"]["model"]["tokenizer"] = tokenizer and str(tokenizer)
    write_run(run_dir, options)
    write_page([RolloutRun(run_dir, Secrets({"MY_TOKEN": SECRET}))], run_dir.with_suffix(".html"))
    (segment,) = Read(run_dir.with_suffix(".html")).details(0, 0)["segments"]
    return segment, letters.decode([one for one in segment["ids"] if one is not None])


@pytest.mark.parametrize("key", [KEY, SECRET, SECRET.encode().hex()])
def test_a_key_of_many_tokens_is_hidden_in_texts_and_ids(key: str, tmp_path: Path) -> None:
    text = f"héllo {key} and again {key}, bye €"
    segment, seen = rolled_tokens(tmp_path / "rollout_1", text, tokenizer=tmp_path)
    assert "".join(segment["texts"]) == "héllo [redacted] and again [redacted], bye €"
    assert seen == "héllo  and again , bye €"
    assert len(segment["ids"]) == len(segment["mask"]) == len(text.encode())


def test_a_key_that_goes_on_after_the_last_shown_token_is_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hyperruntime.report.page.trajectories._MOST_TOKENS", 10)
    segment, seen = rolled_tokens(tmp_path / "rollout_1", f"hello {SECRET} bye", tokenizer=tmp_path)
    assert (segment["texts"], seen) == ([*"hello ", "[redacted]", "", "", ""], "hello ")
    assert segment["left_out"] > 0


def test_without_a_tokenizer_the_ids_of_a_conversation_with_a_key_are_hidden(
    tmp_path: Path,
) -> None:
    segment, seen = rolled_tokens(
        tmp_path / "rollout_1", f"a {KEY}", tokenizer=None, said=f"a {KEY}"
    )
    assert (set(segment["ids"]), segment["texts"][0], seen) == ({None}, "[redacted]", "")
    segment, seen = rolled_tokens(tmp_path / "rollout_2", "no key", tokenizer=None)
    assert (segment["texts"], seen) == ([], "no key")


def test_a_page_loads_no_tokenizer_that_a_received_run_names(tmp_path: Path) -> None:
    run_dir, found = rollout_run(tmp_path / "rollout_1", 1, 1), read_run(tmp_path / "rollout_1")
    found["options"]["model"]["tokenizer"] = str(write_byte_tokenizer(tmp_path))
    (run_dir / "run.json").write_text(json.dumps(found))
    run = RolloutRun(run_dir, Secrets({}))
    assert [note.partition(",")[0] for note in run.notes] == [
        "tokens are shown as numbers: the run was made elsewhere"
    ]
    details = run.details(0)
    assert details is not None
    assert details["segments"][0]["texts"] == []
    write_run(run_dir, found)
    assert RolloutRun(run_dir, Secrets({})).notes == []


def test_no_file_that_a_domain_of_a_received_run_names_is_read_to_show_it(tmp_path: Path) -> None:
    run_dir = loop_run(tmp_path / "run", 2)
    found = json.loads((run_dir / "run.json").read_text())
    found["options"]["domains"] = [f"table:{tmp_path}/pipe"]
    (run_dir / "run.json").write_text(json.dumps(found))
    os.mkfifo(tmp_path / "pipe")
    view = load_run(run_dir)
    run = LoopRun(view, Secrets({}))
    run.details(1)
    (said,) = run.notes
    assert "the run was made elsewhere" in said
    assert f"table:{tmp_path}/pipe" in said
    written = write_pictures(view, view.generations[-1], tmp_path / "pictures")
    assert [one.svg.name for one in written] == ["lineage.svg"]


def test_a_generation_says_what_its_page_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = loop_run(tmp_path / "generate_1", 3)
    folder = run_dir / "gen_1" / "circle_packing_eval" / "agent_evals"
    for number in range(44):
        (folder / f"more{number}.md").write_text("## Model\n\nhello\n")
    assert page_of(run_dir).details(0, 1)["left_out"] == [
        "5 transcripts of tasks are left out: only the first 40 are here"
    ]
    monkeypatch.setattr("hyperruntime.report.page.generations._MOST_PICTURE", 10)
    assert page_of(run_dir).details(0, 2)["left_out"] == [
        "1 pictures of answers are left out: each has more than 10 B"
    ]
    (domain,) = load_domains(["circle_packing"], contract_adapter(None))
    monkeypatch.setattr(type(domain), "picture", lambda *_: 1 / 0)
    said = (
        "1 pictures of answers could not be drawn by domain circle_packing: ZeroDivisionError: "
        "division by zero"
    )
    assert page_of(run_dir).details(0, 2)["left_out"] == [said]
    assert main(["show", str(run_dir), "2"]) == 0
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("max_bytes", first_quick(1_000_000, 1_500_000))
def test_a_page_is_not_larger_than_asked_and_keeps_the_best_and_the_newest(
    max_bytes: int, tmp_path: Path
) -> None:
    def large(number: int) -> dict[str, str]:
        noise = hashlib.sha256(str(number).encode()).hexdigest()
        text = "".join(hashlib.sha256(f"{noise}{part}".encode()).hexdigest() for part in range(800))
        return {**plain(number), "diff": text}

    run_dir = loop_run(tmp_path / "run", 80, large)
    read = page_of(run_dir, max_bytes=max_bytes)
    assert (tmp_path / "run.html").stat().st_size <= max_bytes
    (run,) = read.data
    there = [entry for entry, place in enumerate(run["details"]) if place]
    best = max((score, -entry) for entry, score in enumerate(run["score"]) if score is not None)
    assert {-best[1], 79} <= set(there)
    assert 0 < len(there) < 80
    (note,) = run["notes"]
    assert note.startswith(f"Details of {80 - len(there)} of 80 were left out")
    named = set[int]()
    for first, last in re.findall(
        r"[ ,](\d+)(?: to (\d+))?(?=[,.])", note.partition("none:")[2].replace("initial", "0")
    ):
        named |= set(range(int(first), int(last or first) + 1))
    assert named == set(range(80)) - set(there)


def test_the_best_and_the_newest_come_first() -> None:
    assert list(best_and_newest([0.1, None, 0.9, 0.5, None])) == [2, 4, 3, 0, 1]
    assert list(best_and_newest([])) == []


@pytest.mark.slow
def test_ten_thousand_generations_take_at_most_five_megabytes_without_details(
    tmp_path: Path,
) -> None:
    page_of(loop_run(tmp_path / "run", 10_000, with_files=False))
    assert (tmp_path / "run.html").stat().st_size < 5_000_000
    said = {**plain(0), "detail": "why " * 125}
    page_of(loop_run(tmp_path / "long", 10_000, lambda _: said, with_files=False))
    assert (tmp_path / "long.html").stat().st_size < 5_000_000


def test_reasons_of_failures_are_cut_when_records_and_scores_are_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hyperruntime.report.page.page._MOST_RECORD_BYTES", 1_000_000)
    long = "€" * 499 + "x"
    run_dir = loop_run(
        tmp_path / "run", 400, lambda number: {**plain(number), "detail": long}, with_files=False
    )
    read = page_of(run_dir)
    assert (tmp_path / "run.html").stat().st_size < 1_000_000
    assert set(read.data[0]["detail"]) == {"€" * 159 + "…"}
    assert read.data[0]["notes"][0].startswith("Why entries failed is cut to 160 characters")
    small = page_of(
        loop_run(tmp_path / "small", 3, lambda number: {**plain(number), "detail": long})
    )
    assert set(small.data[0]["detail"]) == {long}


def test_a_size_that_records_and_scores_exceed_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = {**plain(0), "detail": "€" * 500}
    run_dir = loop_run(tmp_path / "generate_1", 400, lambda _: said, with_files=False)
    words = ["report", str(run_dir), "-o", str(tmp_path / "page.html"), "--max-size"]
    assert main([*words, "1m"]) == 2
    error = capsys.readouterr().err
    need = int(
        re.findall(r"records and scores alone need ([0-9,]+) bytes; give at least that", error)[
            0
        ].replace(",", "")
    )
    assert not (tmp_path / "page.html").exists()
    assert main([*words, str(need)]) == 0
    assert (tmp_path / "page.html").stat().st_size <= need


def test_of_two_runs_one_gets_the_room_that_the_other_does_not_need(tmp_path: Path) -> None:
    def large(number: int) -> dict[str, str]:
        text = "".join(
            hashlib.sha256(f"{number} {part}".encode()).hexdigest() for part in range(2400)
        )
        return {**plain(number), "diff": text}

    paths = [loop_run(tmp_path / "large", 16, large), loop_run(tmp_path / "small", 3)]
    for order in (paths, paths[::-1]):
        runs = [LoopRun(load_run(one), Secrets({})) for one in order]
        page = write_page(runs, tmp_path / "page.html", max_bytes=1_000_000)
        found = {
            one["name"]: sum(place is not None for place in one["details"])
            for one in Read(page.path).data
        }
        assert found["small"] == 3
        assert 850_000 < page.size <= 1_000_000, "half of it would be empty"
        assert page.left_out == 16 - found["large"] > 0


def test_a_damaged_run_makes_a_page_that_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = loop_run(tmp_path / "generate_1", 4)
    with (run_dir / "journal.jsonl").open("a") as file:
        file.write('{"torn')
    for path in (
        run_dir / "gen_2" / "agent_output" / "model_patch.diff",
        run_dir / "gen_1" / "generate.log",
    ):
        path.write_bytes(b"\xff\x00\xfe broken")
    (run_dir / "gen_2" / "circle_packing_eval" / "report.json").write_text("[]")
    assert main(["report", str(run_dir), "-o", str(tmp_path / "page.html")]) == 0
    assert "line 5 of journal.jsonl is damaged" in capsys.readouterr().err
    read = Read(tmp_path / "page.html")
    assert "line 5 of journal.jsonl is damaged" in read.data[0]["notes"][0]
    assert "broken" in read.details(0, 2)["diff"]


def test_a_rollout_has_its_groups_conversations_and_tokens(tmp_path: Path) -> None:
    run_dir = rollout_run(tmp_path / "rollout_1", 3, 2)
    with (run_dir / "trajectories.jsonl").open("a") as file:
        file.write("torn\n")
    write_page([RolloutRun(run_dir, Secrets({}))], tmp_path / "page.html")
    read = Read(tmp_path / "page.html")
    (run,) = read.data
    assert (run["items"], run["item"]) == (["item 0", "item 1", "item 2"], [0, 0, 1, 1, 2, 2])
    assert run["failure"] == ["", "NodeLostError"] * 3
    assert run["notes"] == ["1 lines of trajectories.jsonl are damaged and were skipped"]
    found = read.details(0, 0)
    assert [message["role"] for message in found["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert found["messages"][2]["calls"] == [
        {"name": "bash", "arguments": '{"command": "answer 0"}'}
    ]
    assert found["segments"][0]["mask"] == [0, 0, 1, 1]


def test_two_runs_of_one_kind_are_shown_side_by_side(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = loop_run(tmp_path / "generate_1", 5), loop_run(tmp_path / "generate_2", 9)
    assert main(["report", str(one), str(other), "-o", str(tmp_path / "both.html"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["page"], told["without_details"]) == (str(tmp_path / "both.html"), 0)
    read = Read(tmp_path / "both.html")
    assert [run["name"] for run in read.data] == ["generate_1", "generate_2"]
    assert "+new 8" in read.details(1, 8)["diff"]
    rolled = rollout_run(tmp_path / "rollout_1", 1, 1)
    assert main(["report", str(one), str(rolled)]) == 2
    assert "runs of the loop, or rollout runs, not both" in capsys.readouterr().err


def test_wrong_options_are_refused_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = loop_run(tmp_path / "generate_1", 2)
    for words, said in (
        (["--max-size", "1k"], "at least 976.6 KiB"),
        (["--pictures", "p", "-o", "x.html"], "cannot be combined with --output"),
        (["-o", str(run_dir / "run.json" / "x.html")], "part of the path is a file"),
    ):
        assert main(["report", str(run_dir), *words]) != 0
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1


def test_a_run_without_a_generation_has_a_page(tmp_path: Path) -> None:
    read = page_of(loop_run(tmp_path / "run", 0))
    assert read.data[0]["ids"] == []
    with pytest.raises(SpecError, match="max_size"):
        page_of(tmp_path / "run", max_bytes=5)


def test_headings_in_code_blocks_begin_no_part() -> None:
    text = "before\n# One\na\n````\n## no\n```\n## no\n````\n## Two\nb"
    assert markdown_parts(text) == [
        ["", "before"],
        ["One", "a\n````\n## no\n```\n## no\n````"],
        ["Two", "b"],
    ]


def test_a_long_text_keeps_its_ends() -> None:
    assert shortened("a" * 10 + "b" * 10, 10) == "aaaaa\n[10 characters left out]\nbbbbb"


def test_rollouts_have_the_use_of_each_model_and_its_cost_by_the_prices_of_the_run(
    tmp_path: Path,
) -> None:
    run_dir = rollout_run(tmp_path / "run", 5, 4)
    journal = run_dir / "trajectories.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    lines[0] |= {"model": "other"}
    lines[1] |= {"usage": {"prompt_tokens": 10**400, "completion_tokens": "many"}, "turns": None}
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    other, small = RolloutRun(run_dir, Secrets({})).facts()["models"]
    assert other == {
        "model": "other",
        "requests": 2,
        "seconds": 1,
        "input_tokens": 100,
        "output_tokens": 10,
    }
    counts = {"requests": 36, "seconds": 18, "input_tokens": 1800, "output_tokens": 180}
    assert small == {"model": "small", **counts, "money": 1800 * 4e-6 + 180 * 10e-6}


def test_a_trajectory_that_is_made_again_is_counted_once(tmp_path: Path) -> None:
    run_dir = rollout_run(tmp_path / "run", 3, 2)
    journal = run_dir / "trajectories.jsonl"
    first = json.loads(journal.read_text().splitlines()[0])
    with journal.open("a") as file:
        file.write(json.dumps({**first, "model": "other"}) + "\n")
    followed = RolloutRun(run_dir, Secrets({}))
    assert [one["model"] for one in followed.head()["models"]] == ["other", "small"]
    with journal.open("a") as file:
        file.write(json.dumps({**first, "turns": 7}) + "\n")
    assert [name for _, name in followed.read_new()] == [first["id"]]
    (small,) = followed.head()["models"]
    assert (small["requests"], small["input_tokens"], small["seconds"]) == (7 + 5 * 2, 600, 6)
