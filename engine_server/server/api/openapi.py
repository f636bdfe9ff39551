"""The OpenAPI document: FastAPI's, with the models by which our endpoints parse bodies and render answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import msgspec
from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from engine_server.contract.wire.errors import ErrorBody

SCHEMAS = "#/components/schemas/"
JSON = "application/json"
SECURITY_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


class Body(NamedTuple):
    """The models of an endpoint that reads and writes JSON by itself."""

    request: type[BaseModel]
    # None: the answer has no fixed form.
    answer: type[msgspec.Struct] | None
    streamed: bool


# By endpoint function.
BODIES: dict[Callable[..., Any], Body] = {}


def body(
    request: type[BaseModel], answer: type[msgspec.Struct] | None = None, *, streamed: bool = False
) -> Callable[[Endpoint], Endpoint]:
    """Declare the model of an endpoint's request, and of its answer. streamed: it may also answer with events."""

    def declare(endpoint: Endpoint) -> Endpoint:
        BODIES[endpoint] = Body(request, answer, streamed)
        return endpoint

    return declare


def document(app: FastAPI, routers: Iterable[APIRouter], keys_required: bool) -> None:
    """Make `app.openapi` describe the endpoints of these routers completely. It is generated at the first request."""
    generate = app.openapi
    endpoints = [
        (route, BODIES[route.endpoint])
        for router in routers
        for route in router.routes
        if isinstance(route, APIRoute) and route.endpoint in BODIES
    ]

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = complete(generate(), endpoints, keys_required)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way to extend the document


def complete(
    schema: dict[str, Any], endpoints: list[tuple[APIRoute, Body]], keys_required: bool
) -> dict[str, Any]:
    """Add bodies, answers, errors and the keys to FastAPI's document."""
    bodies = [item for _, item in endpoints]
    requests = list(dict.fromkeys(item.request for item in bodies))
    answers = list(dict.fromkeys(item.answer for item in bodies if item.answer is not None))
    request_schemas, definitions = models_json_schema(
        [(model, "validation") for model in requests], ref_template=SCHEMAS + "{model}"
    )
    (error_schema, *answer_schemas), components = msgspec.json.schema_components(
        [ErrorBody, *answers], ref_template=SCHEMAS + "{name}"
    )
    # FastAPI's own components describe its errors, which we don't answer with.
    schema["components"] = {"schemas": {**definitions.get("$defs", {}), **components}}
    for route, item in endpoints:
        for method in route.methods or ():
            operation = schema["paths"][route.path_format][method.lower()]
            operation["requestBody"] = {
                "required": True,
                "content": {JSON: {"schema": request_schemas[item.request, "validation"]}},
            }
            content: dict[str, Any] = {JSON: {"schema": {}}}
            if item.answer is not None:
                content[JSON] = {"schema": answer_schemas[answers.index(item.answer)]}
            if item.streamed:
                content["text/event-stream"] = {"schema": {"type": "string"}}
            operation["responses"]["200"] = {"description": "The answer", "content": content}
    for path in schema["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
            operation["responses"]["default"] = {
                "description": "An error",
                "content": {JSON: {"schema": error_schema}},
            }
    if keys_required:
        schema["components"]["securitySchemes"] = SECURITY_SCHEMES
        schema["security"] = [{name: []} for name in SECURITY_SCHEMES]
    return schema
