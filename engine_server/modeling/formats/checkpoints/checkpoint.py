"""The choice of a checkpoint's reader, and the weights that it reads."""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from engine_server.model_sources import settings_tables as tables
from engine_server.model_sources.folder_settings import Format
from engine_server.model_sources.gguf.conversion import METHOD
from engine_server.modeling.formats.checkpoints.awq import Awq
from engine_server.modeling.formats.checkpoints.compressed_tensors import CompressedTensors
from engine_server.modeling.formats.checkpoints.float8 import Float8
from engine_server.modeling.formats.checkpoints.gptq import Gptq
from engine_server.modeling.formats.checkpoints.modelopt import ModelOpt
from engine_server.modeling.formats.checkpoints.mxfp4 import Mxfp4
from engine_server.modeling.formats.checkpoints.own import Own
from engine_server.modeling.formats.checkpoints.scheme import Scheme
from engine_server.modeling.formats.checkpoints.stored import (
    StoredTensor,
    StoredWeight,
    check_one_set,
    stored_tensors,
)

# Readers by the `quant_method` of a config's `quantization_config`.
SCHEMES: dict[str, type[Scheme]] = {
    "awq": Awq,
    "compressed-tensors": CompressedTensors,
    METHOD: Own,
    "fbgemm_fp8": Float8,
    "fp8": Float8,
    "gptq": Gptq,
    "modelopt": ModelOpt,
    "mxfp4": Mxfp4,
}
# Their settings, but for those of our own form.
SETTINGS: dict[str, Format] = {
    "awq": tables.AWQ,
    "compressed-tensors": tables.COMPRESSED_TENSORS,
    "fbgemm_fp8": tables.FBGEMM,
    "fp8": tables.FP8,
    "gptq": tables.GPTQ,
    "modelopt": tables.MODELOPT,
    "mxfp4": tables.MXFP4,
}


class NothingQuantizedError(ValueError):
    """The weights of a folder are not those that its settings describe, but dense."""


class QuantizedCheckpoint:
    """The weights of a quantised checkpoint, by the names of a dense one's parameters."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], place: str) -> None:
        """settings: as a config's `quantization_config` has them. place: of the settings, for messages.

        Raises ValueError for an unknown format, and for tensors that don't fit it, by name.
        """
        method = settings.get("quant_method") if isinstance(settings, Mapping) else None
        if not isinstance(method, str) or method not in SCHEMES:
            raise ValueError(
                f"its weights are quantized with {method}, which is not supported; "
                f"known are {', '.join(sorted(SCHEMES))}"
            )
        if method in SETTINGS:
            SETTINGS[method].check(settings, place)
        try:
            scheme = SCHEMES[method](settings)
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from error
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"{place} is not one of {method}: {error!r}") from error
        check_one_set(folder)
        modules: dict[str, dict[str, StoredTensor]] = defaultdict(dict)
        for name, tensor in stored_tensors(folder).items():
            module, _, own = name.rpartition(".")
            modules[module][own] = tensor
        self.tensors: dict[str, StoredTensor | StoredWeight] = {}
        for module, parts in modules.items():
            found = scheme.weights(parts)
            self.tensors.update({f"{module}.{own}": tensor for own, tensor in (found | parts).items()})
        if not self.weights:
            raise NothingQuantizedError(f"{place} says that weights are quantized with {method}, and none is")

    @property
    def weights(self) -> list[StoredWeight]:
        """The quantised weights."""
        return [tensor for tensor in self.tensors.values() if isinstance(tensor, StoredWeight)]

    def state(self, dtype: torch.dtype, dense: bool) -> dict[str, StoredTensor | StoredWeight]:
        """Return the weights by name, which are read when they are indexed.

        dtype: that of the values with which weights are multiplied. dense: dequantise all.
        """
        for weight in self.weights:
            weight.dtype, weight.dense = dtype, dense
        return self.tensors
