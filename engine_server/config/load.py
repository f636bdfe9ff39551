"""Settings of weight loading."""

import msgspec


class LoadConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The source of the weights."""

    # "auto", "safetensors", "gguf", or "dummy": random weights, from the configuration alone.
    load_format: str = "auto"
