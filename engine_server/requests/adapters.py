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

    @property
    def content(self) -> str:
        """A description of the content, equal for all requests with the id."""
        return f"the adapter in {self.lora_path}"


class PromptAdapterRequest(msgspec.Struct, frozen=True):
    """Learned embeddings before the prompt, from prompt tuning or p-tuning, as PEFT saves them.

    prompt_adapter_id: identifies the adapter's content, from 1 on: other files need another id. It has nothing to do
    with LoRA adapters' ids. prompt_adapter_local_path: a local folder. prompt_adapter_num_virtual_tokens: the number
    of embeddings.
    """

    prompt_adapter_name: str
    prompt_adapter_id: int
    prompt_adapter_local_path: str
    prompt_adapter_num_virtual_tokens: int

    @property
    def name(self) -> str:
        return self.prompt_adapter_name

    @property
    def adapter_id(self) -> int:
        return self.prompt_adapter_id

    @property
    def path(self) -> str:
        return self.prompt_adapter_local_path

    @property
    def content(self) -> str:
        """A description of the content, equal for all requests with the id."""
        return f"the adapter in {self.path} with {self.prompt_adapter_num_virtual_tokens} virtual tokens"


AdapterRequest = LoRARequest | PromptAdapterRequest
