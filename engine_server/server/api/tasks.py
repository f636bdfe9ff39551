"""The tasks of a model, and the check that it can do what an endpoint is for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import Depends

from engine_server.contract.wire.errors import ErrorCode
from engine_server.requests.pooling_params import unsupported
from engine_server.server.http.errors import ApiError

if TYPE_CHECKING:
    from engine_server.server.engine_host import EngineHost
    from engine_server.server.loaded_model import LoadedModel

# By task: the endpoints, of which the error for another endpoint names some.
ENDPOINTS = {
    "generate": ("/v1/chat/completions", "/v1/completions"),
    "embed": ("/v1/embeddings", "/score", "/rerank"),
    "classify": ("/classify",),
    "score": ("/score", "/rerank"),
    "encode": ("/pooling",),
}


def needs_task(host: EngineHost, *tasks: str) -> Any:
    """Return the dependency of an endpoint that needs one of `tasks`."""

    async def check() -> None:
        check_task(host.model, *tasks)

    return Depends(check)


def check_task(model: LoadedModel, *tasks: str) -> None:
    """Raise ApiError 400, which names the model's own endpoints, unless the model can do one of `tasks`."""
    if set(tasks).isdisjoint(model.tasks):
        endpoints = dict.fromkeys(path for task in model.tasks for path in ENDPOINTS[task])
        raise ApiError(
            ErrorCode.UNSUPPORTED_VALUE,
            f"{unsupported(*tasks)}, {model.served_names[0]!r}; it can {', '.join(model.tasks)}: use "
            f"{', '.join(endpoints)}",
            param="model",
        )
