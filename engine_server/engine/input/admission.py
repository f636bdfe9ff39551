"""Checks of a request's arguments other than its prompt, so that every admitted request can be sent to the core."""

import time
from collections.abc import Mapping
from typing import TypeVar

from engine_server.config import LoRAConfig, PromptAdapterConfig
from engine_server.requests import validation as valid
from engine_server.requests.adapters import LoRARequest, PromptAdapterRequest
from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.pooling_params import PoolingParams, unsupported
from engine_server.requests.sampling_params import SamplingParams

P = TypeVar("P", SamplingParams, PoolingParams)


def check_params(params: object, kind: type[P]) -> P:
    """Return a checked copy of a request's parameters, since fields may have been assigned after construction.

    The copy is exactly a `kind`, since a subclass has a different tag in messages.
    """
    if not isinstance(params, kind):
        does = "generates" if kind is SamplingParams else "pools"
        task = (params.task or "encode") if isinstance(params, PoolingParams) else "generate"
        raise InvalidRequestError(
            f"{unsupported(task)}: it {does}, and takes {kind.__name__}; params is a {type(params).__name__}",
            "params",
        )
    return kind(**{name: getattr(params, name) for name in kind.__struct_fields__})


def check_arrival_time(arrival_time: object) -> float:
    """Return an arrival time in seconds of the monotonic clock.

    None is now, and so is a later time, such as one of the wall clock: no latency may be negative.
    """
    now = time.monotonic()
    return now if arrival_time is None else min(now, valid.number("arrival_time", arrival_time))


def check_lora(lora: object, config: LoRAConfig | None) -> LoRARequest | None:
    """Return a checked copy of the adapter that a request names, or None.

    config: None if the engine serves no adapters.
    """
    if lora is None:
        return None
    if config is None:
        raise InvalidRequestError(
            "lora_request is given, and the engine was started without enable_lora", "lora_request"
        )
    if not isinstance(lora, LoRARequest):
        valid.refuse_type("lora_request", lora, "LoRARequest")
    return LoRARequest(
        valid.nonempty_text("lora_name", lora.lora_name),
        valid.integer("lora_int_id", lora.lora_int_id, 1),
        valid.nonempty_text("lora_path", lora.lora_path),
    )


def check_prompt_adapter(
    named: object, config: PromptAdapterConfig | None, context: int
) -> PromptAdapterRequest | None:
    """Return a checked copy of the prompt adapter that a request names, or None.

    config: None if the engine serves no prompt adapters. context: maximum length of a sequence, in tokens.
    """
    if named is None:
        return None
    if config is None:
        raise InvalidRequestError(
            "prompt_adapter_request is given, and the engine was started without enable_prompt_adapter",
            "prompt_adapter_request",
        )
    if not isinstance(named, PromptAdapterRequest):
        valid.refuse_type("prompt_adapter_request", named, "PromptAdapterRequest")
    count = valid.integer("prompt_adapter_num_virtual_tokens", named.prompt_adapter_num_virtual_tokens, 1)
    if count > config.max_prompt_adapter_token:
        raise InvalidRequestError(
            f"prompt_adapter_num_virtual_tokens is {count}; max_prompt_adapter_token of the engine is "
            f"{config.max_prompt_adapter_token}",
            "prompt_adapter_num_virtual_tokens",
        )
    if count + 2 > context:
        raise InvalidRequestError(
            f"prompt_adapter_num_virtual_tokens is {count}; with a token of a prompt and a new one they must fit the "
            f"context of {context}",
            "prompt_adapter_num_virtual_tokens",
        )
    return PromptAdapterRequest(
        valid.nonempty_text("prompt_adapter_name", named.prompt_adapter_name),
        valid.integer("prompt_adapter_id", named.prompt_adapter_id, 1),
        valid.nonempty_text("prompt_adapter_local_path", named.prompt_adapter_local_path),
        count,
    )


def check_priority(priority: object) -> int:
    """Return a priority, an integer of 64 bits."""
    return valid.integer("priority", priority)


def check_trace_headers(trace_headers: object) -> dict[str, str] | None:
    """Return trace headers as a dict of strings."""
    if trace_headers is None:
        return None
    if not isinstance(trace_headers, Mapping):
        valid.refuse_type("trace_headers", trace_headers, "dict")
    return {
        valid.text("trace_headers", name): valid.text("trace_headers", value)
        for name, value in trace_headers.items()
    }
