"""The environment: each command runs in one container, as with mini-swe-agent's own environment for Docker."""

from __future__ import annotations

import os
import platform
import weakref
from typing import Any

from minisweagent.exceptions import Submitted
from minisweagent.utils.serialize import recursive_merge
from pydantic import BaseModel

import hyperruntime as hr
from hyperruntime.adapters.shared_runtime import start_container

_DONE = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"  # the first line of the output that ends a task
_UNAME = ("system", "node", "release", "version", "machine", "processor")


class EnvironmentConfig(BaseModel):
    """The keys of the configuration; those of ``DockerEnvironment`` that it shares have the same meaning.

    Attributes:
        image: reference of the image, or the name of a recipe such as ``base``.
        cwd: working directory of commands.
        env: variables of commands.
        forward_env: names of variables of the host that commands get.
        timeout: seconds after which a command is ended with all its processes.
        interpreter: the program that runs a command.
        runtime: the engine; None means ``HYPERRUNTIME_RUNTIME``, else the first one that works.
        container: more fields of the container, such as ``network``, ``user``, ``pull``, and the table ``limits``.
    """

    image: str
    cwd: str = "/"
    env: dict[str, str] = {}
    forward_env: list[str] = []
    timeout: int = 30
    interpreter: list[str] = ["bash", "-lc"]
    runtime: str | None = None
    container: dict[str, Any] = {}


class Environment:
    """Runs the commands of one agent in one container.

    Attributes:
        config: the configuration.
        container: the container.
    """

    def __init__(self, *, config_class: type[EnvironmentConfig] = EnvironmentConfig, **kwargs: Any) -> None:  # noqa: ANN401
        """Start the container.

        Args:
            config_class: class of the configuration.
            kwargs: keys of the configuration.

        Raises:
            HyperRuntimeError: the container cannot be started; the message says why.
        """
        self.config = config_class(**kwargs)
        self.container: hr.Container = start_container(self.config.image, self.config.container, self.config.runtime)
        self.cleanup = weakref.finalize(self, self.container.close)  # the framework only drops its environments

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:  # noqa: ANN401 - as in the framework
        """Return the variables for the templates of prompts."""
        merged: dict[str, Any] = recursive_merge(
            self.config.model_dump(), dict(zip(_UNAME, platform.uname(), strict=True)), kwargs
        )
        return merged

    def serialize(self) -> dict[str, Any]:
        """Return what a trajectory records about its environment."""
        kind = f"{type(self).__module__}.{type(self).__name__}"
        return {"info": {"config": {"environment": self.config.model_dump(mode="json"), "environment_type": kind}}}

    def execute(self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None) -> dict[str, Any]:
        """Run the command of an action, and return its output and exit code.

        Args:
            action: has the command under ``command``.
            cwd: working directory; "" means the configuration's.
            timeout: seconds; None means the configuration's.

        Raises:
            Submitted: the first line of the output says that the task is done.
            HyperRuntimeError: the container ended; an agent cannot go on without it.
        """
        timeout_s = timeout or self.config.timeout
        forwarded = {name: os.environ[name] for name in self.config.forward_env if name in os.environ}
        result = self.container.exec(
            [*self.config.interpreter, action.get("command", "")],
            workdir=cwd or self.config.cwd,
            env={**forwarded, **self.config.env},
            timeout_s=timeout_s,
            merge_output=True,
        )
        text = result.stdout.decode(errors="replace")
        output = {"output": text, "returncode": result.exit_code, "exception_info": ""}
        if result.timed_out:
            why = f"the command was ended after {timeout_s} s"
            output |= {"returncode": -1, "exception_info": f"An error occurred while executing the command: {why}"}
            output["extra"] = {"exception_type": "TimeoutExpired", "exception": why}
        self._check_finished(output)
        return output

    def _check_finished(self, output: dict[str, Any]) -> None:
        first, *rest = output["output"].lstrip().splitlines(keepends=True) or [""]
        if first.strip() == _DONE and output["returncode"] == 0:
            submission = "".join(rest)
            extra = {"exit_status": "Submitted", "submission": submission}
            raise Submitted({"role": "exit", "content": submission, "extra": extra})
