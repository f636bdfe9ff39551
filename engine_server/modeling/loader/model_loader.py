"""The loading of a model: from a folder to the platform's device."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import torch
import transformers
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from engine_server.config import LoadConfig, ModelConfig
from engine_server.modeling.attention.interface import UnsupportedModelError
from engine_server.modeling.device.communicator import Communicator
from engine_server.modeling.device.progress import ProgressClock
from engine_server.modeling.formats.checkpoints.stored import Weights, stored_tensors
from engine_server.modeling.loader.attention import implementation_for, replace_attention
from engine_server.modeling.loader.encoder import encoder_aside, remove_encoder
from engine_server.modeling.loader.invariance import check_setup
from engine_server.modeling.loader.leftovers import check_tensors
from engine_server.modeling.loader.model_folder import ModelFolder, open_folder
from engine_server.modeling.loader.passes import LoadPlan, replace_modules, verified_choices
from engine_server.modeling.loader.progress import reported_progress
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
    if config.batch_invariant:
        check_setup(config, platform, ranks)
    with reported_progress(clock or ProgressClock()), named_errors(config.path):
        folder = open_folder(config, load, platform)
        skeleton = checked_skeleton(config, load, folder)
        plan = verified_plan(skeleton, config, load, folder, platform, ranks)
        kind = replaced_class(type(skeleton), plan)
        if load.load_format == "dummy":
            model = random_model(config, skeleton.config, folder.dtype, kind, plan)
        else:
            weights = folder.weights(skeleton, load)
            check_memory(skeleton, weights, config, load, folder, plan)
            model = read_model(config, skeleton.config, folder.dtype, kind, plan, weights)
    model.__class__ = type(skeleton)
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            module.warn_if_padding_and_no_attention_mask = no_warning  # type: ignore[method-assign]
    complete(model, platform, config.max_model_len)
    return model


def checked_skeleton(config: ModelConfig, load: LoadConfig, folder: ModelFolder) -> PreTrainedModel:
    """Return transformers' model on the meta device.

    Raises UnsupportedModelError for layers that we don't serve, and ValueError for tensors that the model lacks.
    """
    with refused_by_name(folder.architecture):
        if not config.is_encoder:
            check_layer_types(folder.settings, folder.architecture)
        skeleton = empty_model(config, folder.settings, folder.dtype)
        if config.refuses_pictures:
            remove_encoder(skeleton)
    if load.load_format != "dummy":
        checkpoint = folder.checkpoint
        tensors = stored_tensors(Path(config.path)) if checkpoint is None else checkpoint.tensors
        check_tensors(skeleton, tensors, Path(config.path))
    return skeleton


def verified_plan(
    skeleton: PreTrainedModel,
    config: ModelConfig,
    load: LoadConfig,
    folder: ModelFolder,
    platform: Platform,
    ranks: Communicator,
) -> LoadPlan:
    """Return the plan of the passes, with the versions of ours that compute as `skeleton` does.

    Replaces the skeleton's attention too, since later checks are by our classes.
    """
    with refused_by_name(folder.architecture):
        choices = verified_choices(skeleton, platform, config.max_model_len)
    replace_attention(skeleton)
    tokens = () if config.pooling is None else config.pooling.score_tokens
    takes_pictures = not config.refuses_pictures
    return LoadPlan(
        platform, ranks, bool(config.batch_invariant), choices, load.quantization, tokens, takes_pictures
    )


def check_memory(
    skeleton: PreTrainedModel,
    weights: Weights | None,
    config: ModelConfig,
    load: LoadConfig,
    folder: ModelFolder,
    plan: LoadPlan,
) -> None:
    """Raise ValueError if the weights don't fit into the memory that is free."""
    needed = needed_bytes(Path(config.path), weights, folder.dtype, plan.layout, bool(plan.formatted))
    with encoder_aside(skeleton) as encoder:
        needed -= saved_bytes(skeleton, load.quantization, skeleton.dtype, plan.layout, plan.formatted)
    whole = sum(weight.nbytes for part in encoder for weight in part.module.parameters())
    check_room(needed, plan.platform, plan.ranks.size, whole)


@contextmanager
def named_errors(path: str) -> Iterator[None]:
    """Name the model's folder in what is raised."""
    try:
        yield
    except UnsupportedModelError:
        raise
    except (OSError, KeyError, ValueError) as error:
        raise ValueError(f"the model in {path} can't be loaded: {error}") from error


def complete(model: PreTrainedModel, platform: Platform, max_model_len: int) -> None:
    """Run the passes after the loading over a model whose weights were read, and move it to the platform's device."""
    log(settle(model))
    model.requires_grad_(False)
    nn.Module.to(model, platform.device)
    with encoder_aside(model):
        log(tabulate_ropes(model, model.dtype, platform.device, max(LEAST_POSITIONS, max_model_len)))


def no_warning(token_ids: Any, attention_mask: Any) -> None:
    """Do nothing, instead of reading every step's tokens to warn about padding, which flat batches don't have."""


def empty_model(
    config: ModelConfig, settings: PreTrainedConfig, dtype: torch.dtype | None
) -> PreTrainedModel:
    """Return transformers' model on the meta device."""
    with_pictures = type(settings) in transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    causal = type(settings) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING or not with_pictures
    kind = "AutoModelForCausalLM" if causal else "AutoModelForImageTextToText"
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
        if not plan.loads_encoder:
            remove_encoder(model)
        log(*replace_modules(model, plan))

    return type(original.__name__, (original,), {"__init__": construct, "__module__": original.__module__})


def read_model(
    config: ModelConfig,
    settings: PreTrainedConfig,
    dtype: torch.dtype | None,
    kind: Any,
    plan: LoadPlan,
    weights: Weights | None,
) -> PreTrainedModel:
    """Return a model of class `kind` with the weights of its files.

    weights: those of a quantised checkpoint; None: transformers reads the files itself. Raises ValueError for a
    model with logits if weights are missing, which transformers replaces by random ones.
    """
    model: PreTrainedModel
    model, info = from_weights(kind, settings, config.path if weights is None else weights, dtype, plan)
    missing = sorted(info["missing_keys"])
    if missing and (config.pooling is None or config.pooling.score_tokens):
        raise ValueError(f"its files have no weights for {', '.join(missing[:3])}")
    return model


def from_weights(
    kind: Any,
    settings: PreTrainedConfig,
    weights: str | Weights,
    dtype: torch.dtype | None,
    plan: LoadPlan,
    **options: Any,
) -> tuple[Any, dict[str, Any]]:
    """Return a module of class `kind` and transformers' report of the loading. Weights are copied once at most.

    weights: by name, or the folder whose files transformers reads itself, mapped. options: of transformers' loader.
    """
    on_device = plan.platform.asynchronous and plan.ranks.size == 1  # the host cuts weights that ranks share
    with nullcontext() if on_device else one_weight_at_a_time():
        module, info = kind.from_pretrained(
            weights if isinstance(weights, str) else None,
            config=settings,
            state_dict=None if isinstance(weights, str) else weights,
            dtype=dtype or "auto",
            attn_implementation=implementation_for(settings),
            use_safetensors=True,
            local_files_only=True,
            device_map={"": plan.platform.device} if on_device else None,
            output_loading_info=True,
            **options,
        )
    return module, info


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
