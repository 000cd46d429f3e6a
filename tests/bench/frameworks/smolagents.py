"""smolagents: `DockerExecutor`, whose Jupyter server runs in the container, and our executor."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from smolagents.monitoring import AgentLogger, LogLevel
from smolagents.remote_executors import DockerExecutor

from hyperruntime_smolagents import Executor
from tests.bench.frameworks.contest import THEIRS, Contest, Side, build_with_packages

IMAGE = "localhost/hyperruntime-bench/smolagents:latest"
# Its server, with what it needs, is in the image, on `dev`, which has libstdc++; its own build
# would download it.
CONTAINERFILE = """FROM {image}
COPY . /opt/jupyter/
ENV PYTHONPATH=/opt/jupyter
CMD ["python3", "-m", "kernel_gateway", "--KernelGatewayApp.ip=0.0.0.0", "--KernelGatewayApp.port=8888"]
"""
NOTE = (
    "Its server runs in the container and is reached through a published port, so that "
    "container has a network."
)
CODE = "total = sum(range(10))"


@contextmanager
def contest(_: str) -> Iterator[Contest]:
    """Yield the contest."""
    build_with_packages(IMAGE, CONTAINERFILE, "dev")
    yield Contest(
        title=f"smolagents {version('smolagents')}",
        beside="its `DockerExecutor`",
        note=NOTE,
        action=f"`{CODE}`",
        start=_start,
    )


def _start(name: str) -> Side:
    executor: Any
    if name == THEIRS:
        quiet = AgentLogger(level=LogLevel.OFF)
        executor = DockerExecutor(
            [], quiet, image_name=IMAGE, build_new_image=False, port=_free_port()
        )
    else:
        executor = Executor(IMAGE, runtime=name)

    def close() -> None:
        if name == THEIRS:
            executor.container.remove(force=True)  # its `cleanup` first waits for the server's end
            executor.client.close()
        else:
            executor.cleanup()

    return Side(lambda: executor.run_code_raise_errors(CODE), {}, close)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
