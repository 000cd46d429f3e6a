"""A sandbox of the OpenAI Agents SDK: ``SandboxRunConfig(client=SandboxClient())``."""

from hyperruntime_openai_agents.sandbox import SandboxClient, SandboxOptions

__all__ = ["SandboxClient", "SandboxOptions"]
