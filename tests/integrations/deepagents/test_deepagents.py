"""The sandbox tests of langchain-tests on the backend, and an agent of deepagents that uses it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from deepagents import create_deep_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_tests.integration_tests import SandboxIntegrationTests

import hyperruntime as hr
from hyperruntime_deepagents import Sandbox
from tests.integrations.deepagents.example import ask

pytestmark = pytest.mark.engine

PATH = {"PATH": "/opt/tools:/usr/local/bin:/usr/bin:/bin"}


class TestSandbox(SandboxIntegrationTests):
    """The 85 tests that every backend must pass."""

    @pytest.fixture(scope="class")
    def sandbox(self, runtime: hr.Runtime, base_image: str) -> Iterator[Sandbox]:
        """Yield a backend for these tests."""
        with runtime.container(hr.ContainerSpec(image=base_image, env=PATH)) as container:
            # the suite runs python
            link = "mkdir -p /opt/tools && ln -s $(command -v python3) /opt/tools/python"
            container.exec(["sh", "-c", link]).check()
            yield Sandbox(container)


def test_no_test_of_the_suite_is_left_out(request: pytest.FixtureRequest) -> None:
    names = {name for name in dir(SandboxIntegrationTests) if name.startswith("test_")}
    items = [item for item in request.session.items if getattr(item, "cls", None) is TestSandbox]
    collected = {getattr(item, "originalname", "") for item in items}
    assert len(names) == 86  # 85 of backends, and one that finds overridden tests
    assert not names - collected, "run the whole module"
    assert not names & set(vars(TestSandbox))
    # else its tests are skipped
    assert (TestSandbox().has_sync, TestSandbox().has_async) == (True, True)


class ScriptedModel(GenericFakeChatModel):
    """A model that calls the tools that a test names."""

    def bind_tools(self, tools: object, **options: object) -> ScriptedModel:
        """Return itself: it knows its calls."""
        return self


def test_an_agent_works_in_the_container(base_image: str, runtime_name: str) -> None:
    sandbox = Sandbox.start(base_image, runtime_name)
    calls = [
        ("write_file", {"file_path": "/work/script.py", "content": "print(6 * 7)"}),
        (
            "execute",
            {"command": "python3 /work/script.py >/work/answer; cat /work/answer; hostname"},
        ),
    ]
    messages = [
        AIMessage(content="", tool_calls=[{"name": name, "args": args, "id": str(number)}])
        for number, (name, args) in enumerate(calls)
    ]
    model = ScriptedModel(messages=iter([*messages, AIMessage(content="done")]))
    try:
        state = create_deep_agent(model=model, backend=sandbox).invoke(
            {"messages": [("user", "compute")]}
        )
        assert state["messages"][-1].content == "done"
        assert sandbox.container.read_file("/work/answer") == b"42\n"
        assert "42" in str(state["messages"][-2].content)
    finally:
        sandbox.close()


def test_the_example_of_the_page_runs(
    runtime_name: str, base_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYPERRUNTIME_RUNTIME", runtime_name)
    assert ask(ScriptedModel(messages=iter([AIMessage(content="hello")])), "hello?") == "hello"


def test_a_command_that_does_not_end_is_ended(base_image: str, runtime_name: str) -> None:
    sandbox = Sandbox.start(base_image, runtime_name)
    try:
        result = sandbox.execute("echo before; sleep 1000", timeout=1)
        assert result.exit_code == 124
        assert result.output == "before\n\n[the command timed out after 1 s]"
        impatient = Sandbox(sandbox.container, timeout_s=0.5)
        assert impatient.execute("sleep 1000").exit_code == 124
        # 0 means no limit
        assert impatient.execute("sleep 1; echo done", timeout=0).output == "done\n"
    finally:
        sandbox.close()
