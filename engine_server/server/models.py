"""GET /v1/models, and the check that a request is for a model that is served here."""

from __future__ import annotations

import time

import msgspec

from engine_server.contract.errors import ErrorCode
from engine_server.server.engine_host import EngineHost
from engine_server.server.errors import ApiError

STARTED = int(time.time())


class ModelCard(msgspec.Struct):
    id: str
    root: str
    max_model_len: int
    object: str = "model"
    created: int = STARTED
    owned_by: str = "fairlead"
    parent: str | None = None


class ModelList(msgspec.Struct):
    data: list[ModelCard]
    object: str = "list"


def model_card(host: EngineHost, name: str) -> ModelCard:
    check_model(host, name)
    return ModelCard(name, host.served_names[0], host.max_model_len)


def model_list(host: EngineHost) -> ModelList:
    return ModelList([model_card(host, name) for name in host.served_names])


def check_model(host: EngineHost, name: str) -> None:
    if name not in host.served_names:
        served = ", ".join(host.served_names)
        raise ApiError(
            404,
            f"the model {name!r} is not served here; served: {served}",
            param="model",
            code=ErrorCode.MODEL_NOT_FOUND,
        )
