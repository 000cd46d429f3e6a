"""The example of docs/integrations/smolagents.md."""

from smolagents import CodeAgent, Model, Tool

from hyperruntime_smolagents import Executor


def ask(model: Model, tools: list[Tool], text: str) -> object:
    """Return the answer of an agent whose code runs in a container."""
    executor = Executor("base", ["json"], container={"limits": {"memory_bytes": 1024**3}})
    agent = CodeAgent(
        tools=tools, model=model, executor=executor, additional_authorized_imports=["json"]
    )
    try:
        return agent.run(text)
    finally:
        agent.cleanup()
