"""deepagents: our backend, and one of PyPI for Docker, because deepagents has none of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from langchain_docker_backend import DockerSandbox

import hyperruntime as hr
from hyperruntime_deepagents import Sandbox
from tests.bench.frameworks.contest import CONTENTS, THEIRS, Contest, Side

NOTE = (
    "deepagents has no sandbox for Docker of its own. `langchain-docker-backend`, from PyPI, "
    "calls Docker's SDK."
)
_numbers = itertools.count()


@contextmanager
def contest(image: str) -> Iterator[Contest]:
    """Yield the contest."""
    yield Contest(
        title=f"deepagents {version('deepagents')}",
        beside=f"langchain-docker-backend {version('langchain-docker-backend')}",
        note=NOTE,
        wanted=10,
        start=lambda name: _start(name, image),
    )


def _start(name: str, image: str) -> Side:
    sandbox: Any
    if name == THEIRS:
        sandbox = DockerSandbox(image=image, working_dir="/tmp", network_mode="none")
    else:
        sandbox = Sandbox.start(hr.ContainerSpec(image=image, workdir="/tmp"), name)

    def act() -> None:
        result = sandbox.execute("true")
        if result.exit_code != 0:
            raise AssertionError(result)

    def copies() -> None:
        sandbox.upload_files([("/tmp/file", CONTENTS.encode())])
        if sandbox.download_files(["/tmp/file"])[0].content != CONTENTS.encode():
            raise AssertionError(name)

    def tools() -> None:  # the framework runs Python in the container for each
        path = f"/tmp/{next(_numbers)}"
        sandbox.write(path, CONTENTS)
        if sandbox.read(path).file_data["content"] != CONTENTS.rstrip("\n"):
            raise AssertionError(name)

    def close() -> None:
        if name == THEIRS:
            sandbox._container.remove(force=True)  # its `close` waits five seconds
            sandbox._client.close()
        else:
            sandbox.close()

    return Side(
        act,
        {"`upload_files` and `download_files`": copies, "the tools `write` and `read`": tools},
        close,
    )
