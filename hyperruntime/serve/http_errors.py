"""Errors as answers of HTTP: one table of status codes, one form of the body."""

from __future__ import annotations

import json
from collections.abc import Mapping

from aiohttp import web

from hyperruntime.errors import (
    ContainerLostError,
    ContainerStateError,
    EngineUnavailableError,
    ExecLostError,
    ExecStartError,
    HyperRuntimeError,
    ImageNotFoundError,
    ImagePullError,
    SpecError,
    TransferError,
    TransferTimeoutError,
    UnsupportedOptionError,
    WorkdirNotFoundError,
)
from hyperruntime.remote.requests import facts_of
from hyperruntime.remote.service_errors import (
    CapacityError,
    InputNotReadError,
    NotAllowedError,
    RequestError,
    ResourceNotFoundError,
)
from hyperruntime.serve.models import ErrorAnswer
from hyperruntime.settings.reader import to_json
from hyperruntime.transfer.file_errors import (
    FileTooLargeError,
    PathIsDirectoryError,
    PathNotDirectoryError,
    PathNotFoundError,
    PathPermissionError,
)

HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


STATUS: Mapping[type[HyperRuntimeError], int] = {
    SpecError: 400,
    NotAllowedError: 403,
    PathPermissionError: 403,
    ResourceNotFoundError: 404,
    ImageNotFoundError: 404,
    PathNotFoundError: 404,
    WorkdirNotFoundError: 404,
    ContainerStateError: 409,
    ExecStartError: 409,
    InputNotReadError: 409,
    PathIsDirectoryError: 409,
    PathNotDirectoryError: 409,
    ContainerLostError: 410,
    ExecLostError: 410,
    FileTooLargeError: 413,
    TransferError: 422,
    UnsupportedOptionError: 422,
    CapacityError: 429,
    ImagePullError: 502,
    EngineUnavailableError: 503,
    TransferTimeoutError: 504,
}
"""The status of each error; of others that of their nearest base, else 500."""


def status_of(error: HyperRuntimeError) -> int:
    """Return the status of an error."""
    if isinstance(error, RequestError):
        return error.status
    return next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)


def error_response(error: HyperRuntimeError) -> web.Response:
    """Return the answer for an error."""
    body = json.dumps(to_json(ErrorAnswer(error=facts_of(error)))).encode()
    status = status_of(error)
    headers = {**HEADERS, "WWW-Authenticate": "Bearer"} if status == 401 else HEADERS  # RFC 6750
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)
