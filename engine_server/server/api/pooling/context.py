"""The part of a request that its prompts have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine_server.contract.caller import ReportedCaller
    from engine_server.requests.adapters import LoRARequest
    from engine_server.server.loaded_model import TraceHeaders


@dataclass(frozen=True, slots=True)
class RequestContext:
    """What all prompts of an HTTP request have in common, besides their parameters."""

    priority: int
    trace_headers: TraceHeaders
    caller: ReportedCaller | None
    lora: LoRARequest | None
