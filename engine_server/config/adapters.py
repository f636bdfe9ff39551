"""Settings of adapters."""

import msgspec


class LoRAConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of LoRA adapters. Not supported yet."""


class PromptAdapterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of learned prompt prefixes. Not supported yet."""
