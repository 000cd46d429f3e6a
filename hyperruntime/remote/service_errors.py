"""Errors of a service of containers."""

from __future__ import annotations

from hyperruntime.errors import HyperRuntimeError


class ServiceError(HyperRuntimeError):
    """A service of containers cannot do what a request asks."""


class ResourceNotFoundError(ServiceError, LookupError):
    """A service has no container or process of this name."""


class NotAllowedError(ServiceError, PermissionError):
    """The options of a service forbid what a request asks."""


class CapacityError(ServiceError):
    """A service has as many containers, processes, commands or bytes of requests as it may have at
    once.
    """


class InputNotReadError(ServiceError):
    """A process does not read its input, and no more of it is kept."""


class RequestError(ServiceError):
    """An HTTP request has a wrong token, host, path, method, body type or body size.

    Attributes:
        status: the status of the answer.
    """

    def __init__(self, status: int, why: str) -> None:
        """Keep the status and the message."""
        self.status = status
        super().__init__(why)
