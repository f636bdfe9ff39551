"""GET /server_info."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter
from starlette.responses import JSONResponse, Response

from engine_server.contract.base.version import VERSION

if TYPE_CHECKING:
    from engine_server.config import EngineConfig
    from engine_server.server.engine_host import EngineHost

# The settings that /server_info shows. They are listed one by one, so that a new one isn't published by accident:
# paths and addresses may contain credentials.
MODEL_SETTINGS = (
    "served_model_name", "max_model_len", "dtype", "runner", "supported_tasks", "vocab_size", "seed", "max_logprobs",
    "logprobs_mode", "batch_invariant", "enforce_eager", "skip_tokenizer_init",
    "refuses_pictures",
)  # fmt: skip
CACHE_SETTINGS = (
    "block_size", "num_gpu_blocks", "bytes_per_token", "num_state_slots", "bytes_per_state", "cache_dtype",
    "enable_prefix_caching", "gpu_memory_utilization",
)  # fmt: skip
SCHEDULER_SETTINGS = (
    "max_num_batched_tokens", "max_num_seqs", "enable_chunked_prefill", "policy", "async_scheduling", "max_queue",
    "max_num_partial_prefills", "long_prefill_token_threshold", "max_step_ms",
)  # fmt: skip


def routes(host: EngineHost) -> APIRouter:
    router = APIRouter()

    @router.get("/server_info", response_model=None)
    async def get_server_info() -> Response:
        """Return the settings of model, cache and scheduler, without secrets, and why it takes no pictures."""
        model = host.model
        shown = {"version": VERSION, "refuses_pictures": model.refuses_pictures or None}
        return JSONResponse({**shown, "vllm_config": describe(model.engine.config)})

    return router


def describe(config: EngineConfig) -> dict[str, dict[str, object]]:
    """Return the settings that anybody who may send requests may see."""
    return {
        "model_config": select(config.model_config, MODEL_SETTINGS),
        "cache_config": select(config.cache_config, CACHE_SETTINGS),
        "scheduler_config": select(config.scheduler_config, SCHEDULER_SETTINGS),
        "parallel_config": select(config.parallel_config, ("tensor_parallel_size",)),
        "device_config": select(config.device_config, ("device", "kernels_in_use", "memory_bytes")),
        "load_config": select(config.load_config, ("load_format",)),
    }


def select(settings: object, names: tuple[str, ...]) -> dict[str, object]:
    return {name: getattr(settings, name) for name in names}
