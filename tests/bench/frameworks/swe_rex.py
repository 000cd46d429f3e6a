"""SWE-ReX: `DockerDeployment`, whose server runs in the container, and our deployment."""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from swerex.deployment.docker import DockerDeployment
from swerex.runtime.abstract import (
    BashAction,
    CreateBashSessionRequest,
    ReadFileRequest,
    WriteFileRequest,
)

from tests.bench.frameworks.contest import CONTENTS, THEIRS, Contest, Side, build_with_packages

IMAGE = "localhost/hyperruntime-bench/swe-rex:latest"
# Its server, with what it needs, is in the image; otherwise each start would download it.
CONTAINERFILE = """FROM {image}
COPY . /opt/swe-rex/
RUN printf '#!/bin/sh\\nPYTHONPATH=/opt/swe-rex exec python3 -c "from swerex.server import main; main()" "$@"\\n' \
    >/usr/local/bin/swerex-remote && chmod 755 /usr/local/bin/swerex-remote
"""
NOTE = (
    "Its server runs in the container and is reached through a published port, so that "
    "container has a network."
)


@contextmanager
def contest(_: str) -> Iterator[Contest]:
    """Yield the contest."""
    logging.getLogger("rex-deploy").setLevel(logging.ERROR)
    logging.getLogger("rex-runtime").setLevel(logging.ERROR)
    build_with_packages(IMAGE, CONTAINERFILE, "base")
    with asyncio.Runner() as runner:
        yield Contest(
            title=f"SWE-ReX {version('swe-rex')}",
            beside="its `DockerDeployment`",
            note=NOTE,
            wanted=20,
            start=lambda name: runner.run(_start(runner, name)),
        )


async def _start(runner: asyncio.Runner, name: str) -> Side:
    deployment: Any
    if name == THEIRS:
        deployment = DockerDeployment(
            image=IMAGE, pull="never", python_standalone_dir=None, startup_timeout=60
        )
    else:
        deployment = importlib.import_module("hyperruntime_swe_rex").Deployment(
            image=IMAGE, runtime=name
        )
    await deployment.start()
    await deployment.runtime.create_session(CreateBashSessionRequest(startup_timeout=30))

    async def act() -> None:
        # With "silent" its own short time limits, which a loaded machine exceeds, are no errors.
        await deployment.runtime.run_in_session(BashAction(command="true", check="silent"))

    async def files() -> None:
        await deployment.runtime.write_file(WriteFileRequest(path="/tmp/file", content=CONTENTS))
        if (
            await deployment.runtime.read_file(ReadFileRequest(path="/tmp/file"))
        ).content != CONTENTS:
            raise AssertionError(name)

    return Side(
        lambda: runner.run(act()),
        {"`write_file` and `read_file`": lambda: runner.run(files())},
        lambda: runner.run(deployment.stop()),
    )
