"""Adapters that a request may name."""

import msgspec


class LoRARequest(msgspec.Struct, frozen=True):
    """A LoRA adapter, as PEFT saves it.

    lora_int_id: identifies the adapter's content, from 1 on: other files need another id. lora_path: a local folder.
    """

    lora_name: str
    lora_int_id: int
    lora_path: str

    @property
    def name(self) -> str:
        return self.lora_name

    @property
    def adapter_id(self) -> int:
        return self.lora_int_id

    @property
    def path(self) -> str:
        return self.lora_path


class PromptAdapterRequest(msgspec.Struct, frozen=True):
    """A learned prefix of `prompt_adapter_num_virtual_tokens` tokens. The engine serves none yet."""

    prompt_adapter_name: str
    prompt_adapter_id: int
    prompt_adapter_local_path: str
    prompt_adapter_num_virtual_tokens: int
