"""The device that runs the model."""

import msgspec


class DeviceConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The device that runs the model."""

    # "auto", "cpu" or "cuda".
    device: str
    # "auto" or "triton", which refuses to start without Triton's kernels.
    kernels: str = "auto"
    # The kernels that run, with what they were compiled for; empty before the engine has started.
    kernels_in_use: str = ""
    # Of the first rank's device, by the part of the engine that takes or reserves them; empty before likewise.
    memory_bytes: dict[str, int] = {}
