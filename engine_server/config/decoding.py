"""Settings of speculative and structured decoding."""

import msgspec


class SpeculativeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of draft tokens that the model verifies. Not supported yet."""


class DecodingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of grammars. Not supported yet."""
