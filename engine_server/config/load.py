"""How weights are loaded."""

import msgspec


class LoadConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where weights come from."""

    load_format: str = "auto"  # or "safetensors", "gguf", or "dummy": random, from the configuration alone
