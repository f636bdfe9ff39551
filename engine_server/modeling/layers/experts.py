"""Mixtures of experts, whose weights are 3-D parameters of one module."""

from typing import Any, ClassVar

from torch import Tensor, nn

from engine_server.modeling.device.communicator import Communicator
from engine_server.modeling.formats.dense import DenseFormat
from engine_server.modeling.formats.quantized_tensor import dense
from engine_server.modeling.formats.weight_format import Cut, WeightFormat
from engine_server.modeling.layers.weight_layer import WeightLayer, derived_class, original_class
from engine_server.modeling.native.recording import one_operation


class ReceivedParameters(WeightLayer):
    """A transformers module whose parameters are received, and cut if ranks share them."""

    # The part of each parameter that this rank keeps, by the parameter's name.
    cuts: dict[str, Cut]
    # Formats by the names of their parameters.
    formats: dict[str, WeightFormat]

    def receive(self, name: str, tensor: Tensor) -> None:
        whole = DenseFormat(dense(tensor))
        format = whole.shard(self.cuts[name]) if name in self.cuts else whole
        format.weight._is_hf_initialized = True  # type: ignore[attr-defined]
        self.formats[name] = format
        self._parameters[name] = format.weight

    def settle(self) -> None:
        for name, parameter in self._parameters.items():
            if parameter is not None and name not in self.formats:
                self.receive(name, parameter)


class Experts(ReceivedParameters):
    """Experts [tokens, hidden] to [tokens, hidden], computed by the forward of transformers' class."""

    # A token's result may be required to be bitwise independent of the other tokens.
    fixed_order: ClassVar[bool] = False
    # The ranks over which the results are summed.
    ranks: Communicator | None = None

    @one_operation  # its operations depend on the chosen experts
    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        output: Tensor = super().forward(hidden_states, *args, **kwargs)
        return output if self.ranks is None else self.ranks.sum(output)


def receive_parameters(
    module: nn.Module, kind: type[ReceivedParameters] = ReceivedParameters
) -> ReceivedParameters:
    """Change the class of `module` to one that derives from `kind` too, unless it does already."""
    if not isinstance(module, ReceivedParameters):
        module.__class__ = derived_class((kind, type(module)), original_class(module))
        assert isinstance(module, ReceivedParameters)
        module.cuts, module.formats = {}, {}
    return module


def has_experts(module: nn.Module) -> bool:
    """Check for 3-D parameters, as transformers keeps the weights of experts. Those of a convolution have 3 too."""
    return not isinstance(module, nn.Conv1d) and any(
        parameter.ndim == 3 for parameter in module._parameters.values() if parameter is not None
    )
