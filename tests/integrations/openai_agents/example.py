"""The example of docs/integrations/openai_agents.md."""

from agents import Model, RunConfig, Runner
from agents.sandbox import SandboxAgent, SandboxRunConfig

from hyperruntime_openai_agents import SandboxClient


async def ask(model: str | Model, text: str) -> str:
    """Return the answer of an agent whose files and commands are those of a container."""
    agent = SandboxAgent(name="programmer", model=model, instructions="Work in the workspace.")
    limits = {"memory_bytes": 1024**3}
    sandbox = SandboxRunConfig(client=SandboxClient(container={"limits": limits}))
    run_config = RunConfig(sandbox=sandbox, tracing_disabled=True)
    result = await Runner.run(agent, text, run_config=run_config)
    return str(result.final_output)
