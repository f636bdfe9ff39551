"""The choice of a platform: the device, and the kernels that can run on it."""

import logging
import os
from importlib.util import find_spec
from shutil import which

import torch

from engine_server.config import DeviceConfig
from engine_server.modeling.native import library
from engine_server.modeling.platform.cpu import CpuPlatform, NativePlatform
from engine_server.modeling.platform.cuda import CudaPlatform, TritonPlatform
from engine_server.modeling.platform.interface import Platform

logger = logging.getLogger(__name__)


def choose_platform(config: DeviceConfig, rank: int = 0, ranks: int = 1) -> Platform:
    """Return the fastest platform of one of `ranks`. Raises ValueError for GPUs that this machine lacks."""
    device = choose_device(config, rank, ranks)
    if device.type == "cuda":
        if triton_compiles():
            return TritonPlatform(device)
        logger.warning("attention runs in plain torch, which is slow: the kernels need Triton and gcc")
        return CudaPlatform(device)
    return NativePlatform(device) if library.loads() else CpuPlatform(device)


def choose_device(config: DeviceConfig, rank: int, ranks: int) -> torch.device:
    """Return the device of one of `ranks`. Raises ValueError for GPUs that this machine lacks."""
    device = config.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is cuda, and torch sees no GPU here")
    if device == "cpu" or ranks == 1:
        return torch.device(device)
    if (count := torch.cuda.device_count()) < ranks:
        raise ValueError(f"tensor_parallel_size is {ranks} GPUs, and torch sees {count} of them here")
    return torch.device(device, rank)


def triton_compiles() -> bool:
    """Return True if Triton and a C compiler are installed; torch's CUDA builds include only the former."""
    return find_spec("triton") is not None and bool("CC" in os.environ or which("gcc") or which("clang"))
