"""mini-swe-agent: `DockerEnvironment`, which calls `docker exec`, and our environment."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

os.environ["MSWEA_SILENT_STARTUP"] = "1"

from minisweagent.environments import get_environment

from tests.bench.frameworks.contest import CONTENTS, THEIRS, Contest, Side

OURS = "hyperruntime_mini_swe_agent.Environment"


@contextmanager
def contest(image: str) -> Iterator[Contest]:
    """Yield the contest."""
    yield Contest(
        title=f"mini-swe-agent {version('mini-swe-agent')}",
        beside="its `DockerEnvironment`",
        wanted=10,
        start=lambda name: _start(name, image),
    )


def _start(name: str, image: str) -> Side:
    config: dict[str, Any] = {"image": image, "cwd": "/tmp"}
    if name == THEIRS:
        config |= {"environment_class": "docker", "run_args": ["--rm", "--network", "none"]}
    else:
        config |= {"environment_class": OURS, "runtime": name}
    environment = get_environment(config)

    def run(command: str) -> str:
        result = environment.execute({"command": command})
        if result["returncode"] != 0:
            raise AssertionError(result)
        return str(result["output"])

    def files() -> None:  # as an agent does it: the framework has no other way
        run(f"cat >file <<'END'\n{CONTENTS}END")
        if run("cat file") != CONTENTS:
            raise AssertionError(name)

    def close() -> None:
        if name == THEIRS:  # its own cleanup goes on in the background, for ten seconds
            subprocess.run(
                ["docker", "rm", "--force", environment.container_id],
                check=True,
                capture_output=True,
            )
            environment.container_id = None
        else:
            environment.cleanup()

    return Side(lambda: run("true"), {"a file by `cat`, written and read": files}, close)
