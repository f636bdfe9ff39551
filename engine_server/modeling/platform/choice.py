"""The choice of a platform: the device, and the kernels that can run on it."""

import logging

import torch

from engine_server.config import DeviceConfig
from engine_server.modeling.native import library
from engine_server.modeling.platform.cpu import CpuPlatform, NativePlatform
from engine_server.modeling.platform.cuda import CudaPlatform, TritonPlatform
from engine_server.modeling.platform.interface import Platform
from engine_server.modeling.platform.triton_check import check_triton, reason

logger = logging.getLogger(__name__)


def choose_platform(config: DeviceConfig, rank: int = 0, ranks: int = 1) -> Platform:
    """Return the fastest platform of one of `ranks`.

    Raises ValueError for GPUs that this machine lacks, and for required kernels that it can't run.
    """
    device = choose_device(config, rank, ranks)
    if device.type == "cpu":
        if config.kernels == "triton":
            lack = "device is cpu" if config.device == "cpu" else "torch sees no GPU here"
            raise ValueError(f"kernels is triton, and {lack}")
        obstacle = library.obstacle()
        if obstacle is None:
            return NativePlatform(device)
        logger.warning("kernels: plain torch, which is slower: %s", obstacle)
        return CpuPlatform(device)
    try:
        check_triton(device)
    except Exception as error:  # of a compiler, a driver or the device: after any of them no kernel runs
        if config.kernels == "triton":
            raise ValueError(f"kernels is triton, which doesn't work here: {reason(error)}") from error
        logger.warning("kernels: plain torch, which is slower, because of %s", reason(error))
        return CudaPlatform(device)
    return TritonPlatform(device)


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
