"""The runner of SWE-bench of docs/integrations/mini_swe_agent.md."""

from __future__ import annotations

from typing import Any

from minisweagent import Environment
from minisweagent.run.benchmarks import swebench
from minisweagent.utils.serialize import recursive_merge

usual_environment = swebench.get_sb_environment


def environment_of(config: dict[str, Any], instance: dict[str, Any]) -> Environment:
    """Return an environment with the image of an instance."""
    ours = {
        "environment_class": "hyperruntime_mini_swe_agent.Environment",
        "image": swebench.get_swebench_docker_image_name(instance),
        "container": {"pull": "missing"},
    }
    return usual_environment(recursive_merge(config, {"environment": ours}), instance)


swebench.get_sb_environment = environment_of
if __name__ == "__main__":
    swebench.app()
