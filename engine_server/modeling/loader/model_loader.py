"""The loading of a model: from a folder to the platform's device."""

import logging
import os
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
import transformers
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from engine_server.config import LoadConfig, ModelConfig
from engine_server.model_sources.hf_config import read_hf_config
from engine_server.modeling.attention.interface import UnsupportedModelError
from engine_server.modeling.device.communicator import Communicator
from engine_server.modeling.device.progress import ProgressClock
from engine_server.modeling.formats.checkpoints.checkpoint import QuantizedCheckpoint
from engine_server.modeling.formats.checkpoints.stored import StoredTensor, StoredWeight, stored_tensors
from engine_server.modeling.loader.attention import implementation_for, replace_attention
from engine_server.modeling.loader.invariance import check_setup
from engine_server.modeling.loader.leftovers import check_tensors
from engine_server.modeling.loader.passes import LoadPlan, replace_modules, verified_choices
from engine_server.modeling.loader.refusal import check_layer_types, refused_by_name
from engine_server.modeling.loader.room import check_room, needed_bytes, saved_bytes
from engine_server.modeling.loader.weights import settle
from engine_server.modeling.platform.interface import Platform
from engine_server.modeling.replacements.report import PassReport
from engine_server.modeling.replacements.ropes import tabulate_ropes

T = TypeVar("T")
SECONDS_BETWEEN_LINES = 5.0
# Positions that the first forwards of an engine take, whatever its longest sequence is.
LEAST_POSITIONS = 2
# The environment variable that stops transformers from reading weights ahead.
NO_READING_AHEAD = "HF_DEACTIVATE_ASYNC_LOAD"
logger = logging.getLogger(__name__)


def load_model(
    config: ModelConfig,
    load: LoadConfig,
    platform: Platform,
    ranks: Communicator,
    clock: ProgressClock | None = None,
) -> PreTrainedModel:
    """Return the model of `config.path`, from safetensors or with random weights, on the platform's device.

    transformers builds the model on the meta device; our passes replace its modules (see loader/passes.py); then
    transformers reads, converts and renames the weights, and each layer immediately takes over its own: it cuts them
    for this rank, joins them with those of other layers and packs them. Raises ValueError if the model can't be
    loaded.

    clock: receives the share of the weights that are loaded.
    """
    clock = clock or ProgressClock()
    if config.batch_invariant:
        check_setup(config, platform, ranks)
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    hook = transformers.utils.logging.set_tqdm_hook(partial(show_progress, clock))
    try:
        settings: Any = read_hf_config(Path(config.path), config.hf_overrides, config.trust_remote_code)
        checkpoint = open_checkpoint(Path(config.path), load, settings)
        dtype = choose_dtype(
            None if config.dtype == "auto" else getattr(torch, config.dtype),
            settings.dtype or (torch.bfloat16 if checkpoint else None),
            platform,
        )
        tokens = () if config.pooling is None else config.pooling.score_tokens
        plan = LoadPlan(platform, ranks, bool(config.batch_invariant), {}, load.quantization, tokens)
        with refused_by_name(architecture(settings)):
            if not config.is_encoder:
                check_layer_types(settings, architecture(settings))
            skeleton = empty_model(config, settings, dtype)
        if load.load_format != "dummy":
            tensors = stored_tensors(Path(config.path)) if checkpoint is None else checkpoint.tensors
            check_tensors(skeleton, tensors, Path(config.path))
        with refused_by_name(architecture(settings)):
            plan = replace(plan, choices=verified_choices(skeleton, platform, config.max_model_len))
        replace_attention(skeleton)  # the choices are by our classes
        dense = load.load_format == "dequantized"
        if load.load_format != "dummy":
            needed = needed_bytes(
                Path(config.path), checkpoint, dtype, plan.layout, dense, bool(plan.formatted)
            )
            needed -= saved_bytes(skeleton, load.quantization, skeleton.dtype, plan.layout, plan.formatted)
            check_room(needed, platform, ranks.size)
        kind = replaced_class(type(skeleton), plan)
        if load.load_format == "dummy":
            model = random_model(config, skeleton.config, dtype, kind, plan)
        else:
            weights = None if checkpoint is None else checkpoint.state(skeleton.dtype, dense)
            model = read_model(config, skeleton.config, dtype, kind, plan, weights)
    except UnsupportedModelError:
        raise
    except (OSError, KeyError, ValueError) as error:
        raise ValueError(f"the model in {config.path} can't be loaded: {error}") from error
    finally:
        transformers.utils.logging.set_tqdm_hook(hook)
    model.__class__ = type(skeleton)
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            module.warn_if_padding_and_no_attention_mask = no_warning  # type: ignore[method-assign]
    complete(model, platform, config.max_model_len)
    return model


def architecture(settings: PreTrainedConfig) -> str:
    """Return the name of the model's class, or its type where the config has no class."""
    return (settings.architectures or [settings.model_type])[0]


def complete(model: PreTrainedModel, platform: Platform, max_model_len: int) -> None:
    """Run the passes after the loading over a model whose weights were read, and move it to the platform's device."""
    log(settle(model))
    model.requires_grad_(False)
    nn.Module.to(model, platform.device)
    log(tabulate_ropes(model, model.dtype, platform.device, max(LEAST_POSITIONS, max_model_len)))


def open_checkpoint(folder: Path, load: LoadConfig, settings: PreTrainedConfig) -> QuantizedCheckpoint | None:
    """Return the checkpoint in a folder if its weights are quantised, and hide that from transformers' readers.

    Raises ValueError for a format that isn't known, and for options that a quantised checkpoint doesn't take.
    """
    quantization: Any = getattr(settings, "quantization_config", None)
    if quantization is None:
        return None
    del settings.quantization_config
    if load.load_format == "dummy":
        return None
    checkpoint = QuantizedCheckpoint(folder, quantization)
    method = quantization["quant_method"]
    if load.quantization is not None:
        raise ValueError(
            f"quantization is {load.quantization.method}; its weights are already quantized, with {method}"
        )
    return checkpoint


def no_warning(token_ids: Any, attention_mask: Any) -> None:
    """Do nothing, instead of reading every step's tokens to warn about padding, which flat batches don't have."""


def empty_model(
    config: ModelConfig, settings: PreTrainedConfig, dtype: torch.dtype | None
) -> PreTrainedModel:
    """Return transformers' model on the meta device."""
    kind = "AutoModelForCausalLM"
    if config.pooling is not None and not config.pooling.score_tokens:
        kind = "AutoModel" if config.pooling.num_labels is None else "AutoModelForSequenceClassification"
    with torch.device("meta"):
        model: PreTrainedModel = getattr(transformers, kind).from_config(
            settings,
            dtype=dtype or torch.float32,
            attn_implementation=implementation_for(settings),
            trust_remote_code=config.trust_remote_code,
        )
    return model


def replaced_class(original: type[PreTrainedModel], plan: LoadPlan) -> Any:
    """Return a subclass of a model's class that runs our passes at the end of its constructor.

    At this point modules can be replaced after transformers has built the model on the meta device, and before it
    reads the weights.
    """

    def construct(model: PreTrainedModel, *args: Any, **options: Any) -> None:
        original.__init__(model, *args, **options)
        log(*replace_modules(model, plan))

    return type(original.__name__, (original,), {"__init__": construct, "__module__": original.__module__})


def read_model(
    config: ModelConfig,
    settings: PreTrainedConfig,
    dtype: torch.dtype | None,
    kind: Any,
    plan: LoadPlan,
    weights: Mapping[str, StoredTensor | StoredWeight] | None,
) -> PreTrainedModel:
    """Return a model of class `kind` with the weights of its files, which are mapped and copied once at most.

    weights: those of a quantised checkpoint; None: transformers reads the files itself. Raises ValueError for a
    model with logits if weights are missing, which transformers replaces by random ones.
    """
    on_device = plan.platform.asynchronous and plan.ranks.size == 1  # the host cuts weights that ranks share
    with nullcontext() if on_device else one_weight_at_a_time():
        model, info = kind.from_pretrained(
            config.path if weights is None else None,
            config=settings,
            state_dict=weights,
            dtype=dtype or "auto",
            attn_implementation=implementation_for(settings),
            use_safetensors=True,
            local_files_only=True,
            device_map={"": plan.platform.device} if on_device else None,
            output_loading_info=True,
        )
    missing = sorted(info["missing_keys"])
    if missing and (config.pooling is None or config.pooling.score_tokens):
        raise ValueError(f"its files have no weights for {', '.join(missing[:3])}")
    whole: PreTrainedModel = model
    return whole


@contextmanager
def one_weight_at_a_time() -> Iterator[None]:
    """Make transformers read each weight when it is needed, not ahead in threads: layers free packed weights."""
    before = os.environ.get(NO_READING_AHEAD)
    os.environ[NO_READING_AHEAD] = "1"
    try:
        yield
    finally:
        del os.environ[NO_READING_AHEAD]
        if before is not None:
            os.environ[NO_READING_AHEAD] = before


def random_model(
    config: ModelConfig, settings: PreTrainedConfig, dtype: torch.dtype | None, kind: Any, plan: LoadPlan
) -> PreTrainedModel:
    """Return a model of class `kind` with random weights, the same for each seed."""
    device = plan.platform.device if plan.ranks.size == 1 else torch.device("cpu")
    with device, torch.random.fork_rng():
        torch.manual_seed(config.seed)
        model: PreTrainedModel = kind._from_config(
            settings, dtype=dtype or torch.float32, attn_implementation=implementation_for(settings)
        )
    model.train(False)
    return model


def log(*reports: PassReport) -> None:
    """Log the report of each pass in one line."""
    for report in reports:
        logger.info("%s", report)


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


def progress(clock: ProgressClock, items: Collection[T], what: str) -> Iterator[T]:
    """Record the progress of a loop over weights, and log it every few seconds."""
    logged = time.monotonic()
    for count, item in enumerate(items):
        clock.loaded = count / len(items)
        if time.monotonic() - logged > SECONDS_BETWEEN_LINES:
            logged = time.monotonic()
            logger.info("%s: %d of %d", what, count, len(items))
        yield item
    clock.loaded = 1.0


def show_progress(clock: ProgressClock, factory: Any, args: Any, options: Any) -> Any:
    """Return transformers' progress bar, or log lines instead of a bar with a description."""
    return progress(clock, args[0], options["desc"]) if "desc" in options else factory(*args, **options)


def first_position(model: nn.Module, max_model_len: int) -> int:
    """Return the first position, which in some tables (RoBERTa's) follows the padding's.

    Raises ValueError if the table ends before `max_model_len`.
    """
    tables = [table for name, table in model.named_modules() if name.endswith("position_embeddings")]
    for table in (table for table in tables if getattr(table, "padding_idx", None) is not None):
        first: int = table.padding_idx + 1
        if first + max_model_len > table.num_embeddings:
            raise ValueError(
                f"max_model_len is {max_model_len}; positions end at {table.num_embeddings - first}"
            )
        return first
    return 0
