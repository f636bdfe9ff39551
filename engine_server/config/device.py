"""The device that the model runs on."""

import msgspec


class DeviceConfig(msgspec.Struct, frozen=True, kw_only=True):
    device: str  # "auto", "cpu" or "cuda"
