"""From a folder to a model on a device."""

import logging
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch
import transformers
from torch import nn
from transformers import PreTrainedModel

from engine_server.config import LoadConfig, ModelConfig
from engine_server.modeling.attention.hook import IMPLEMENTATION
from engine_server.modeling.communicator import Communicator
from engine_server.modeling.layers.fused_modules import use_kernels
from engine_server.modeling.layers.packed_linear import pack_linears
from engine_server.modeling.loading.fusion import fuse_linears
from engine_server.modeling.loading.sharding import shard
from engine_server.modeling.platform.interface import Platform
from engine_server.models.folder import weight_bytes
from engine_server.models.hf_config import read_hf_config

OWN_ATTENTION = ("bloom", "falcon", "gptj", "mpnet")  # model types
T = TypeVar("T")
SECONDS_BETWEEN_LINES = 5.0
logger = logging.getLogger(__name__)


def load_model(
    config: ModelConfig, load: LoadConfig, platform: Platform, ranks: Communicator
) -> PreTrainedModel:
    """The model of `config.path`, from safetensors or with random weights, with our attention.

    Weights are mapped from their files and copied once at most; where ranks share a model, the host cuts it, and the
    device has this rank's part alone. Raises ValueError in words.
    """
    asked = None if config.dtype == "auto" else getattr(torch, config.dtype)
    device = platform.device
    place = device if ranks.size == 1 else torch.device("cpu")
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    kind = "AutoModelForCausalLM"
    if config.pooling is not None:
        kind = "AutoModel" if config.pooling.num_labels is None else "AutoModelForSequenceClassification"
    auto = getattr(transformers, kind)
    hook = transformers.utils.logging.set_tqdm_hook(show_progress)
    try:
        settings: Any = read_hf_config(Path(config.path), config.hf_overrides, config.trust_remote_code)
        dtype = choose_dtype(asked, settings.dtype, platform)
        own = settings.model_type in OWN_ATTENTION
        attention = "eager" if own else IMPLEMENTATION
        if load.load_format == "dummy":
            with place, torch.random.fork_rng():
                torch.manual_seed(config.seed)
                model: PreTrainedModel = auto.from_config(
                    settings,
                    dtype=dtype or torch.float32,
                    attn_implementation=attention,
                    trust_remote_code=config.trust_remote_code,
                ).eval()
        else:
            check_room(Path(config.path), dtype, platform, ranks.size)
            model = auto.from_pretrained(
                config.path,
                config=settings,
                trust_remote_code=config.trust_remote_code,
                dtype=dtype or "auto",
                attn_implementation=attention,
                use_safetensors=True,
                local_files_only=True,
                device_map={"": place} if platform.asynchronous and ranks.size == 1 else None,
            )
    except (OSError, KeyError, ValueError) as error:
        reason = "its attention can't be replaced" if IMPLEMENTATION in str(error) else error
        raise ValueError(f"the model in {config.path} can't be loaded: {reason}") from error
    finally:
        transformers.utils.logging.set_tqdm_hook(hook)
    if own:
        from engine_server.modeling.attention.model_attention import (
            replace_attention,  # imports these models' code
        )

        replace_attention(model)
        model.config._attn_implementation = IMPLEMENTATION  # so that no masks are made
    if config.batch_invariant and (ranks.size > 1 or not platform.batch_invariant):
        raise ValueError(
            f"batch_invariant takes one GPU with Triton and gcc; this is {ranks.size} {device.type}. "
            "On a CPU dtype float32 comes near: results differ by its rounding alone"
        )
    model.requires_grad_(False)
    if ranks.size > 1:
        shard(model, ranks)
        nn.Module.to(model, device)
    fuse_linears(progress(parents(model), "Fusing weights"))
    if platform.module_kernels is not None:
        use_kernels(model, platform.module_kernels)
    if config.batch_invariant:
        from engine_server.modeling.layers.triton_modules import fix_sums  # imports Triton

        fix_sums(model)
    if platform.packs_weights:
        pack_linears(progress(parents(model), "Packing weights"))
    return model


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


def parents(model: nn.Module) -> list[nn.Module]:
    """All modules but the leaves: their weights can be freed one by one while somebody walks over this."""
    return [module for module in model.modules() if any(True for _ in module.children())]


def check_room(folder: Path, dtype: torch.dtype | None, platform: Platform, ranks: int) -> None:
    """Raises ValueError, with both sizes, where one rank's weights won't fit."""
    needed = weight_bytes(folder, None if dtype is None else dtype.itemsize) // ranks
    free = platform.free_memory()
    if needed > free:
        raise ValueError(
            f"its weights take {needed >> 20} MiB, and {free >> 20} MiB of {platform.device} memory are free"
        )


def progress(items: Collection[T], what: str) -> Iterator[T]:
    """Say in the log how far a long loop has come."""
    said = time.monotonic()
    for count, item in enumerate(items):
        if time.monotonic() - said > SECONDS_BETWEEN_LINES:
            said = time.monotonic()
            logger.info("%s: %d of %d", what, count, len(items))
        yield item


def show_progress(factory: Any, args: Any, options: Any) -> Any:
    """A bar of transformers as lines of the log."""
    return progress(args[0], options["desc"]) if "desc" in options else factory(*args, **options)


def first_position(model: nn.Module, max_model_len: int) -> int:
    """Where positions begin: behind the padding's, in a table that has one (RoBERTa and its kin)."""
    tables = [table for name, table in model.named_modules() if name.endswith("position_embeddings")]
    for table in (table for table in tables if getattr(table, "padding_idx", None) is not None):
        first: int = table.padding_idx + 1
        if first + max_model_len > table.num_embeddings:
            raise ValueError(
                f"max_model_len is {max_model_len}; positions end at {table.num_embeddings - first}"
            )
        return first
    return 0
