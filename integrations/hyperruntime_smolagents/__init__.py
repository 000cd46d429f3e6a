"""An executor of smolagents: ``CodeAgent(tools, model, executor=Executor())``."""

from hyperruntime_smolagents.executor import Executor

__all__ = ["Executor"]
