"""The OpenAPI document of the service, made from its routes and the classes of its requests and
answers.

Source: OpenAPI Specification 3.1.
"""

from __future__ import annotations

from typing import Any

import hyperruntime
from hyperruntime.network.egress import Egress
from hyperruntime.remote.requests import CommandEnd, ErrorFacts, ProcessState
from hyperruntime.serve import models
from hyperruntime.serve.routes import ROUTES, Route
from hyperruntime.settings.schema import docs_of, schema_of

NDJSON = "application/x-ndjson"
BYTES = "application/octet-stream"
TAR = "application/x-tar"
_REFERENCE = "#/components/schemas/{}"
_SHARED: tuple[type, ...] = (
    Egress,
    models.ContainerState,
    ProcessState,
    CommandEnd,
    ErrorFacts,
    models.ErrorAnswer,
    models.ExecEvent,
)


def document(*, has_token: bool = True) -> dict[str, Any]:
    """Return the document as a JSON value.

    Args:
        has_token: whether requests must have a token.
    """
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    answers = [route.answer for route in ROUTES if route.answer is not None]
    schemas = {kind.__name__: schema_of(kind) for kind in (*_SHARED, *answers)}
    schemas |= {
        route.request.__name__: schema_of(route.request, without=(*route.parameters, *route.query))
        for route in ROUTES
        if route.takes == "json"
    }
    errors = {"description": "An error.", "content": _json(models.ErrorAnswer.__name__)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "hyperruntime",
            "version": hyperruntime.__version__,
            "description": "Containers, commands and files on the container engine of this machine.",
        },
        "paths": dict(paths),
        "components": {
            "schemas": dict(sorted(schemas.items())),
            "responses": {"Error": errors},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}] if has_token else [],
    }


def _operation(route: Route) -> dict[str, Any]:
    made: dict[str, Any] = {
        "operationId": route.handler.replace(".", "_"),
        "summary": route.summary,
        "responses": {
            str(route.status): _answer(route),
            "default": {"$ref": "#/components/responses/Error"},
        },
    }
    where = [
        *((name, "path") for name in route.parameters),
        *((name, "query") for name in route.query),
    ]
    if where:
        made["parameters"] = [_parameter(route, name, place) for name, place in where]
    if route.takes == "json":
        made["requestBody"] = {"required": True, "content": _json(route.request.__name__)}
    elif route.takes != "nothing":
        made["requestBody"] = {
            "required": True,
            "content": {TAR if route.takes == "archive" else BYTES: {}},
        }
    return made


def _parameter(route: Route, name: str, place: str) -> dict[str, Any]:
    schema = schema_of(route.request)
    value = dict(schema["properties"][name])
    return {
        "name": name,
        "in": place,
        "required": name in schema.get("required", ()),
        "description": value.pop("description"),
        "schema": value,
    }


def _answer(route: Route) -> dict[str, Any]:
    if route.sends == "nothing":
        return {"description": "Done."}
    if route.answer is None:
        return {
            "description": route.summary,
            "content": {TAR if route.sends == "archive" else BYTES: {}},
        }
    made: dict[str, Any] = {
        "description": docs_of(route.answer)[""],
        "content": _json(route.answer.__name__),
    }
    if route.sends == "command":
        made["description"] += " With `stream`, one event in each line."
        made["content"][NDJSON] = {"schema": {"$ref": _REFERENCE.format(models.ExecEvent.__name__)}}
    return made


def _json(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REFERENCE.format(name)}}}
