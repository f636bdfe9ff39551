"""The admin API: sleep, pause, the prefix cache and profiles, with vLLM's paths and query parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import JSONResponse, Response

from engine_server.server.http.errors import ApiError
from engine_server.server.http.gate import unavailable

if TYPE_CHECKING:
    from engine_server.server.engine_host import EngineHost

Tag = Literal["weights", "kv_cache"]
PauseMode = Literal["abort", "wait", "keep"]
ADAPTER_PATHS = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter")


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
        await host.engine.sleep(level)
        return Response()

    @router.post("/wake_up", response_model=None)
    async def wake_up(tags: Annotated[list[Tag] | None, Query()] = None) -> Response:
        """Wake the parts with these tags, by default all."""
        await host.engine.wake_up(list(tags) if tags else None)
        return Response()

    @router.get("/is_sleeping", response_model=None)
    async def is_sleeping() -> Response:
        return JSONResponse({"is_sleeping": await host.engine.is_sleeping()})

    @router.post("/pause", response_model=None)
    async def pause(mode: PauseMode = "abort", clear_cache: bool = True) -> Response:
        """Run no step until /resume. The mode says what happens to requests in flight; new ones wait."""
        await host.engine.pause_generation(mode=mode, clear_cache=clear_cache)
        return JSONResponse({"status": "paused"})

    @router.post("/resume", response_model=None)
    async def resume() -> Response:
        await host.engine.resume_generation()
        return JSONResponse({"status": "resumed"})

    @router.get("/is_paused", response_model=None)
    async def is_paused() -> Response:
        return JSONResponse({"is_paused": await host.engine.is_paused()})

    @router.post("/reset_prefix_cache", response_model=None)
    async def reset_prefix_cache(reset_running_requests: bool = False) -> Response:
        """Empty the prefix cache; 409 while requests hold blocks, unless these are computed again."""
        if not await host.engine.reset_prefix_cache(reset_running_requests):
            message = "requests in flight hold blocks of the prefix cache; reset_running_requests=true preempts them"
            raise ApiError(409, message)
        return Response()

    @router.post("/start_profile", response_model=None)
    async def start_profile() -> Response:
        """Trace the core into the folder --torch-profiler-dir."""
        await host.engine.start_profile()
        return Response()

    @router.post("/stop_profile", response_model=None)
    async def stop_profile() -> Response:
        """Write the trace."""
        await host.engine.stop_profile()
        return Response()

    for path in ADAPTER_PATHS:
        router.add_api_route(path, adapters_unsupported, methods=["POST"], response_model=None)
    return router


async def adapters_unsupported() -> Response:
    """Return 501: adapters are not supported."""
    raise ApiError(501, "adapters are not supported yet")


def check_parameters(request: Request) -> None:
    """Raise ApiError 400 for a query parameter that the endpoint doesn't have."""
    allowed = [parameter.alias for parameter in request.scope["route"].dependant.query_params]
    for name in request.query_params:
        if name not in allowed:
            there = f"there are {', '.join(allowed)}" if allowed else "the endpoint takes none"
            raise ApiError(400, f"there is no parameter {name[:100]!r}; {there}", param=name[:100])
