"""Speculative and structured decoding."""

import msgspec


class SpeculativeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Drafts that the model verifies. Not supported yet."""


class DecodingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How grammars are enforced; there is nothing to choose yet."""
