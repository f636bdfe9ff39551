"""The time of a decode step's products and small kernels, with and without programmatic dependent launch.

    python -m benchmarks.gpu.dependent_launch

prints the device time of a layer without attention, in graphs as the engine's, for engine_server/modeling/kernels/
dependent_launch.py.
"""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from benchmarks.gpu import layers
from benchmarks.gpu.layers import EPS, numbers
from benchmarks.gpu.limits import CALLS, seconds
from engine_server.modeling.kernels import dependent_launch
from engine_server.modeling.kernels.activation import gated
from engine_server.modeling.kernels.norm import rms_norm

SEQUENCES = (1, 64)


def layer(model: str, sequences: int) -> Callable[[], Tensor]:
    """Return the kernels of a layer in decode but attention's."""
    shape = layers.MODELS[model]
    hidden, width, dim = shape["hidden_size"], shape["intermediate_size"], shape["head_dim"]
    heads = shape["num_attention_heads"], shape["num_key_value_heads"]
    joined, out = numbers((heads[0] + 2 * heads[1]) * dim, hidden), numbers(hidden, heads[0] * dim)
    gate_up, down, weight = numbers(2 * width, hidden), numbers(hidden, width), numbers(hidden)
    write = layers.head_write(shape, sequences)
    x, residual = numbers(sequences, hidden), numbers(sequences, hidden)

    def run() -> Tensor:
        total, normed = rms_norm(x, weight, EPS, residual=residual)
        sizes = [heads[0] * dim, heads[1] * dim, heads[1] * dim]
        parts = F.linear(normed, joined).split(sizes, 1)
        turned = write.ours(*(part.unflatten(1, (-1, dim)) for part in parts))
        total, normed = rms_norm(F.linear(turned.flatten(1), out), weight, EPS, residual=total)
        return F.linear(gated("silu", F.linear(normed, gate_up)), down)

    return run


def main() -> None:
    for model in layers.MODELS:
        for sequences in SEQUENCES:
            works = [layer(model, sequences) for _ in range(CALLS)]
            for enabled in (False, True):
                dependent_launch.ENABLED = enabled
                print(
                    f"{model}, {sequences} sequences, dependent launch {enabled}: {seconds(works) * 1e6:.2f} us a layer"
                )


if __name__ == "__main__":
    main()
