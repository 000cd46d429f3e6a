"""The OpenAI Agents SDK: `DockerSandboxClient`, and our client."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import docker
from agents.sandbox.sandboxes.docker import DockerSandboxClient, DockerSandboxClientOptions

from hyperruntime_openai_agents import SandboxClient, SandboxOptions
from tests.bench.frameworks.contest import CONTENTS, THEIRS, Contest, Side


@contextmanager
def contest(image: str) -> Iterator[Contest]:
    """Yield the contest."""
    with asyncio.Runner() as runner:
        yield Contest(
            title=f"OpenAI Agents SDK {version('openai-agents')}",
            beside="its `DockerSandboxClient`",
            start=lambda name: runner.run(_start(runner, name, image)),
        )


async def _start(runner: asyncio.Runner, name: str, image: str) -> Side:
    client: Any
    options: Any
    if name == THEIRS:
        client = DockerSandboxClient(docker.from_env())
        options = DockerSandboxClientOptions(image=image, network_mode="none")
    else:
        client, options = SandboxClient(runtime=name), SandboxOptions(image=image)
    session = await client.create(options=options)
    await session.start()

    async def act() -> None:
        result = await session.exec("true")
        if result.exit_code != 0:
            raise AssertionError(result)

    async def files() -> None:
        await session.write(Path("file"), io.BytesIO(CONTENTS.encode()))
        if (await session.read(Path("file"))).read() != CONTENTS.encode():
            raise AssertionError(name)

    return Side(
        lambda: runner.run(act()),
        {"`write` and `read`": lambda: runner.run(files())},
        lambda: runner.run(client.delete(session)),
    )
