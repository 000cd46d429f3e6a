"""The deployment: starts a container, and ends it."""

from __future__ import annotations

import weakref
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from swerex.deployment.abstract import AbstractDeployment
from swerex.deployment.hooks.abstract import CombinedDeploymentHook, DeploymentHook
from swerex.exceptions import DeploymentNotStartedError, DeploymentStartupError
from swerex.runtime.abstract import IsAliveResponse
from swerex.utils.log import get_logger

import hyperruntime as hr
from hyperruntime.adapters.shared_runtime import astart_container
from hyperruntime.concurrency.blocking import STARTS, blocking
from hyperruntime_swe_rex.runtime import Runtime


class DeploymentConfig(BaseModel):
    """The keys of the configuration.

    Attributes:
        image: reference of the image, or the name of a recipe such as ``base``.
        runtime: the engine; None means ``HYPERRUNTIME_RUNTIME``, else the first one that works.
        container: more fields of the container, such as ``network``, ``user``, ``pull``, and the
            table ``limits``.
        type: the name by which SWE-ReX recognises this configuration.
    """

    model_config = ConfigDict(extra="forbid")

    image: str = "base"
    runtime: str | None = None
    container: dict[str, Any] = {}
    type: Literal["hyperruntime"] = "hyperruntime"

    def get_deployment(self) -> AbstractDeployment:
        """Return the deployment, which has not started."""
        return Deployment(**self.model_dump())


class Deployment(AbstractDeployment):
    """Starts one container; it ends with :meth:`stop`, with this object, and at the latest with the
    process.
    """

    def __init__(self, **kwargs: Any) -> None:  # noqa: ANN401 - as in the framework
        """Read the configuration; ``kwargs`` are its keys."""
        self.config = DeploymentConfig(**kwargs)
        self.logger = get_logger("rex-deploy")
        self._runtime: Runtime | None = None
        self._hooks = CombinedDeploymentHook()

    def add_hook(self, hook: DeploymentHook) -> None:
        """Add an object that is notified of each step."""
        self._hooks.add_hook(hook)

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Return whether the container answers; raises DeploymentNotStartedError before the
        start.
        """
        return await self.runtime.is_alive(timeout=timeout)

    async def start(self) -> None:
        """Start the container; raises DeploymentStartupError, which says why it cannot be
        started.
        """
        if self._runtime is not None:
            raise DeploymentStartupError("the deployment has started already; stop it first")
        self._hooks.on_custom_step("Starting container")
        try:
            container = await astart_container(
                self.config.image, self.config.container, self.config.runtime
            )
        except hr.HyperRuntimeError as error:
            raise DeploymentStartupError(str(error)) from error
        self._runtime = Runtime(container)
        weakref.finalize(self, container.close)

    async def stop(self) -> None:
        """End the container; may be called again."""
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            await blocking(STARTS, runtime.container.close)

    @property
    def runtime(self) -> Runtime:
        """The runtime; raises DeploymentNotStartedError before the start."""
        if self._runtime is None:
            raise DeploymentNotStartedError
        return self._runtime

    def __del__(self) -> None:
        """Do nothing: the base class would run an event loop here, and the container is closed
        without one.
        """
