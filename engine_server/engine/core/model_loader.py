"""From a folder to a model on a device."""

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from engine_server.engine.config import DeviceConfig, ModelConfig
from engine_server.engine.core.attention import IMPLEMENTATION
from engine_server.engine.core.own_attention import MODEL_TYPES, replace_attention
from engine_server.engine.core.packed_linear import pack_linears


def choose_device(config: DeviceConfig) -> torch.device:
    """Raises ValueError where a GPU is asked for and there is none."""
    if config.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is cuda, and torch sees no GPU here")
    return torch.device(config.device)


def load_model(config: ModelConfig, device: torch.device) -> PreTrainedModel:
    """The model of `config.path`, from safetensors only, with our attention. Raises ValueError in words."""
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    dtype = config.dtype if config.dtype == "auto" else getattr(torch, config.dtype)
    try:
        model_type = AutoConfig.from_pretrained(config.path, local_files_only=True).model_type
        own = model_type in MODEL_TYPES
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            config.path,
            dtype=dtype,
            attn_implementation="eager" if own else IMPLEMENTATION,
            use_safetensors=True,
            local_files_only=True,
            device_map={"": device} if device.type == "cuda" else None,
        )
    except (OSError, KeyError, ValueError) as error:
        reason = "its attention can't be replaced" if IMPLEMENTATION in str(error) else error
        raise ValueError(f"the model in {config.path} can't be loaded: {reason}") from error
    if own:
        replace_attention(model, model_type)
        model.config._attn_implementation = IMPLEMENTATION  # so that no masks are made
    model.requires_grad_(False)
    if device.type == "cpu":
        pack_linears(model)
    return model
