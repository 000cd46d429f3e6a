"""A sandbox backend of deepagents: ``create_deep_agent(backend=Sandbox.start(image))``."""

from hyperruntime_deepagents.sandbox import Sandbox

__all__ = ["Sandbox"]
