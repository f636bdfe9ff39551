"""vLLM's flags that no setting here answers to: accepted where they ask for what is always so, else refused."""

from __future__ import annotations

import argparse
import logging
from dataclasses import make_dataclass
from typing import Any, NamedTuple

from engine_server.contract.base.quoting import quote
from engine_server.engine.arguments.fields import argument
from engine_server.engine.arguments.flags import json_object

logger = logging.getLogger(__name__)


class Refusal(NamedTuple):
    """A flag that would change results or the placement of the model."""

    kind: type
    # The value that asks for nothing.
    neutral: Any
    # What to use in its place.
    replacement: str


ALWAYS_ON: dict[str, type] = {
    "enable_auto_tool_choice": bool,
    "tool_call_parser": str,
    "enable_reasoning": bool,
    "reasoning_parser": str,
    "guided_decoding_backend": str,
    "structured_outputs_config": dict,
}
# Of structured_outputs_config, the settings whose effect is always on.
STRUCTURED_OUTPUTS = {"backend", "reasoning_parser", "disable_fallback"}
REFUSED = {
    "pipeline_parallel_size": Refusal(int, 1, "--tensor-parallel-size splits each layer over devices"),
    "decode_context_parallel_size": Refusal(int, 1, "--tensor-parallel-size splits each layer over devices"),
    "prefill_context_parallel_size": Refusal(int, 1, "--tensor-parallel-size splits each layer over devices"),
    "enable_expert_parallel": Refusal(bool, False, "--tensor-parallel-size splits each expert over devices"),
    "data_parallel_size": Refusal(int, 1, "several engines behind `fairlead router` serve one model"),
    "api_server_count": Refusal(int, 1, "several engines behind `fairlead router` serve one model"),
    "kv_transfer_config": Refusal(str, "", "each engine computes prompts and answers"),
    "cpu_offload_gb": Refusal(float, 0.0, "--quantization makes weights smaller"),
    "task": Refusal(str, "auto", "--runner pooling makes a decoder pool"),
    "rope_scaling": Refusal(str, "", "--hf-overrides takes rope_scaling as a key"),
    "rope_theta": Refusal(float, None, "--hf-overrides takes rope_theta as a key"),
    "speculative_model": Refusal(str, "", "--speculative-config takes model as a key"),
    "num_speculative_tokens": Refusal(
        int, None, "--speculative-config takes num_speculative_tokens as a key"
    ),
}


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _field(name: str, kind: type) -> tuple[str, Any, Any]:
    options: dict[str, Any] = {"type": json_object} if kind is dict else {}
    return name, kind | None, argument(None, argparse.SUPPRESS, **options)


# The flags as a class of settings.
VllmFlags = make_dataclass(
    "VllmFlags",
    [
        *(_field(name, kind) for name, kind in ALWAYS_ON.items()),
        *(_field(name, refusal.kind) for name, refusal in REFUSED.items()),
    ],
)


def check_vllm_flags(options: argparse.Namespace) -> None:
    """Log the flags whose effect is always on, in one warning. Raises ValueError for one that is not supported."""
    for name, refusal in REFUSED.items():
        value = getattr(options, name)
        if value not in (None, refusal.neutral):
            raise ValueError(f"{flag(name)} is not supported; {refusal.replacement}")
    unknown = (options.structured_outputs_config or {}).keys() - STRUCTURED_OUTPUTS
    if unknown:
        known = ", ".join(sorted(STRUCTURED_OUTPUTS))
        raise ValueError(
            f"--structured-outputs-config has the key {quote(min(unknown))}, which is not supported; it takes {known}; "
            "requests take the others in structured_outputs"
        )
    if given := [flag(name) for name in ALWAYS_ON if getattr(options, name) is not None]:
        logger.warning(
            "%s: accepted for vLLM's sake, without effect; calls, reasoning and structured outputs are always on",
            ", ".join(given),
        )
