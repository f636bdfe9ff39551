"""A caller's request before checks."""

from collections.abc import Mapping
from dataclasses import dataclass

from engine_server.contract.base.caller import ReportedCaller
from engine_server.requests.adapters import LoRARequest, PromptAdapterRequest
from engine_server.requests.pooling_params import PoolingParams
from engine_server.requests.prompts import PromptType
from engine_server.requests.sampling_params import SamplingParams
from engine_server.requests.stop_scope import StopScopeFactory


@dataclass(frozen=True, slots=True)
class Origin:
    """What accompanies a request, whatever it asks for."""

    lora_request: LoRARequest | None = None
    trace_headers: Mapping[str, str] | None = None
    prompt_adapter_request: PromptAdapterRequest | None = None
    # Lower priorities are scheduled first, under the priority policy.
    priority: int = 0
    # Its share of the engine, its scope of cached prompts and, under the priority policy, its priority count.
    caller: ReportedCaller | None = None


@dataclass(frozen=True, slots=True)
class Submission:
    """The arguments of `generate`, `encode` or `add_request`."""

    # Chosen by the caller, and unique among the requests in flight. The core uses an internal id instead.
    request_id: str
    prompt: PromptType
    params: SamplingParams | PoolingParams
    # Seconds of the monotonic clock; None: now.
    arrival_time: float | None = None
    origin: Origin = Origin()
    # Says for each completion in which of its text stop strings are matched; None: in all of it.
    stop_scope: StopScopeFactory | None = None
