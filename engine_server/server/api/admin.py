"""The admin API: sleep, pause, the prefix cache, profiles and adapters, with vLLM's paths and parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse, PlainTextResponse, Response

from engine_server.contract.base.quoting import quote
from engine_server.contract.cluster.adapters import ADAPTERS_PATH, WantedAdapters
from engine_server.contract.wire.errors import ErrorCode
from engine_server.requests.errors import InvalidRequestError
from engine_server.server.api.openai_answer import json_response
from engine_server.server.gate import unavailable
from engine_server.server.http.errors import ApiError, refusal
from engine_server.server.wanted_adapters import is_ours

if TYPE_CHECKING:
    from engine_server.server.engine_host import EngineHost

Tag = Literal["weights", "kv_cache"]
PauseMode = Literal["abort", "wait", "keep"]


class LoadAdapter(BaseModel):
    """An adapter to serve."""

    model_config = ConfigDict(strict=True)

    lora_name: Annotated[str, Field(min_length=1)]
    # A URI, as that of a model.
    lora_path: Annotated[str, Field(min_length=1)]
    # Replace an adapter of this name.
    load_inplace: bool = False


class UnloadAdapter(BaseModel):
    """An adapter to serve no longer."""

    model_config = ConfigDict(strict=True)

    lora_name: Annotated[str, Field(min_length=1)]


def routes(host: EngineHost) -> APIRouter:
    def check_engine() -> None:
        """Raise ApiError while there is no engine; unlike the API's requests, these are never too many."""
        if error := unavailable(host):
            raise error

    router = APIRouter(tags=["admin"], dependencies=[Depends(check_parameters), Depends(check_engine)])

    @router.post("/sleep", response_model=None)
    async def sleep(level: Annotated[int, Query(ge=1, le=2)] = 1, mode: Literal["keep"] = "keep") -> Response:
        """Free the KV cache; level 1 moves a GPU's weights to the host, level 2 drops them.

        Requests in flight are kept, and continue once the engine is awake.
        """
        await host.model.engine.sleep(level)
        return Response()

    @router.post("/wake_up", response_model=None)
    async def wake_up(tags: Annotated[list[Tag] | None, Query()] = None) -> Response:
        """Wake the parts with these tags, by default all."""
        await host.model.engine.wake_up(list(tags) if tags else None)
        return Response()

    @router.get("/is_sleeping", response_model=None)
    async def is_sleeping() -> Response:
        return JSONResponse({"is_sleeping": await host.model.engine.is_sleeping()})

    @router.post("/pause", response_model=None)
    async def pause(mode: PauseMode = "abort", clear_cache: bool = True) -> Response:
        """Run no step until /resume. The mode says what happens to requests in flight; new ones wait."""
        await host.model.engine.pause_generation(mode=mode, clear_cache=clear_cache)
        return JSONResponse({"status": "paused"})

    @router.post("/resume", response_model=None)
    async def resume() -> Response:
        await host.model.engine.resume_generation()
        return JSONResponse({"status": "resumed"})

    @router.get("/is_paused", response_model=None)
    async def is_paused() -> Response:
        return JSONResponse({"is_paused": await host.model.engine.is_paused()})

    @router.post("/reset_prefix_cache", response_model=None)
    async def reset_prefix_cache(reset_running_requests: bool = False) -> Response:
        """Empty the prefix cache; 409 while requests hold blocks, unless these are computed again."""
        if not await host.model.engine.reset_prefix_cache(reset_running_requests):
            message = "requests in flight hold blocks of the prefix cache; reset_running_requests=true preempts them"
            raise ApiError(ErrorCode.OPERATION_REFUSED, message)
        return Response()

    @router.post("/start_profile", response_model=None)
    async def start_profile() -> Response:
        """Trace the core into the folder --torch-profiler-dir."""
        await host.model.engine.start_profile()
        return Response()

    @router.post("/stop_profile", response_model=None)
    async def stop_profile() -> Response:
        """Write the trace."""
        await host.model.engine.stop_profile()
        return Response()

    @router.post("/v1/load_lora_adapter", response_model=None)
    async def load_lora_adapter(body: LoadAdapter) -> Response:
        """Serve an adapter by a name. Requests in flight go on with what they began with."""
        try:
            await host.model.adapters.load(body.lora_name, body.lora_path, body.load_inplace)
        except InvalidRequestError as error:
            raise refusal(error, {}) from None
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")

    @router.post("/v1/unload_lora_adapter", response_model=None)
    async def unload_lora_adapter(body: UnloadAdapter) -> Response:
        """Stop serving an adapter. Requests in flight go on."""
        if not await host.model.adapters.unload(body.lora_name):
            raise ApiError(
                ErrorCode.MODEL_NOT_FOUND,
                f"there is no adapter {quote(body.lora_name)}",
                param="lora_name",
            )
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")

    @router.put(ADAPTERS_PATH, response_model=None)
    async def put_adapters(request: Request) -> Response:
        """Serve exactly these adapters besides those that were loaded one by one, as soon as they are loaded."""
        try:
            wanted = msgspec.json.decode(await request.body(), type=WantedAdapters)
            given = wanted.by_name()
        except ValueError as error:
            raise ApiError(ErrorCode.INVALID_VALUE, str(error), param="adapters") from None
        if is_ours(wanted):
            host.model.adapter_set.want(given)
        return json_response(host.model.adapter_set.states())

    @router.get(ADAPTERS_PATH, response_model=None)
    async def get_adapters() -> Response:
        """Return the state of each adapter that should be served."""
        return json_response(host.model.adapter_set.states())

    return router


def check_parameters(request: Request) -> None:
    """Raise ApiError 400 for a query parameter that the endpoint doesn't have."""
    allowed = [parameter.alias for parameter in request.scope["route"].dependant.query_params]
    for name in request.query_params:
        if name not in allowed:
            there = f"there are {', '.join(allowed)}" if allowed else "the endpoint takes none"
            raise ApiError(
                ErrorCode.INVALID_VALUE, f"there is no parameter {name[:100]!r}; {there}", param=name[:100]
            )
