"""The tools of the agent template ``llm``, and its parsers for the text of a model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hyperruntime.host.process import wait_until
from tests.unit.agents.llmtemplate import AGENT, Modules

SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def desk(agent: Modules, tmp_path: Path) -> Iterator[Any]:
    with agent.tools.Desk(tmp_path) as desk:
        yield desk


@pytest.fixture
def bash(agent: Modules, desk: Any) -> Any:
    return lambda command, **more: agent.tools.call(desk, "bash", {"command": command, **more})


@pytest.fixture
def edit(agent: Modules, desk: Any) -> Any:
    return lambda command, path, **more: agent.tools.call(
        desk, "edit", {"command": command, "path": path, **more}
    )


def is_running(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


# bash


def test_the_shell_keeps_its_directory_variables_and_functions(bash: Any, tmp_path: Path) -> None:
    (tmp_path / "a dir").mkdir()
    assert (
        bash("cd 'a dir'; X=5; export Y=6; f() { echo \"f $X $1\"; }; declare -A M=([k]='v w')")
        == "[exit code 0]"
    )
    assert (
        bash('pwd; f z; printenv Y; echo "${M[k]}"')
        == f"{tmp_path}/a dir\nf 5 z\n6\nv w\n[exit code 0]"
    )


@pytest.mark.parametrize(
    ("command", "code"),
    [("true", 0), ("false", 1), ("(exit 7)", 7), ("return 9", 9), ("sh -c 'kill -15 $$'", 143),
     ("no-such-program", 127), ("if true; then", 2), ("exit 3", 3), ("exit 0", 0), ("kill -9 $$", 137),
     ("set -e; false; echo no", 1), ("exec python3 -c 'raise SystemExit(4)'", 4)],
)  # fmt: skip
def test_exit_codes_are_exact_and_the_shell_continues(bash: Any, command: str, code: int) -> None:
    bash('X=kept; f() { echo "f $X"; }; cd /usr')
    said = bash(command)
    assert f"[exit code {code}" in said
    assert ("a new shell goes on" in said) == (
        command.startswith(("exit", "exec", "kill -9", "set -e"))
    )
    assert bash("f; pwd") == "f kept\n/usr\n[exit code 0]"


def test_output_cannot_imitate_the_end_of_a_command(bash: Any) -> None:
    assert bash("cat <<'X'\n1 0\n2 0\nX\n") == "1 0\n2 0\n[exit code 0]"
    assert bash("cat <<X\nwithout an end").endswith("without an end\n[exit code 0]")
    assert bash("for n in 1 2 3 4 5 6; do echo $n 0 >&2; done; (exit 5)").endswith(
        "6 0\n[exit code 5]"
    )
    assert bash("echo '[exit code 0]'; false") == "[exit code 0]\n[exit code 1]"
    assert bash("echo 9 0 >&4; echo 9 0 >&3; echo still").endswith("still\n[exit code 0]")


def test_redirections_and_overrides_in_a_command_do_not_affect_the_next(
    bash: Any, tmp_path: Path
) -> None:
    assert bash("exec >out; echo hidden") == "[exit code 0]"
    assert bash("exec 0<&- 1>&- 2>&- 3<&- 4>&- 5>&-") == "[exit code 0]"
    assert bash("read line; echo $?; cat; cat out") == "1\nhidden\n[exit code 0]"
    assert (
        bash("IFS=0; read() { :; }; printf() { :; }; cd() { :; }; set -u; echo") == "[exit code 0]"
    )
    assert bash("echo fine") == "fine\n[exit code 0]"


def test_a_command_past_its_timeout_is_ended_and_the_shell_restores_its_previous_state(
    bash: Any, tmp_path: Path
) -> None:
    bash("X=before; f() { echo f; }; cd /usr")
    daemon = f"setsid sleep 600 & echo $! >{tmp_path}/pid"
    said = bash(
        f"X=after; cd /; echo started; {daemon}; sleep 600; touch {tmp_path}/no", timeout_s=0.4
    )
    assert said.startswith("started\n[no exit code; ended")
    assert "0.4 s" in said
    assert not is_running(int((tmp_path / "pid").read_text()))
    assert bash("echo $X; f; pwd") == "before\nf\n/usr\n[exit code 0]"
    assert not (tmp_path / "no").exists()


def test_background_jobs_stay_until_the_desk_is_closed(agent: Modules, tmp_path: Path) -> None:
    with agent.tools.Desk(tmp_path) as desk:
        assert agent.tools.call(
            desk, "bash", {"command": "sleep 600 & echo $! >a; (sleep 600 & echo $! >b)"}
        )
        assert "Running" in agent.tools.call(desk, "bash", {"command": "jobs"})
        pids = [int((tmp_path / name).read_text()) for name in "ab"]
        assert all(is_running(pid) for pid in pids)
    # killed, but not yet gone
    assert wait_until(lambda: not any(is_running(pid) for pid in pids), 60, 0.05)


def test_a_background_job_with_endless_output_does_not_block_the_shell(bash: Any) -> None:
    bash("yes &")
    assert bash("echo through; kill %1").endswith("[exit code 0]")
    assert bash("true").endswith("[exit code 0]")


def test_the_shell_survives_the_removal_of_its_files(bash: Any) -> None:
    assert bash('X=5; rm -rf "$HYPERRUN_SHELL"; (exit 6)') == "[exit code 6]"
    assert bash("echo $X") == "5\n[exit code 0]"
    assert "a new shell goes on" in bash("exit 2")
    assert bash("echo $X") == "5\n[exit code 0]"


def test_binary_output_is_escaped(bash: Any) -> None:
    assert (
        bash(r"printf 'a\0\1\377\r\n\033[1m\303\244'")
        == "a\\x00\\x01\\xff\\x0d\n\\x1b[1mä\n[exit code 0]"
    )


def test_long_output_keeps_both_ends_and_states_the_omitted_bytes(
    agent: Modules, bash: Any
) -> None:
    said = bash("seq 1 200000")
    total = sum(len(f"{n}\n") for n in range(1, 200001))
    assert said.startswith("1\n2\n")
    assert said.endswith("199999\n200000\n[exit code 0]")
    assert f"[... {total - agent.settings.OUTPUT_BYTES} bytes left out ...]" in said


@SHARED
@given(pieces=st.lists(st.binary(max_size=400), max_size=12), limit=st.integers(2, 300))
def test_kept_keeps_the_two_ends_of_a_stream(
    agent: Modules, pieces: list[bytes], limit: int
) -> None:
    kept, whole, half = agent.shell.Kept(limit), b"".join(pieces), limit // 2
    for piece in pieces:
        kept.add(piece)
    if len(whole) <= 2 * half:
        assert kept.text() == agent.shell.shown(whole)
    else:
        ends = (agent.shell.shown(whole[:half]), agent.shell.shown(whole[-half:]))
        assert (
            kept.text() == f"{ends[0]}\n[... {len(whole) - 2 * half} bytes left out ...]\n{ends[1]}"
        )


def test_a_nested_shell_ends_with_the_outer_one(
    agent: Modules, bash: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "inner"

    def later() -> float:
        return time.monotonic() + 1000 * (inner.exists() and inner.stat().st_size > 0)

    monkeypatch.setattr(agent.shell, "time", SimpleNamespace(monotonic=later))
    (tmp_path / "inner.py").write_text(
        f"import sys; sys.path.insert(0, {str(AGENT)!r}); sys.dont_write_bytecode = True\n"
        "from shell import Shell\nShell('/').run('echo $$ >"
        + f"{tmp_path}/inner; sleep 600', 600)\n"
    )
    assert "ended" in bash(f"TMPDIR=. {sys.executable} inner.py", timeout_s=500)
    assert not is_running(int(inner.read_text()))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "needs the argument 'command'"),
        ({"command": 5}, "'command' of bash must be of type string"),
        ({"command": "true", "timeout_s": True}, "must be of type number"),
        ({"command": "true", "timeout_s": -1}, "timeout_s must be above 0"),
        ({"command": "true", "timeout": 5}, "has no argument 'timeout'"),
        ({"command": "echo \0"}, "NUL"),
        ({"command": "echo \ud800"}, "surrogates"),
        ([], "must be a JSON object"),
    ],
)
def test_a_malformed_call_is_answered_with_the_error(
    agent: Modules, desk: Any, arguments: Any, said: str
) -> None:
    answer = agent.tools.call(desk, "bash", arguments)
    assert answer.startswith("Error: ")
    assert said in answer


def test_an_unknown_tool_is_answered_with_the_known_ones(agent: Modules, desk: Any) -> None:
    assert agent.tools.call(desk, "browse", {}) == "Error: unknown tool 'browse'; known: bash, edit"


# edit


def test_view_shows_numbered_lines_ranges_and_directories(edit: Any, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n")
    (tmp_path / "sub").mkdir()
    assert edit("view", "a.txt") == "     1\tone\n     2\ttwo\n     3\tthree"
    assert edit("view", "a.txt", lines=[2, 2]) == "     2\ttwo"
    assert edit("view", str(tmp_path / "a.txt"), lines=[2, -1]) == "     2\ttwo\n     3\tthree"
    assert edit("view", "a.txt", lines=[3, 99]) == "     3\tthree"
    assert "has lines 1 to 3" in edit("view", "a.txt", lines=[4, 5])
    assert edit("view", ".").splitlines()[1:] == ["a.txt", "sub/"]


def test_replace_requires_exactly_one_match(edit: Any, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("aaa b\nc\n")
    assert "is not in" in edit("replace", "a.txt", old="x", new="y")
    assert "2 times" not in edit("replace", "a.txt", old="aa", new="y")
    assert "more than once" in edit("replace", "a.txt", old="aa", new="y")
    assert "3 times" in edit("replace", "a.txt", old="a", new="y")
    assert "empty" in edit("replace", "a.txt", old="", new="y")
    assert file.read_text() == "aaa b\nc\n"
    assert edit("replace", "a.txt", old="b\nc", new="d").endswith("is changed at line 1")
    assert file.read_text() == "aaa d\n"
    assert edit("replace", "a.txt", old=" d").endswith("is changed at line 1")
    assert file.read_text() == "aaa\n"


def test_edits_keep_crlf_line_ends_and_the_error_mentions_them(edit: Any, tmp_path: Path) -> None:
    (tmp_path / "dos").write_bytes(b"one\r\ntwo\r\n\xff")
    assert "\\r\\n" in edit("replace", "dos", old="one\ntwo", new="x")
    edit("replace", "dos", old="two", new="2")
    assert (tmp_path / "dos").read_bytes() == b"one\r\n2\r\n\xff"


def test_insert_adds_lines_after_a_line(edit: Any, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one\ntwo")
    edit("insert", "a.txt", line=2, text="three")
    assert file.read_text() == "one\ntwo\nthree\n"
    edit("insert", "a.txt", line=0, text="zero\n")
    edit("insert", "a.txt", line=1, text="half")
    assert file.read_text() == "zero\nhalf\none\ntwo\nthree\n"
    assert "must be from 0 to 5" in edit("insert", "a.txt", line=6, text="x")


def test_create_makes_folders_and_undo_reverts_step_by_step(edit: Any, tmp_path: Path) -> None:
    file = tmp_path / "new" / "a.txt"
    edit("create", "new/a.txt", text="1\n")
    edit("create", "new/../new/a.txt", text="2\n")
    edit("insert", "new/a.txt", line=1, text="3")
    assert file.read_text() == "2\n3\n"
    edit("undo", "new/a.txt")
    assert file.read_text() == "2\n"
    edit("undo", str(file))
    assert file.read_text() == "1\n"
    edit("undo", "new/a.txt")
    assert not file.exists()
    assert "there is no change of" in edit("undo", "new/a.txt")


@pytest.mark.parametrize(
    ("command", "path", "more", "said"),
    [
        ("view", "no", {}, "does not exist"),
        ("view", "a\0b", {}, "NUL"),
        ("view", "/dev/null", {}, "is not a regular file"),
        ("create", ".", {"text": "x"}, "irectory"),
        ("create", "b", {}, "text"),
        ("view", "b", {"text": "x"}, "text"),
        ("delete", "b", {}, "unknown command 'delete'"),
        ("create", "b", {"text": "\ud800"}, "surrogates"),
        ("view", "x", {"lines": [1, "2"]}, "lines"),
    ],
)
def test_invalid_edits_are_answered_with_the_reason(
    edit: Any, tmp_path: Path, command: str, path: str, more: Any, said: str
) -> None:
    (tmp_path / "x").write_text("a line\n")
    answer = edit(command, path, **more)
    assert answer.startswith("Error: ")
    assert said in answer


STEP = st.tuples(
    st.sampled_from(["create", "replace", "insert"]), st.integers(0, 12), st.text(max_size=20)
)


@SHARED
@given(first=st.one_of(st.none(), st.binary(max_size=60)), steps=st.lists(STEP, max_size=8))
def test_undoing_all_changes_restores_the_original_bytes(
    agent: Modules, tmp_path: Path, first: bytes | None, steps: list[tuple[str, int, str]]
) -> None:
    file = tmp_path / "file"
    file.unlink(missing_ok=True)
    if first is not None:
        file.write_bytes(first)
    desk, states = agent.tools.Desk(tmp_path), []
    for command, number, text in steps:
        before = file.read_bytes() if file.exists() else None
        old = before.decode("utf-8", "surrogateescape")[number : number + 3] if before else ""
        choices: dict[str, dict[str, Any]] = {
            "create": {"text": text},
            "insert": {"line": number, "text": text},
        }
        more = choices.get(command, {"old": old, "new": text})
        said = agent.tools.call(desk, "edit", {"command": command, "path": "file", **more})
        if said.startswith("Error"):
            assert (file.read_bytes() if file.exists() else None) == before
        else:
            states.append(before)
    for before in reversed(states):
        agent.tools.call(desk, "edit", {"command": "undo", "path": "file"})
        assert (file.read_bytes() if file.exists() else None) == before
    assert "there is no change of" in agent.tools.call(
        desk, "edit", {"command": "undo", "path": "file"}
    )


# text


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
PROSE = st.text(st.characters(exclude_characters="`<{")).filter(
    lambda text: "tool_call" not in text
)


@SHARED
@given(
    calls=st.lists(
        st.tuples(st.text(), st.dictionaries(st.text(), st.text() | st.integers())), max_size=3
    ),
    prose=PROSE,
)
def test_written_calls_are_parsed_back(agent: Modules, calls: list[Any], prose: str) -> None:
    text = (
        prose
        + "\n"
        + f"\n{prose}\n".join(agent.jsontext.write_call(name, given) for name, given in calls)
        + "\n"
        + prose
    )
    found = agent.jsontext.text_calls(text)
    assert [(one.name, one.arguments, one.problem) for one in found] == [
        (name, given, "") for name, given in calls
    ]


@SHARED
@given(value=JSON, prose=PROSE)
def test_an_answer_in_a_block_is_found_in_any_text(agent: Modules, value: Any, prose: str) -> None:
    block = f"```json\n{json.dumps(value, indent=1)}\n```"
    for text in (
        f"{prose}\n{block}\n{prose}",
        f"```python\nx = [1]\n```\n{prose}\n{block}",
        json.dumps(value),
    ):
        found, answer = agent.jsontext.answer(text)
        assert found
        assert answer == value


@SHARED
@given(
    text=st.text()
    | st.from_regex(
        r"(```(tool|json)?\n|\{\"tool\": |\"|\}|\n|<tool_call>|x){0,12}", fullmatch=True
    )
)
def test_any_text_is_parsed_without_an_error(agent: Modules, text: str) -> None:
    for one in agent.jsontext.text_calls(text):
        assert one.problem or (isinstance(one.name, str) and isinstance(one.arguments, dict))
    found, _ = agent.jsontext.answer(text)
    assert found in (True, False)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('```json\n{"tool": "bash", "arguments": {"command": "ls"}}\n```', ["bash"]),
        ('{"tool": "bash", "arguments": {"command": "ls"}}', ["bash"]),
        ('<tool_call>\n{"name": "bash", "arguments": {}}\n</tool_call>', ["bash"]),
        (
            'I write:\n```tool\n{"tool": "edit", "arguments": {"text": "```\na\n```"}}\n```\nthen',
            ["edit"],
        ),
        (
            '```tool\n{"tool": "a", "arguments": {}}\n```\n```tool\n{"tool": "b", "arguments": '
            "{}}\n```",
            ["a", "b"],
        ),
        ('```json\n{"tool": "hammer"}\n```', []),
        ('```json\n{"name": "Ada", "arguments": {}}\n```', []),
        ("```python\nprint()\n```\n\n5 apples", []),
    ],
)
def test_a_call_is_recognised_only_in_the_known_forms(
    agent: Modules, text: str, names: list[str]
) -> None:
    assert [one.name for one in agent.jsontext.text_calls(text)] == names


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('```tool\n{"tool": "bash", "arguments": {"command": "ls}\n```', "not valid JSON"),
        ('```tool\n{"command": "ls"}\n```', "a call must be"),
        ('```tool\n{"tool": "bash", "arguments": "ls"}\n```', "must be a JSON object"),
        (
            '```tool\n{"tool": "bash", "arguments": {"a": ' + "[" * 20 + "]" * 20 + "}}\n```",
            "too deeply",
        ),
        ("```tool\n" + "[" * 100_000 + "\n```", "not valid JSON"),
    ],
)
def test_a_call_that_cannot_be_parsed_has_a_description_of_the_problem(
    agent: Modules, text: str, said: str
) -> None:
    (one,) = agent.jsontext.text_calls(text)
    assert said in one.problem


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("high", (False, None)),
        ('"high"', (True, "high")),
        ("```json\n5\n```\n\n7 is not it", (True, 5)),
        ("```json\n1\n```\nno, rather\n```json\n2\n```", (True, 2)),
        ("```json\n5 apples\n```", (False, None)),
        ("```json\nNaN\n```", (False, None)),
        ('```json\n{"a": "x\ny"}\n```', (True, {"a": "x\ny"})),
        ("```json\n[1, 2]", (True, [1, 2])),
    ],
)
def test_an_answer_is_a_json_value_in_the_last_block_or_the_whole_text(
    agent: Modules, text: str, answer: tuple[bool, Any]
) -> None:
    assert agent.jsontext.answer(text) == answer


# history


def test_the_history_is_rotated_at_its_size_limit(agent: Modules, tmp_path: Path) -> None:
    history = agent.history.History(tmp_path / "deep" / "chat.md", limit=200, files=2)
    for number in range(10):
        history.add(f"Message {number}", "x" * 80)
    names = sorted(os.listdir(tmp_path / "deep"))
    assert names == ["chat.md", "chat.md.1", "chat.md.2"]
    whole = "".join((tmp_path / "deep" / name).read_text() for name in reversed(names))
    assert [f"Message {number}" in whole for number in (4, 5, 6, 7, 8, 9)] == [True] * 6
    assert all((tmp_path / "deep" / name).stat().st_size <= 200 for name in names)


@SHARED
@given(text=st.text())
def test_a_fence_is_longer_than_any_fence_in_its_text(agent: Modules, text: str) -> None:
    first, *middle, last = agent.history.fenced(text).split("\n")
    assert first == last
    assert "\n".join(middle) == text
    assert first not in text


def test_the_shell_ends_when_its_agent_is_killed(tmp_path: Path) -> None:
    script = (
        f"import sys; sys.path.insert(0, {str(AGENT)!r}); sys.dont_write_bytecode = True\n"
        "from shell import Shell\nimport os, signal\n"
        f"Shell('/').run('echo $$ >{tmp_path}/pid', 60)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run(
        [sys.executable, "-c", script], check=False, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    pid, waited = int((tmp_path / "pid").read_text()), 0
    while is_running(pid) and waited < 200:
        time.sleep(0.05)
        waited += 1
    assert not is_running(pid)
