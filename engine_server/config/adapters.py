"""Adapters beside the model."""

import msgspec


class LoRAConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Adapters beside the model. Not supported yet."""


class PromptAdapterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Learned prefixes. Not supported yet."""
