"""Adapters that a request may name. They are carried to the engine, which serves none yet and says so."""

import msgspec


class LoRARequest(msgspec.Struct, frozen=True):
    """A LoRA adapter: `lora_int_id` tells adapters apart and starts at 1, `lora_path` is a folder."""

    lora_name: str
    lora_int_id: int
    lora_path: str


class PromptAdapterRequest(msgspec.Struct, frozen=True):
    """A learned prefix of `prompt_adapter_num_virtual_tokens` tokens."""

    prompt_adapter_name: str
    prompt_adapter_id: int
    prompt_adapter_local_path: str
    prompt_adapter_num_virtual_tokens: int
