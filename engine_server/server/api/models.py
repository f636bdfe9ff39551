"""GET /v1/models, and the check that a request names a served model."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from engine_server.contract.errors import ErrorCode
from engine_server.contract.headers import ADAPTER, DEPLOYMENT
from engine_server.contract.quoting import quote
from engine_server.server.api.answers import json_response
from engine_server.server.http.errors import ApiError

if TYPE_CHECKING:
    from engine_server.server.engine_host import EngineHost

# The models' creation time, in seconds since the epoch: the server's start.
CREATED = int(time.time())


class ModelCard(msgspec.Struct):
    """One served name."""

    id: str
    root: str
    max_model_len: int
    object: str = "model"
    created: int = CREATED
    owned_by: str = "fairlead"
    parent: str | None = None


class ModelList(msgspec.Struct):
    """All served names."""

    data: list[ModelCard]
    object: str = "list"


def routes(host: EngineHost) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/models", response_model=None)
    async def get_models() -> Response:
        return json_response(model_list(host))

    @router.get("/v1/models/{name:path}", response_model=None)
    async def get_model(name: str) -> Response:
        check_model(host, name, {})
        return json_response(model_card(host, name))

    return router


def model_card(host: EngineHost, name: str) -> ModelCard:
    return ModelCard(name, host.served_names[0], host.max_model_len)


def model_list(host: EngineHost) -> ModelList:
    return ModelList([model_card(host, name) for name in host.served_names])


def check_model(host: EngineHost, name: str, headers: Mapping[str, str]) -> None:
    """Raise ApiError 404 for a model, or for a deployment or an adapter of the router's, that isn't served here.

    Where the router names the deployment, the body may name any model: the router has resolved the name already.
    """
    if adapter := headers.get(ADAPTER):
        raise not_served(f"the adapter {quote(adapter)} is not served here: there are no adapters")
    served = ", ".join(host.served_names)
    deployment = headers.get(DEPLOYMENT)
    if deployment is None:
        if name not in host.served_names:
            raise not_served(f"the model {quote(name)} is not served here; served: {served}")
    elif deployment not in host.served_names:
        raise not_served(f"the deployment {quote(deployment)} is not served here; served: {served}")


def not_served(message: str) -> ApiError:
    return ApiError(404, message, param="model", code=ErrorCode.MODEL_NOT_FOUND)
