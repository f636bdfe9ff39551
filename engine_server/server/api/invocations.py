"""POST /invocations: SageMaker's one endpoint, which hands a request to the endpoint that its body is for."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from engine_server.contract.wire.errors import ErrorCode
from engine_server.server.api.tasks import check_task
from engine_server.server.http.errors import ApiError

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

    from engine_server.server.engine_host import EngineHost
    from engine_server.server.loaded_model import LoadedModel

# By a field that only bodies for one of these endpoints have: the endpoints, each with a task that it needs.
ENDPOINTS: dict[str, tuple[tuple[str, str], ...]] = {
    "query": (("/rerank", "score"), ("/rerank", "embed")),
    **dict.fromkeys(("queries", "text_1", "data_1"), (("/score", "score"), ("/score", "embed"))),
    "task": (("/pooling", "encode"),),
    "messages": (
        ("/v1/chat/completions", "generate"),
        ("/v1/embeddings", "embed"),
        ("/classify", "classify"),
    ),
    "prompt": (("/v1/completions", "generate"),),
    "input": (("/v1/embeddings", "embed"), ("/classify", "classify")),
}


def routes(host: EngineHost) -> APIRouter:
    router = APIRouter()

    @router.post("/invocations", response_model=None)
    async def post_invocations(request: Request) -> Response:
        body = await request.body()
        return Forwarded(find_endpoint(host.model, body), body)

    return router


def find_endpoint(model: LoadedModel, body: bytes) -> str:
    """Return the path of the endpoint for a body. Raises ApiError 400."""
    try:
        fields: Collection[str] = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError as error:
        raise ApiError(ErrorCode.INVALID_JSON, f"the body is not a JSON object: {error}") from None
    endpoints = next((ENDPOINTS[name] for name in ENDPOINTS if name in fields), None)
    if endpoints is None:
        raise ApiError(
            ErrorCode.MISSING_FIELD, f"the body has no field that names its endpoint: {', '.join(ENDPOINTS)}"
        )
    check_task(model, *dict.fromkeys(task for _, task in endpoints))
    return next(path for path, task in endpoints if task in model.tasks)


class Forwarded(Response):
    """The answer of another endpoint of this application to the same body."""

    def __init__(self, path: str, body: bytes) -> None:
        super().__init__()
        self._path = path
        self._request = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        messages = iter([{"type": "http.request", "body": self._request, "more_body": False}])

        async def replay() -> Message:
            return next(messages, {"type": "http.disconnect"})

        path = scope.get("root_path", "") + self._path
        await scope["app"].router({**scope, "path": path, "raw_path": path.encode()}, replay, send)
