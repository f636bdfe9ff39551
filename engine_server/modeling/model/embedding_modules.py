"""The layers of an embedding model after pooling, as sentence-transformers stores them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from engine_server.config import DenseActivation, DenseModule, NormalizeModule

WEIGHTS = "model.safetensors"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ACTIVATIONS: dict[DenseActivation, type[nn.Module]] = {
    "Identity": nn.Identity,
    "Tanh": nn.Tanh,
    "Sigmoid": nn.Sigmoid,
    "LogSigmoid": nn.LogSigmoid,
    "Hardtanh": nn.Hardtanh,
    "Softsign": nn.Softsign,
    "Softplus": nn.Softplus,
    "ReLU": nn.ReLU,
    "ReLU6": nn.ReLU6,
    "LeakyReLU": nn.LeakyReLU,
    "ELU": nn.ELU,
    "SELU": nn.SELU,
    "GELU": nn.GELU,
    "SiLU": nn.SiLU,
    "Mish": nn.Mish,
}


class Dense(nn.Module):
    """A linear layer with an activation, and the input added to the output where the module has a residual."""

    def __init__(self, module: DenseModule) -> None:
        super().__init__()
        self.linear = nn.Linear(module.in_features, module.out_features, module.bias)
        self.activation = ACTIVATIONS[module.activation]()
        self.adds_input = module.residual
        if module.residual and module.in_features != module.out_features:
            self.residual: nn.Linear | None = nn.Linear(module.in_features, module.out_features, bias=False)
        else:
            self.residual = None

    def forward(self, vector: Tensor) -> Tensor:
        """Return float32 [out_features] of float32 [in_features]."""
        output: Tensor = self.activation(self.linear(vector))
        if self.adds_input:
            output = output + (vector if self.residual is None else self.residual(vector))
        return output


class Normalize(nn.Module):
    """A scaling to length 1."""

    def forward(self, vector: Tensor) -> Tensor:
        return F.normalize(vector, dim=-1)


def load_embedding_modules(
    folder: Path, modules: Sequence[DenseModule | NormalizeModule], device: torch.device, seed: int | None
) -> nn.Sequential:
    """Return the layers in float32, whatever the model's dtype is: float32 [hidden] to float32 [dimensions].

    seed: of random weights; None: read those in the folder. Raises ValueError for weights that don't fit.
    """
    with torch.device("meta"):
        layers = [Dense(module) if isinstance(module, DenseModule) else Normalize() for module in modules]
    generator = torch.Generator().manual_seed(seed or 0)
    for module, layer in zip(modules, layers, strict=True):
        if isinstance(module, DenseModule):
            shapes = {name: tensor.shape for name, tensor in layer.state_dict().items()}
            if seed is None:
                tensors = read_weights(folder / module.path / WEIGHTS, shapes)
            else:
                scale = module.in_features**-0.5
                tensors = {
                    name: torch.randn(shape, generator=generator) * scale for name, shape in shapes.items()
                }
            layer.load_state_dict({name: tensor.float() for name, tensor in tensors.items()}, assign=True)
    return nn.Sequential(*layers).requires_grad_(False).to(device)


def read_weights(file: Path, shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """Return the tensors in a file. Raises ValueError for others than those of `shapes`, and for wrong dtypes."""
    if not file.is_file():
        raise ValueError(f"{file} is missing; weights of modules are read from safetensors alone")
    try:
        tensors = load_file(file)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{file} can't be read: {error}") from error
    found = {name: tensor.shape for name, tensor in tensors.items()}
    if found != shapes:
        given, needed = ({name: tuple(shape) for name, shape in one.items()} for one in (found, shapes))
        raise ValueError(f"{file} has tensors of the shapes {given}; by its config.json they are {needed}")
    if wrong := [tensor.dtype for tensor in tensors.values() if tensor.dtype not in DTYPES]:
        raise ValueError(f"{file} has {wrong[0]} tensors; it takes float32, bfloat16 and float16")
    return dict(tensors)
