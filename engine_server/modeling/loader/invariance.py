"""The checks that a model's results are bitwise independent of batch composition."""

import logging

from torch import nn
from transformers import PreTrainedModel

from engine_server.config import ModelConfig
from engine_server.modeling.attention.interface import AttentionBackend, UnsupportedModelError
from engine_server.modeling.device.communicator import Communicator
from engine_server.modeling.layers.embedding import Embedding
from engine_server.modeling.layers.experts import Experts
from engine_server.modeling.layers.fused_router import FusedRouter
from engine_server.modeling.layers.linear import FusedLinear, Linear
from engine_server.modeling.layers.norm import FusedLayerNorm, FusedRMSNorm
from engine_server.modeling.loader.encoder import encoder_aside
from engine_server.modeling.platform.interface import Platform

# Layers in which each row's result depends on that row alone if its product does.
ROW_BY_ROW = (
    Linear, FusedLinear, Embedding, FusedRouter, FusedRMSNorm, FusedLayerNorm, nn.LayerNorm, nn.Embedding,
)  # fmt: skip
logger = logging.getLogger(__name__)


def settle_invariance(
    config: ModelConfig,
    model: PreTrainedModel,
    attention: AttentionBackend,
    platform: Platform,
    ranks: Communicator,
) -> bool:
    """Return True if the results of a loaded model are bitwise independent of batch composition, and log it.

    Without a setting they are if the fastest products have a fixed order of summation, so that it costs nothing.
    Raises ValueError if they are required to be and can't.
    """
    if config.batch_invariant is False:
        return False
    try:
        check_setup(config, platform, ranks)
        check_modules(model, platform)
        check_products(model)
        attention.require_invariance(model.dtype)
    except ValueError as error:
        if config.batch_invariant:
            raise
        # A record may outlive the error's frames, which hold the model.
        logger.info("results may depend on batch composition: %s", str(error))
        return False
    logger.info("results are bitwise independent of batch composition")
    return True


def check_setup(config: ModelConfig, platform: Platform, ranks: Communicator) -> None:
    """Raise ValueError where no kernels are bitwise independent of batch composition."""
    if ranks.size > 1 or not platform.batch_invariant:
        raise ValueError(
            "batch_invariant takes one GPU with Triton and gcc, or one process on an x86-64 CPU with the kernels that "
            f"g++ compiles; this is {ranks.size} {platform.device.type} without them or with several ranks"
        )
    if platform.device.type == "cpu" and config.pooling is not None:
        raise ValueError("batch_invariant on a CPU takes models that generate; poolers run in plain torch")


def check_modules(model: PreTrainedModel, platform: Platform) -> None:
    """Raise UnsupportedModelError for modules whose order of summation may depend on the batch.

    The encoder of pictures takes them one by one.
    """
    with encoder_aside(model):
        for module in model.modules():
            if list(module.parameters(recurse=False)) and not is_row_by_row(module):
                names = f"{type(module).__name__} of {type(model).__name__}"
                raise UnsupportedModelError(f"batch_invariant: the order of summation in {names} is unknown")
        platform.check_fixed_order(model)


def is_row_by_row(module: nn.Module) -> bool:
    """Return True if a module computes each row from that row alone."""
    return module.fixed_order if isinstance(module, Experts) else isinstance(module, ROW_BY_ROW)


def check_products(model: nn.Module) -> None:
    """Raise UnsupportedModelError for products in which a row's result may depend on the number of rows."""
    for module in model.modules():
        if (
            isinstance(module, (Linear, FusedLinear))
            and module.format is not None
            and not module.format.fixed_order
        ):
            raise UnsupportedModelError(
                f"batch_invariant: the products of {type(module.format).__name__} have an order of summation that "
                "depends on the number of rows"
            )
