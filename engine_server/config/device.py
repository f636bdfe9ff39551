"""The device that runs the model."""

import msgspec


class DeviceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The device that runs the model."""

    # "auto", "cpu" or "cuda".
    device: str
