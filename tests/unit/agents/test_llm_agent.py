"""Whole runs of the agent template ``llm`` on the host, with a scripted model behind a real HTTP
server.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hyperruntime.errors import AgentError
from hyperruntime.loop.run_files.contract import (
    AgentNeeds,
    agent_needs,
    parse_contract,
    parse_needs,
)
from hyperruntime.testing.model import ModelReply, calls, fails, says
from tests.doubles.server_errors import OTHERS, TOO_LONG, Error
from tests.unit.agents.llmtemplate import AGENT, Modules, Start, imported, last

ROW = {"message": "The office is offline", "labels": ["low", "high"]}
EXERCISE = {
    "language": "python",
    "statement": "Write add.",
    "files": {"add.py": "def add(a, b): ...\n"},
}
WORLD = {
    "mission": "go to the door",
    "observation": "a door",
    "actions": ["go", "go back", "wait"],
    "turn": 1,
}


def roles(request: Mapping[str, Any]) -> list[str]:
    return [message["role"] for message in request["messages"]]


# the task agent


def test_a_row_is_answered_and_the_history_is_written(
    agent: Modules, start: Start, tmp_path: Path
) -> None:
    model = start(says('It is urgent.\n```json\n"high"\n```'))
    history = tmp_path / "chat.md"
    prediction, messages = agent.task_agent.TaskAgent("some-model", str(history)).forward(ROW)
    assert prediction == "high"
    (request,) = model.requests
    assert request["model"] == "some-model"
    assert request["max_tokens"] == agent.settings.MAX_TOKENS
    assert "The office is offline" in last(request)
    assert {tool["function"]["name"] for tool in request["tools"]} == {"bash", "edit"}
    assert [message["role"] for message in messages] == ["system", "user", "assistant"]
    assert "The office is offline" in history.read_text()
    assert "It is urgent." in history.read_text()


@pytest.mark.parametrize(
    ("text", "prediction"), [("high", "high"), ('"high"', "high"), ("42", 42), ("[1]", [1])]
)
def test_a_single_word_or_value_is_an_answer(
    agent: Modules, start: Start, text: str, prediction: Any
) -> None:
    start(says(text))
    assert agent.task_agent.TaskAgent().forward(ROW)[0] == prediction


def test_an_answer_without_json_is_asked_for_once_more(agent: Modules, start: Start) -> None:
    model = start(says("Well.\nIt depends."), says('```json\n"low"\n```'))
    assert agent.task_agent.TaskAgent().forward(ROW)[0] == "low"
    assert "no JSON value" in last(model.requests[1])
    start(says("Well.\nIt depends."), says("Two\nlines"))
    assert agent.task_agent.TaskAgent().forward(ROW)[0] == "Two\nlines"


def test_an_exercise_is_solved_in_files_with_tools(agent: Modules, start: Start) -> None:
    program = "def add(a, b):\n    return a + b\n"
    model = start(
        calls(edit={"command": "create", "path": "add.py", "text": program}),
        calls(bash={"command": "python3 -c 'import add; print(add.add(2, 3))'; touch scratch"}),
        says("Done."),
    )
    prediction, _ = agent.task_agent.TaskAgent().forward(EXERCISE)
    assert prediction == {"files": {"add.py": program}}
    assert last(model.requests[2]) == "5\n[exit code 0]"
    assert roles(model.requests[2]) == ["system", "user", "assistant", "tool", "assistant", "tool"]


def test_each_call_and_each_result_has_a_heading_in_the_history(
    agent: Modules, start: Start, tmp_path: Path
) -> None:
    start(calls(bash={"command": "echo one"}, edit={"command": "view", "path": "."}), says("high"))
    agent.task_agent.TaskAgent("some-model", str(tmp_path / "chat.md")).forward(ROW)
    headings = [
        one for one in (tmp_path / "chat.md").read_text().splitlines() if one.startswith("## ")
    ]
    assert headings[2:] == [
        "## Model",
        "## Call of bash",
        "## Call of edit",
        "## Tool bash",
        "## Tool edit",
        "## Model",
    ]


def test_an_exercise_may_be_answered_in_the_message(agent: Modules, start: Start) -> None:
    start(says('```json\n{"files": {"add.py": "x = 1\\n", "../../etc/passwd": "no"}}\n```'))
    assert agent.task_agent.TaskAgent().forward(EXERCISE)[0] == {"files": {"add.py": "x = 1\n"}}


def test_the_working_directory_is_removed_with_the_agent(agent: Modules, start: Start) -> None:
    start(calls(bash={"command": "pwd; sleep 600 & echo $!"}), says('"x"'))
    one = agent.task_agent.TaskAgent()
    _, messages = one.forward(ROW)
    folder = Path(messages[-2]["content"].split("\n")[0])
    assert folder.is_dir()
    del one
    assert not folder.exists()


def test_the_turns_of_a_world_share_one_conversation(agent: Modules, start: Start) -> None:
    model = start(
        says('"go"'),
        says("I think I should go back now."),
        says("Wait or go?"),
        says("still: wait, go"),
    )
    one = agent.task_agent.TaskAgent()
    assert one.forward(WORLD)[0] == "go"
    assert one.forward({**WORLD, "observation": "a wall", "turn": 2})[0] == "go back"
    assert "a door" in model.requests[1]["messages"][1]["content"]
    assert "a wall" in last(model.requests[1])
    one.forward({**WORLD, "turn": 3})
    assert roles(model.requests[-1])[0] == "system"


@pytest.mark.parametrize(
    "inputs", [{}, {"files": {}}, {"actions": []}, {"n": 3, "deep": [[{}]]}, "a text", {"files": 5}]
)
def test_inputs_of_any_form_are_answered(agent: Modules, start: Start, inputs: Any) -> None:
    start(says("```json\n[1, 2]\n```"))
    assert agent.task_agent.TaskAgent().forward(inputs)[0] == [1, 2]


@pytest.mark.parametrize(
    ("environment", "given", "asked"),
    [
        ({}, None, "gpt-4o"),
        ({"HYPERRUN_MODEL": "e"}, None, "e"),
        ({"HYPERRUN_MODEL": "e"}, "g", "g"),
        ({}, "", "gpt-4o"),
    ],
)
def test_the_model_comes_from_the_argument_the_environment_or_the_default(
    agent: Modules,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    environment: Any,
    given: Any,
    asked: str,
) -> None:
    model = start(says('"x"'))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    agent.task_agent.TaskAgent(given).forward(ROW)
    assert model.requests[0]["model"] == asked


# models and servers that differ


def test_tool_calls_are_written_as_text_if_the_server_does_not_support_them(
    agent: Modules, start: Start
) -> None:
    refusal = fails(
        400,
        '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
    )
    model = start(
        refusal,
        says(
            'Let me see.\n```tool\n{"tool": "bash", "arguments": {"command": "echo $((6 * '
            '7))"}}\n```'
        ),
        says("```tool\n{broken\n```"),
        says("```json\n42\n```"),
    )
    assert agent.task_agent.TaskAgent().forward(ROW)[0] == 42
    assert "tools" in model.requests[0]
    assert not any("tools" in request for request in model.requests[1:])
    assert "To call a tool" in model.requests[1]["messages"][0]["content"]
    assert "42\n[exit code 0]" in last(model.requests[2])
    assert "not valid JSON" in last(model.requests[3])
    assert set(roles(model.requests[3])) == {"system", "user", "assistant"}


def test_text_calls_can_be_chosen_in_the_environment(
    agent: Modules, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYPERRUN_MODEL_TOOLS", "text")
    model = start(
        says('<tool_call>\n{"name": "bash", "arguments": {"command": "echo hi"}}\n</tool_call>'),
        says("1"),
    )
    assert agent.task_agent.TaskAgent().forward(ROW)[0] == 1
    assert "tools" not in model.requests[0]
    assert "hi\n[exit code 0]" in last(model.requests[1])


def test_a_text_call_is_executed_also_if_native_calls_are_supported(
    agent: Modules, start: Start
) -> None:
    model = start(
        says('```tool\n{"tool": "bash", "arguments": {"command": "echo hi"}}\n```'), says("1")
    )
    agent.task_agent.TaskAgent().forward(ROW)
    assert "hi\n[exit code 0]" in last(model.requests[1])


def test_each_invalid_call_is_answered_with_an_error(agent: Modules, start: Start) -> None:
    broken = ModelReply(
        message={
            "content": None,
            "tool_calls": [
                {
                    "id": "a",
                    "type": "function",
                    "function": {"name": "bash", "arguments": '{"command": "ls'},
                },
                {"id": "b", "type": "function", "function": {"name": "hammer", "arguments": "{}"}},
                {"id": "c", "type": "function", "function": {"name": "bash", "arguments": "[1]"}},
                {
                    "id": "d",
                    "type": "function",
                    "function": {"name": "bash", "arguments": {"command": "echo ok"}},
                },
                {"id": "e", "type": "function", "function": None},
                {"function": {"name": "bash", "arguments": '{"command": 5}'}},
                "nonsense",
            ],
        }
    )
    model = start(broken, says('"x"'))
    assert agent.task_agent.TaskAgent().forward(ROW)[0] == "x"
    *_, asked = (
        message for message in model.requests[1]["messages"] if message["role"] == "assistant"
    )
    results = [message for message in model.requests[1]["messages"] if message["role"] == "tool"]
    assert [call["id"] for call in asked["tool_calls"]] == [
        message["tool_call_id"] for message in results
    ]
    assert len({call["id"] for call in asked["tool_calls"]}) == 7
    assert all(
        isinstance(json.loads(call["function"]["arguments"]), dict) for call in asked["tool_calls"]
    )
    told = [message["content"] for message in results]
    assert [text.startswith("Error: ") for text in told] == [
        True,
        True,
        True,
        False,
        True,
        True,
        True,
    ]
    assert "not valid JSON" in told[0]
    assert "hammer" in told[1]
    assert told[3] == "ok\n[exit code 0]"


def test_a_truncated_call_is_answered_with_the_reason(agent: Modules, start: Start) -> None:
    cut = calls(bash='{"command": "echo aaaa')
    model = start(ModelReply(message=cut.message, finish_reason="length"), says('"x"'))
    agent.task_agent.TaskAgent().forward(ROW)
    assert "cut off at its token limit" in last(model.requests[1])


def test_the_number_of_calls_is_limited_and_the_model_is_warned(
    agent: Modules, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent.settings, "TASK_TOOL_CALLS", 7)
    model = start(
        script=lambda request: calls(
            bash={"command": "echo again"}, text="not yet\n```json\n3\n```"
        )
    )
    assert agent.task_agent.TaskAgent().forward(ROW)[0] == 3
    told = [
        message["content"]
        for message in model.requests[-1]["messages"]
        if message["role"] == "tool"
    ]
    assert told[0] == "again\n[exit code 0]"
    assert told[1].endswith("[calls of tools left: 5]")
    assert "the last call" in told[6]
    assert told[7:] == ["Error: no call of a tool is left; finish now"] * 2
    assert len(model.requests) == 10


def test_newer_models_get_the_token_limit_as_max_completion_tokens(
    agent: Modules, start: Start
) -> None:
    said = (
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use "
        "'max_completion_tokens' instead."
    )
    model = start(fails(400, said), says("1"))
    agent.task_agent.TaskAgent().forward(ROW)
    assert "max_tokens" not in model.requests[1]
    assert model.requests[1]["max_completion_tokens"] == agent.settings.MAX_TOKENS


def test_the_oldest_results_of_a_long_conversation_are_removed(
    agent: Modules, start: Start
) -> None:
    def script(request: Mapping[str, Any]) -> ModelReply:
        size = sum(len(str(message["content"])) for message in request["messages"])
        if size > 40_000:
            return fails(
                400,
                "This model's maximum context length is 10000 tokens.",
                "context_length_exceeded",
            )
        return says("5") if len(request["messages"]) > 20 else calls(bash={"command": "seq 2000"})

    model = start(script=script)
    assert agent.task_agent.TaskAgent().forward(ROW)[0] == 5
    assert "The office is offline" in model.requests[-1]["messages"][1]["content"]
    assert "left out to save space" in model.requests[-1]["messages"][3]["content"]
    assert "2000" in last(model.requests[-1])


def test_a_full_context_is_recognised_in_the_words_of_each_server(
    agent: Modules, start: Start
) -> None:
    error: Error
    errors = [(error, True) for error in TOO_LONG.values() if error[0] != 200]
    errors += [(error, False) for error in OTHERS.values() if error[0] in (401, 402, 403)]
    start(script=lambda _: ModelReply(status=error[0], body=json.dumps(error[1]).encode()))
    model = agent.model.Model("m")
    for error, is_full in errors:
        with pytest.raises(agent.model.ModelError) as raised:
            model.ask([{"role": "user", "content": "hi"}])
        assert isinstance(raised.value, agent.model.TooLongError) == is_full, error


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (
            fails(403, "the run's budget of 5 requests is used up", "budget_exceeded"),
            "the run's budget of 5 requests",
        ),
        (fails(404, "The model `x` does not exist", "model_not_found"), "does not exist"),
        (fails(500, "it broke"), "HTTP status 500: it broke"),
        (ModelReply(body=b'{"choices": []}'), "not a chat completion"),
        (ModelReply(body=b'{"choices": [{"message": null}]}'), "not a chat completion"),
        (ModelReply(body=b"<html>"), "not a chat completion"),
        (ModelReply(body=b"[1]"), "not a chat completion"),
        (ModelReply(status=502, body=b"<html>bad gateway</html>"), "502"),
    ],
)
def test_an_error_of_the_server_raises_a_model_error(
    agent: Modules, start: Start, reply: Any, said: str
) -> None:
    start(script=lambda request: reply)
    with pytest.raises(agent.model.ModelError, match=said):
        agent.task_agent.TaskAgent().forward(ROW)


def test_a_lost_server_raises_an_error_and_a_short_outage_is_retried(
    agent: Modules, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = start(fails(503, "busy"), says("7"))
    monkeypatch.setattr(agent.settings, "REQUEST_RETRIES", 2)
    assert agent.task_agent.TaskAgent().forward(ROW)[0] == 7
    assert len(model.requests) == 2
    monkeypatch.setattr(agent.settings, "REQUEST_RETRIES", 0)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    with pytest.raises(agent.model.ModelError, match="cannot be asked"):
        agent.task_agent.TaskAgent().forward(ROW)


# earlier generations


def test_predictions_are_also_read_from_a_table(agent: Modules, tmp_path: Path) -> None:
    (tmp_path / "predictions.csv").write_text('question_id,prediction\nq1,"a, b"\nq2,c\n')
    (tmp_path / "report.json").write_text('{"question_ids_failed": ["q1"]}')
    assert agent.past.predictions(tmp_path) == [("q1", 0.0, "a, b", ""), ("q2", 1.0, "c", "")]


# the contract


def test_the_contract_of_the_template_is_read(tmp_path: Path) -> None:
    data = (AGENT / "hyperrun.toml").read_bytes()
    assert parse_contract(data).load == ("task_agent:TaskAgent", "meta_agent:MetaAgent")
    assert parse_needs(data) == AgentNeeds(image="agent", models=True)
    assert agent_needs("llm") == agent_needs(str(AGENT)) == parse_needs(data)
    assert (
        agent_needs("mutator")
        == agent_needs(str(tmp_path))
        == parse_needs(b"[agent]\nname = 'x'")
        == AgentNeeds()
    )


@pytest.mark.parametrize(
    "data", [b"[agent", b"agent = 1", b"[agent]\nimage = ''", b"[agent]\nmodels = 'yes'"]
)
def test_invalid_needs_of_an_agent_are_rejected(data: bytes) -> None:
    with pytest.raises(AgentError, match=r"hyperrun\.toml"):
        parse_needs(data)


def test_a_copy_without_a_contract_file_works(tmp_path: Path, start: Start) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(AGENT, folder, ignore=shutil.ignore_patterns("__pycache__", "hyperrun.toml"))
    model = start(says("5"))
    with imported(folder) as modules:
        assert modules.task_agent.TaskAgent().forward(ROW)[0] == 5
    assert model.requests[0]["model"] == "gpt-4o"
