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

from engine_server.config import DeviceConfig, LoadConfig, ModelConfig
from engine_server.modeling import kernels
from engine_server.modeling.attention.interface import IMPLEMENTATION
from engine_server.modeling.communicator import Communicator
from engine_server.modeling.layers.fused_modules import use_kernels
from engine_server.modeling.layers.native_modules import NATIVE
from engine_server.modeling.layers.packed_linear import pack_linears
from engine_server.modeling.layers.torch_modules import CPU
from engine_server.modeling.loading.fusion import fuse_linears
from engine_server.modeling.loading.sharding import shard
from engine_server.modeling.memory.device_memory import free_memory
from engine_server.modeling.native import library as native
from engine_server.models.folder import weight_bytes
from engine_server.models.hf_config import read_hf_config

OWN_ATTENTION = ("bloom", "falcon", "gptj", "mpnet")  # model types
# Of CPUs, as torch.cpu.get_capabilities names them; any one will do.
INSTRUCTIONS = {
    torch.bfloat16: ("avx512_bf16", "amx_bf16", "bf16"),
    torch.float16: ("avx512_fp16", "amx_fp16", "fp16_arith"),
}
T = TypeVar("T")
SECONDS_BETWEEN_LINES = 5.0
logger = logging.getLogger(__name__)


def choose_device(config: DeviceConfig, rank: int, ranks: int) -> torch.device:
    """The device of one of `ranks`. Raises ValueError where GPUs are asked for that there aren't."""
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


def load_model(
    config: ModelConfig, load: LoadConfig, device: torch.device, ranks: Communicator
) -> PreTrainedModel:
    """The model of `config.path`, from safetensors or with random weights, with our attention.

    Weights are mapped from their files and copied once at most; where ranks share a model, the host cuts it, and the
    device has this rank's part alone. Raises ValueError in words.
    """
    asked = None if config.dtype == "auto" else getattr(torch, config.dtype)
    place = device if ranks.size == 1 else torch.device("cpu")
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    kind = "AutoModelForCausalLM"
    if config.pooling is not None:
        kind = "AutoModel" if config.pooling.num_labels is None else "AutoModelForSequenceClassification"
    auto = getattr(transformers, kind)
    hook = transformers.utils.logging.set_tqdm_hook(show_progress)
    try:
        settings: Any = read_hf_config(Path(config.path), config.hf_overrides, config.trust_remote_code)
        dtype = choose_dtype(asked, settings.dtype, device)
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
            check_room(Path(config.path), dtype, device, ranks.size)
            model = auto.from_pretrained(
                config.path,
                config=settings,
                trust_remote_code=config.trust_remote_code,
                dtype=dtype or "auto",
                attn_implementation=attention,
                use_safetensors=True,
                local_files_only=True,
                device_map={"": place} if place.type == "cuda" else None,
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
    if config.batch_invariant and (ranks.size > 1 or not kernels.can_run(device)):
        raise ValueError(
            f"batch_invariant takes one GPU with Triton and gcc; this is {ranks.size} {device.type}. "
            "On a CPU dtype float32 comes near: results differ by its rounding alone"
        )
    model.requires_grad_(False)
    if ranks.size > 1:
        shard(model, ranks)
        nn.Module.to(model, device)
    fuse_linears(progress(parents(model), "Fusing weights"))
    if kernels.can_run(device):
        from engine_server.modeling.layers.triton_modules import TRITON, fix_sums

        use_kernels(model, TRITON)
        if config.batch_invariant:
            fix_sums(model)
    elif device.type == "cpu":
        use_kernels(model, NATIVE if native.can_run() else CPU)
    if device.type == "cpu":
        pack_linears(progress(parents(model), "Packing weights"))
    return model


def choose_dtype(
    asked: torch.dtype | None, weights: torch.dtype | None, device: torch.device
) -> torch.dtype | None:
    """What the device computes in; None where nobody says but the weights. Raises ValueError for what nothing does."""
    dtype = asked or weights
    if dtype is None:
        return None
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f"its weights are {dtype}; dtype can make them float32, bfloat16 or float16")
    if device.type == "cuda" and dtype == torch.bfloat16:
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return dtype
        logger.warning("%s has no bfloat16: the model runs in float16", torch.cuda.get_device_name(device))
        return torch.float16
    if device.type == "cpu" and asked is None and not has_instructions(dtype):
        name = str(dtype).removeprefix("torch.")
        logger.warning(
            "this CPU has no instructions for %s: the model runs in float32, which is quicker and takes twice the "
            "memory; --dtype %s keeps it as it is", name, name,
        )  # fmt: skip
        return torch.float32
    return dtype


def has_instructions(dtype: torch.dtype) -> bool:
    """Whether this machine's CPU can multiply it; where it can't, a product takes several times what float32's do."""
    able = torch.cpu.get_capabilities()
    return dtype == torch.float32 or any(able.get(name) for name in INSTRUCTIONS[dtype])


def parents(model: nn.Module) -> list[nn.Module]:
    """All modules but the leaves: their weights can be freed one by one while somebody walks over this."""
    return [module for module in model.modules() if any(True for _ in module.children())]


def check_room(folder: Path, dtype: torch.dtype | None, device: torch.device, ranks: int) -> None:
    """Raises ValueError, with both sizes, where one rank's weights won't fit."""
    needed = weight_bytes(folder, None if dtype is None else dtype.itemsize) // ranks
    free = free_memory(device)
    if needed > free:
        raise ValueError(
            f"its weights take {needed >> 20} MiB, and {free >> 20} MiB of {device} memory are free"
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
