"""The example of docs/integrations/mini_swe_agent.md."""

from minisweagent import Agent, Model
from minisweagent.agents.default import DefaultAgent
from minisweagent.environments import get_environment


def make_agent(model: Model) -> Agent:
    """Return an agent whose commands run in a container."""
    environment = get_environment(
        {
            "environment_class": "hyperruntime_mini_swe_agent.Environment",
            "image": "base",
            "cwd": "/tmp",
            "container": {"network": "none", "limits": {"memory_bytes": 1024**3}},
        }
    )
    return DefaultAgent(
        model, environment, system_template="You are a programmer.", instance_template="{{task}}"
    )
