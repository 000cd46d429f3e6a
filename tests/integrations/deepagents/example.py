"""The example of docs/integrations/deepagents.md."""

from typing import Any

from deepagents import create_deep_agent

from hyperruntime_deepagents import Sandbox


def ask(model: Any, text: str) -> str:
    """Return the answer of an agent whose files and commands are those of a container."""
    sandbox = Sandbox.start("base")
    try:
        agent = create_deep_agent(model=model, backend=sandbox)
        return str(agent.invoke({"messages": [("user", text)]})["messages"][-1].content)
    finally:
        sandbox.close()
