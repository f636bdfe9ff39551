"""What a model's folder says before its weights are read: settings, format of the weights, dtype."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from engine_server.config import LoadConfig, ModelConfig
from engine_server.model_sources.hf_config import read_hf_config
from engine_server.modeling.formats.checkpoints.checkpoint import NothingQuantizedError, QuantizedCheckpoint
from engine_server.modeling.formats.checkpoints.description import describe
from engine_server.modeling.formats.checkpoints.stored import Weights
from engine_server.modeling.platform.interface import Platform

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelFolder:
    """What a model's folder says before its weights are read."""

    settings: Any
    # Of quantised weights; None: transformers reads the files itself.
    checkpoint: QuantizedCheckpoint | None
    # To compute in; None: nobody names one.
    dtype: torch.dtype | None

    @property
    def architecture(self) -> str:
        """The name of the model's class, or its type where the config has no class."""
        named: str = (self.settings.architectures or [self.settings.model_type])[0]
        return named

    def weights(self, skeleton: PreTrainedModel, load: LoadConfig) -> Weights | None:
        """Return the weights of a quantised checkpoint, which are read when they are indexed."""
        if self.checkpoint is None:
            return None
        return self.checkpoint.state(skeleton.dtype, load.load_format == "dequantized")


def open_folder(config: ModelConfig, load: LoadConfig, platform: Platform) -> ModelFolder:
    """Read the settings in a model's folder. Raises ValueError for those that can't be served."""
    settings: Any = read_hf_config(Path(config.path), config.hf_overrides, config.trust_remote_code)
    checkpoint = open_checkpoint(Path(config.path), load, settings)
    asked = None if config.dtype == "auto" else getattr(torch, config.dtype)
    stored = settings.dtype or (torch.bfloat16 if checkpoint else None)
    return ModelFolder(settings, checkpoint, choose_dtype(asked, stored, platform))


def open_checkpoint(folder: Path, load: LoadConfig, settings: PreTrainedConfig) -> QuantizedCheckpoint | None:
    """Return the checkpoint in a folder if its weights are quantised, and hide that from transformers' readers.

    Raises ValueError for a format that isn't known, and for options that a quantised checkpoint doesn't take.
    """
    found = describe(folder, getattr(settings, "quantization_config", None))
    if found is None:
        return None
    if found.in_config:
        del settings.quantization_config
    if load.load_format == "dummy":
        return None
    try:
        checkpoint = QuantizedCheckpoint(folder, found.settings, found.place)
    except NothingQuantizedError as error:
        if found.in_config:
            raise
        logger.info("weights are read as they are: %s", error)
        return None
    method = found.settings["quant_method"]
    if load.quantization is not None:
        raise ValueError(
            f"quantization is {load.quantization.method}; its weights are already quantized, with {method}"
        )
    return checkpoint


def choose_dtype(
    asked: torch.dtype | None, weights: torch.dtype | None, platform: Platform
) -> torch.dtype | None:
    """Return the dtype to compute in; None if neither the user nor the weights name one.

    Raises ValueError for weights of another dtype than float32, bfloat16, and float16.
    """
    dtype = asked or weights
    if dtype is None:
        return None
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f"its weights are {dtype}; dtype can make them float32, bfloat16 or float16")
    return platform.computing_dtype(dtype, asked is not None)
