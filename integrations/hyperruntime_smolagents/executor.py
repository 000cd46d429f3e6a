"""The executor: the code of one agent runs in one container."""

from __future__ import annotations

import inspect
import re
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from smolagents import AgentError, Tool
from smolagents.local_python_executor import CodeOutput
from smolagents.monitoring import AgentLogger, LogLevel
from smolagents.remote_executors import RemotePythonExecutor
from smolagents.serialization import SafeSerializer

from hyperruntime.adapters.shared_runtime import start_container
from hyperruntime.errors import UnsupportedOptionError
from hyperruntime_smolagents.answers import read_answer
from hyperruntime_smolagents.python_kernel import PythonKernel

_NAME = "smolagents"
_MISSING = """import importlib.metadata, importlib.util, sys
for name in sys.argv[1:]:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        importlib.util.find_spec(name.replace("-", "_")) or print(name)
"""
# Makes the tool end the step with its answer in the framework's JSON; {} is the code that writes
# it.
_FINAL_ANSWER = """
import base64, json, pickle
from io import BytesIO
from typing import Any

class SerializationError(Exception):
    pass

class FinalAnswerException(BaseException):
    pass

{}

def final_answer(*args, _tool=final_answer, **kwargs):
    raise FinalAnswerException(SafeSerializer.dumps(_tool(*args, **kwargs)))
"""


class Executor(RemotePythonExecutor):
    """Runs the code of an agent in a container; what comes back is JSON, never a pickle.

    Attributes:
        container: the container.
    """

    def __init__(
        self,
        image: str = "base",
        additional_imports: Sequence[str] = (),
        *,
        runtime: str | None = None,
        container: Mapping[str, Any] | None = None,
        timeout_s: float | None = 120.0,
        logger: AgentLogger | None = None,
    ) -> None:
        """Start the container and Python in it.

        Args:
            image: reference of the image, which needs Python 3.8 or newer; or the name of a recipe.
            additional_imports: packages that the code needs; the image must have them, or the
                container a network.
            runtime: the engine; None means ``HYPERRUNTIME_RUNTIME``, else the first one that works.
            container: fields of the container, such as ``network`` and ``user``, and the table
                ``limits``.
            timeout_s: seconds after which a step is interrupted; None means no limit.
            logger: as for the framework's own executors; None logs nothing.

        Raises:
            HyperRuntimeError: the container cannot be started, or it lacks Python or a package; the
                message says why.
        """
        super().__init__(list(additional_imports), logger or AgentLogger(level=LogLevel.OFF))
        self.state: dict[str, Any] = {}  # the agent shows ``_print_outputs`` when a step fails
        self._timeout_s = timeout_s
        self._tools: dict[str, Tool] = {}
        self._variables: dict[str, Any] = {}
        self.container = start_container(image, container or {}, runtime)
        self.cleanup = weakref.finalize(self, self.container.close)
        try:
            if self.container.exec(["python3", "-c", "import ast, linecache"]).exit_code != 0:
                raise UnsupportedOptionError(
                    _NAME, "image", f"{image!r} has no Python 3; use an image that has it"
                )
            self.installed_packages = self.install_packages(self.additional_imports)
            self._kernel = PythonKernel(self.container)
        except BaseException:
            self.cleanup()
            raise

    def delete(self) -> None:
        """End the container, as :meth:`cleanup` does; may be called again."""
        self.cleanup()

    def install_packages(self, additional_imports: list[str]) -> list[str]:
        """Return the packages; those that the image lacks are installed if the container has a
        network.

        Raises:
            HyperRuntimeError: a package is missing and cannot be installed.
        """
        names = {
            re.split(r"[^\w.-]", package, maxsplit=1)[0]: package for package in additional_imports
        }
        found = (
            self.container.exec(["python3", "-c", _MISSING, *names]).check().stdout.decode().split()
        )
        missing = [names[name] for name in found if name in names]
        if missing and self.container.spec.network != "none":
            self.container.exec(["python3", "-m", "pip", "install", "--quiet", *missing]).check()
        elif missing:
            why = (
                f"the image has no {', '.join(missing)}, and the container has no network; "
                "install it in the image"
            )
            raise UnsupportedOptionError(_NAME, "additional_imports", why)
        return additional_imports

    def send_tools(self, tools: dict[str, Any]) -> None:
        """Define the tools in the container; their code runs there.

        Raises:
            UnsupportedOptionError: one of them is an agent.
        """
        if others := [name for name, tool in tools.items() if not isinstance(tool, Tool)]:
            why = (
                f"{others[0]!r} is an agent, and its code runs on the host; use agents without "
                "others"
            )
            raise UnsupportedOptionError(_NAME, "managed_agents", why)
        self._tools = tools
        super().send_tools(tools)
        if "final_answer" in tools:
            self.run_code_raise_errors(_FINAL_ANSWER.format(inspect.getsource(SafeSerializer)))

    def send_variables(self, variables: dict[str, Any]) -> None:
        """Set variables in the container; they are sent as JSON."""
        self._variables = variables
        super().send_variables(variables)

    def _patch_final_answer_with_exception(self, final_answer_tool: Tool) -> None:
        """Do nothing: the framework's patch works for one run, and needs numpy and pillow in the
        container.
        """

    def run_code_raise_errors(self, code: str) -> CodeOutput:
        """Run a step of the agent.

        Raises:
            AgentError: the code failed; the message is its traceback.
            HyperRuntimeError: the container ended.
        """
        self.state["_print_outputs"] = ""
        if not self._kernel.is_alive:  # the code ended it: begin again with what the agent sent
            self._kernel = PythonKernel(self.container)
            self.send_variables(self._variables)
            self.send_tools(self._tools)
        result = self._kernel.run(code, self._timeout_s)
        self.state["_print_outputs"] = result.logs
        if result.kind == self.FINAL_ANSWER_EXCEPTION:
            return CodeOutput(
                output=self._final_answer(result.value), logs=result.logs, is_final_answer=True
            )
        if result.error:
            raise AgentError(result.error, self.logger)
        return CodeOutput(output=result.output, logs=result.logs, is_final_answer=False)

    def _final_answer(self, text: str) -> Any:  # noqa: ANN401 - the agent's answer
        try:
            return read_answer(text)
        except Exception as error:  # the container may have sent anything
            why = f"the final answer has another form than the framework's JSON: {error!r}"
            raise AgentError(why, self.logger) from error
