"""Activations by a kernel."""

from torch import Tensor, nn

from engine_server.modeling.layers.kernel_sets import kernel_set


class Activation(nn.Module):
    """A function of each element, [...] to [...]."""

    def __init__(self, kernel: kernel_set.Activation) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(self, x: Tensor) -> Tensor:
        return self.kernel(x)
