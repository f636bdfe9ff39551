"""Settings of structured decoding."""

import msgspec


class DecodingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of grammars. Not supported yet."""
