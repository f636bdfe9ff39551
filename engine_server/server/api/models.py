"""GET /v1/models, and the check that a request names a served model."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from engine_server.contract.base.quoting import quote
from engine_server.contract.wire.errors import ErrorCode
from engine_server.contract.wire.router_head import RouterHead
from engine_server.server.api.openai_answer import json_response
from engine_server.server.generation.request_context import ServedModel
from engine_server.server.http.errors import ApiError

if TYPE_CHECKING:
    from engine_server.server.engine_host import EngineHost
    from engine_server.server.loaded_model import LoadedModel

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
    # Kinds of parts that a conversation may have.
    input_modalities: tuple[str, ...] = ("text",)


class ModelList(msgspec.Struct):
    """All served names."""

    data: list[ModelCard]
    object: str = "list"


def routes(host: EngineHost) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/models", response_model=None)
    async def get_models() -> Response:
        return json_response(model_list(host.model))

    @router.get("/v1/models/{name:path}", response_model=None)
    async def get_model(name: str) -> Response:
        served_model(host.model, name, RouterHead())
        return json_response(model_card(host.model, name))

    return router


def model_card(model: LoadedModel, name: str) -> ModelCard:
    adapter = model.adapters.get(name)
    base = model.served_names[0]
    takes_pictures = model.takes_pictures and (adapter is None or adapter.prompt_adapter is None)
    modalities = ("text", "image") if takes_pictures else ("text",)
    if adapter is None:
        return ModelCard(name, base, model.max_model_len, input_modalities=modalities)
    context = model.max_model_len - adapter.num_virtual
    return ModelCard(name, adapter.uri, context, parent=base, input_modalities=modalities)


def model_list(model: LoadedModel) -> ModelList:
    return ModelList([model_card(model, name) for name in (*model.served_names, *model.adapters.names)])


def served_model(model: LoadedModel, name: str | None, router: RouterHead) -> ServedModel:
    """Return the model or the adapter of a request, which may leave it out.

    Raises ApiError 404 for one that isn't served here. Where the router names the deployment, and perhaps an adapter,
    the body may name any model: the router has resolved the name already.
    """
    if not name:
        name = model.served_names[0]
    deployment, wanted = router.deployment, router.adapter
    # A router's callers may not all use, nor know, each adapter.
    names = (*model.served_names, *model.adapters.names) if deployment is None else model.served_names
    served = ", ".join(names)
    if deployment is not None and deployment not in model.served_names:
        raise not_served(f"the deployment {quote(deployment)} is not served here; served: {served}")
    if wanted is None and (deployment is not None or name in model.served_names):
        return ServedModel(name, model.fingerprint, model.max_model_len)
    adapter = model.adapters.get(name if wanted is None else wanted)
    if adapter is not None:
        fingerprint, context = (
            adapter.fingerprint(model.fingerprint),
            model.max_model_len - adapter.num_virtual,
        )
        return ServedModel(name, fingerprint, context, adapter.lora, adapter.prompt_adapter)
    if wanted is not None:
        raise not_served(f"the adapter {quote(wanted)} is not served here; served: {served}")
    raise not_served(f"the model {quote(name)} is not served here; served: {served}")


def not_served(message: str) -> ApiError:
    return ApiError(ErrorCode.MODEL_NOT_FOUND, message, param="model")
