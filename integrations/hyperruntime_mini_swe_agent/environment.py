"""The environment: each command runs in one container, as with mini-swe-agent's own environment for
Docker.
"""

from __future__ import annotations

import os
import platform
import weakref
from collections.abc import Mapping
from typing import Any

from minisweagent.exceptions import Submitted
from minisweagent.utils.serialize import recursive_merge
from pydantic import BaseModel, model_validator

import hyperruntime as hr
from hyperruntime.adapters.shared_runtime import start_container
from hyperruntime.errors import unknown_name
from hyperruntime.settings.reader import to_json
from hyperruntime.units import parse_duration

_DONE = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"  # the first line of the output that ends a task
_UNAME = ("system", "node", "release", "version", "machine", "processor")
_DAY_S = 86_400.0
_INSTEAD = {  # of keys of the framework's environments for other programs
    "executable": "use `runtime`, which names an engine",
    "run_args": "use the table `container`, such as {network: bridge, user: agent, limits: {cpus: 2}}",
    "pull_timeout": "remove it: a pull has no time limit",
    "global_args": "use the table `container`",
    "exec_args": "use the table `container`",
}


class EnvironmentConfig(BaseModel):
    """The keys of the configuration; those of ``DockerEnvironment`` that it shares have the same
    meaning.

    Attributes:
        image: reference of the image, or the name of a recipe such as ``base``.
        cwd: working directory of commands.
        env: variables of commands.
        forward_env: names of variables of the host that commands get.
        timeout: seconds after which a command is ended with all its processes.
        interpreter: the program that runs a command.
        container_timeout: how long the container may exist, as ``sleep`` takes it, such as ``2h``;
            None means no limit.
        runtime: the engine; None means ``HYPERRUNTIME_RUNTIME``, else the first one that works.
        container: more fields of the container, such as ``network``, ``user``, ``pull``, and the
            table ``limits``.
    """

    image: str
    cwd: str = "/"
    env: dict[str, str] = {}
    forward_env: list[str] = []
    timeout: int = 30
    interpreter: list[str] = ["bash", "-lc"]
    container_timeout: str | None = None
    runtime: str | None = None
    container: dict[str, Any] = {}

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        for key in sorted(given.keys() - cls.model_fields.keys()):
            if key in _INSTEAD:
                raise ValueError(f"{key!r} has no meaning here; {_INSTEAD[key]}")
            raise ValueError(
                f"{unknown_name('key', key, cls.model_fields)}; fields of the container are in "
                "`container`"
            )
        return (
            {**given, "container": to_json(given["container"])} if "container" in given else given
        )

    def container_fields(self) -> dict[str, Any]:
        """Return the fields of the container; a limit in ``container`` overrides
        ``container_timeout``.
        """
        if self.container_timeout in (None, "inf", "infinity"):
            return self.container
        limits = {
            "wall_s": _sleep_s(str(self.container_timeout)),
            **self.container.get("limits", {}),
        }
        return {**self.container, "limits": limits}


def _sleep_s(text: str) -> float:
    """Return the seconds of an argument of ``sleep``. Source: the manual of GNU coreutils, "sleep
    invocation".
    """
    if text.endswith("d"):
        return parse_duration(text[:-1], "container_timeout") * _DAY_S
    return parse_duration(text, "container_timeout")


class Environment:
    """Runs the commands of one agent in one container.

    Attributes:
        config: the configuration.
        container: the container.
    """

    def __init__(
        self,
        *,
        config_class: type[EnvironmentConfig] = EnvironmentConfig,
        **kwargs: Any,  # noqa: ANN401
    ) -> None:
        """Start the container.

        Args:
            config_class: class of the configuration.
            kwargs: keys of the configuration.

        Raises:
            HyperRuntimeError: the container cannot be started; the message says why.
        """
        self.config = config_class(**kwargs)
        self.container: hr.Container = start_container(
            self.config.image, self.config.container_fields(), self.config.runtime
        )
        # the framework only drops its environments
        self.cleanup = weakref.finalize(self, self.container.close)

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:  # noqa: ANN401 - as in the framework
        """Return the variables for the templates of prompts."""
        merged: dict[str, Any] = recursive_merge(
            self.config.model_dump(), dict(zip(_UNAME, platform.uname(), strict=True)), kwargs
        )
        return merged

    def serialize(self) -> dict[str, Any]:
        """Return what a trajectory records about its environment."""
        kind = f"{type(self).__module__}.{type(self).__name__}"
        return {
            "info": {
                "config": {
                    "environment": self.config.model_dump(mode="json"),
                    "environment_type": kind,
                }
            }
        }

    def execute(
        self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None
    ) -> dict[str, Any]:
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
        forwarded = {
            name: os.environ[name] for name in self.config.forward_env if name in os.environ
        }
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
            why = f"the command timed out after {timeout_s} seconds"
            output |= {
                "returncode": -1,
                "exception_info": f"An error occurred while executing the command: {why}",
            }
            output["extra"] = {"exception_type": "TimeoutExpired", "exception": why}
        first, *rest = text.lstrip().splitlines(keepends=True) or [""]
        if first.strip() == _DONE and output["returncode"] == 0:
            if result.truncated:
                why = "the output is too long, so this was not submitted; submit less"
                return output | {"returncode": -1, "exception_info": f"An error occurred: {why}"}
            submission = "".join(rest)
            extra = {"exit_status": "Submitted", "submission": submission}
            raise Submitted({"role": "exit", "content": submission, "extra": extra})
        return output
