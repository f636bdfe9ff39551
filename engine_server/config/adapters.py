"""Settings of adapters."""

import msgspec


class LoRAConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of LoRA adapters."""

    # Different adapters in a step: slots in the device's memory.
    max_loras: int
    max_lora_rank: int
    # Adapters in the host's memory, at least `max_loras`.
    max_cpu_loras: int


class PromptAdapterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of prompt adapters."""

    # Adapters in the host's memory, and so different ones in a step.
    max_prompt_adapters: int
    # Virtual tokens of an adapter.
    max_prompt_adapter_token: int
