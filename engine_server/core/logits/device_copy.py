"""Copies of numbers to the device."""

import torch
from torch import Tensor


def on_device(values: object, device: torch.device) -> Tensor:
    """Return a tensor of nested sequences of numbers, int64 or float32, by a copy that the host doesn't wait for."""
    return torch.tensor(values, pin_memory=device.type == "cuda").to(device, non_blocking=True)
