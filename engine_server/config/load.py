"""Settings of weight loading."""

import msgspec

from engine_server.config.quantization import QuantizationConfig


class LoadConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The source of the weights, and their form in memory."""

    # "auto", "safetensors", "gguf", "dequantized": quantised weights are made dense, or "dummy": random weights, from
    # the configuration alone.
    load_format: str = "auto"
    # None: the checkpoint's own form.
    quantization: QuantizationConfig | None = None
