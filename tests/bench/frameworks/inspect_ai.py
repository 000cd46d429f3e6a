"""inspect_ai: the provider `docker`, which calls `docker compose`, and the provider
`hyperruntime`.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from inspect_ai._util.error import PrerequisiteError
from inspect_ai.util._sandbox.docker.cleanup import project_cleanup_startup
from inspect_ai.util._sandbox.registry import registry_find_sandboxenv

from tests.bench.frameworks.contest import CONTENTS, ENGINES, THEIRS, Contest, Side

# The framework's own compose file for a sandbox without configuration, with our image.
COMPOSE = """services:
  default:
    image: {image}
    command: "tail -f /dev/null"
    init: true
    network_mode: none
    stop_grace_period: 1s
"""
TOML = 'runtime = "{engine}"\nimage = "{image}"\n'
OLD = (
    "inspect_ai asks for a newer Docker at the start of a task; its other calls work with this "
    "one, and are measured."
)


@contextmanager
def contest(image: str) -> Iterator[Contest]:
    """Yield the contest."""
    with tempfile.TemporaryDirectory() as place, asyncio.Runner() as runner:
        configs = {THEIRS: Path(place, "compose.yaml")} | {
            name: Path(place, f"{name}.toml") for name in ENGINES
        }
        configs[THEIRS].write_text(COMPOSE.format(image=image))
        for engine in ENGINES:
            configs[engine].write_text(TOML.format(engine=engine, image=image))
        supported = [runner.run(_init(name, str(path))) for name, path in configs.items()]
        yield Contest(
            title=f"inspect_ai {version('inspect_ai')}",
            beside="its provider `docker`",
            note="" if all(supported) else OLD,
            wanted=10,
            start=lambda name: _start(runner, name, str(configs[name])),
        )


def _provider(name: str) -> Any:
    return registry_find_sandboxenv("docker" if name == THEIRS else "hyperruntime")


async def _init(name: str, config: str) -> bool:
    """Prepare a task as an evaluation does; return whether the framework accepts this Docker."""
    try:
        await _provider(name).task_init("bench", config)
    except PrerequisiteError:
        project_cleanup_startup()  # the step after the check
        return False
    return True


def _start(runner: asyncio.Runner, name: str, config: str) -> Side:
    provider = _provider(name)
    environments = runner.run(provider.sample_init("bench", config, {}))
    sandbox = environments["default"]

    def files() -> None:
        runner.run(sandbox.write_file("/tmp/file", CONTENTS))
        if runner.run(sandbox.read_file("/tmp/file")) != CONTENTS:
            raise AssertionError(name)

    def act() -> None:
        if not runner.run(sandbox.exec(["true"])).success:
            raise AssertionError(name)

    return Side(
        act,
        {"`write_file` and `read_file`": files},
        lambda: runner.run(provider.sample_cleanup("bench", config, environments, False)),
    )
