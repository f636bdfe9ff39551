"""Adapters that a request may name. The engine serves none yet, and refuses them by name."""

import msgspec


class LoRARequest(msgspec.Struct, frozen=True):
    """A LoRA adapter. lora_int_id: an identifier from 1 on. lora_path: a folder."""

    lora_name: str
    lora_int_id: int
    lora_path: str


class PromptAdapterRequest(msgspec.Struct, frozen=True):
    """A learned prefix of `prompt_adapter_num_virtual_tokens` tokens."""

    prompt_adapter_name: str
    prompt_adapter_id: int
    prompt_adapter_local_path: str
    prompt_adapter_num_virtual_tokens: int
