"""The tensors of safetensors files, which are read when they are needed, and checks of them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine_server.contract.base.quoting import quote
from engine_server.model_sources.folder import open_weights, weight_files
from engine_server.modeling.formats.finite import all_finite
from engine_server.modeling.formats.grouped import Form
from engine_server.modeling.formats.quantized import QuantizedFormat
from engine_server.modeling.formats.quantized_tensor import QuantizedTensor


class StoredTensor:
    """A tensor in a file, which indexing reads, as transformers does."""

    def __init__(self, name: str, source: Any) -> None:
        """source: a slice object of safetensors."""
        self.name, self._source = name, source
        self.shape: tuple[int, ...] = tuple(source.get_shape())
        # The name in safetensors' headers: F32, I32, F8_E4M3, ...
        self.dtype: str = source.get_dtype()

    def __getitem__(self, index: Any) -> Tensor:
        tensor: Tensor = self._source[index]
        return tensor

    def read(self) -> Tensor:
        return self[...]

    def finite(self) -> Tensor:
        """Return the tensor in float32. Raises ValueError if it contains NaN or infinity."""
        tensor = self.read().float()
        if not all_finite(tensor):
            raise ValueError(f"{self.name} contains NaN or infinite values")
        return tensor

    def check(self, dtypes: Iterable[str], shape: Sequence[int]) -> None:
        """Raise ValueError for another dtype or shape."""
        if self.dtype not in dtypes:
            raise ValueError(f"{self.name} is {self.dtype}; expected is {' or '.join(dtypes)}")
        if self.shape != tuple(shape):
            raise ValueError(f"{self.name} has the shape {list(self.shape)}; expected is {list(shape)}")

    def check_dimensions(self, count: int) -> None:
        """Raise ValueError for another number of dimensions."""
        if len(self.shape) != count:
            raise ValueError(f"{self.name} has the shape {list(self.shape)}; expected are {count} dimensions")


class StoredWeight:
    """A quantised weight, which is read from several tensors of a file when it is indexed."""

    def __init__(
        self,
        shape: Sequence[int],
        parts: Iterable[StoredTensor],
        form: Form,
        build: Callable[[torch.dtype], QuantizedFormat],
    ) -> None:
        """Describe a weight.

        form: its own, or that of each expert of a stack. build: reads `parts` and returns the weight, given the dtype
        in which it is computed.
        """
        self.shape, self.parts, self.form, self._build = tuple(shape), list(parts), form, build
        self.dtype = torch.float32
        # Dequantise it when it is read.
        self.dense = False

    def __getitem__(self, index: Any) -> Tensor:
        weight = self._build(self.dtype)
        return weight.dense() if self.dense else QuantizedTensor(weight, torch.device("cpu"))


# Those of a quantised checkpoint, by name.
Weights = Mapping[str, StoredTensor | StoredWeight]


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a model's files by name. Raises ValueError for a damaged file."""
    tensors = {}
    for path in weight_files(folder):
        file = open_weights(path, "pt")
        tensors.update({name: StoredTensor(name, file.get_slice(name)) for name in file.keys()})  # noqa: SIM118
    return tensors


def check_one_set(folder: Path) -> None:
    """Raise ValueError for a tensor that is in two files of a folder, which then has two sets of weights."""
    places: dict[str, str] = {}
    for path in weight_files(folder):
        for name in open_weights(path, "pt").keys():  # noqa: SIM118
            if name in places:
                raise ValueError(
                    f"{quote(name)} is in {places[name]} and in {path.name}; a folder has one set of weights"
                )
            places[name] = path.name


FLOATS = ("F32", "F16", "BF16")
