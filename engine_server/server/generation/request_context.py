"""What accompanies a request to a model, whatever it asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from engine_server.contract.wire.router_head import RouterHead
    from engine_server.requests.adapters import LoRARequest, PromptAdapterRequest
    from engine_server.requests.submission import Origin


class ServedModel(NamedTuple):
    """The model that answers a request."""

    # As the request names it.
    name: str
    fingerprint: str
    # Tokens of prompt and answer.
    context: int
    lora: LoRARequest | None = None
    prompt_adapter: PromptAdapterRequest | None = None


@dataclass(frozen=True, slots=True)
class RequestContext:
    """What all prompts of a request have in common, besides their parameters. It is made once."""

    served: ServedModel
    # What a router says; nothing without one.
    router: RouterHead
    # Seconds in which the answer has to end: the shorter of the body's and the header's. None: any time.
    timeout: float | None
    # The adapter, caller, trace and priority, as the engine is told.
    origin: Origin
