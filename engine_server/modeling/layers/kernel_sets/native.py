"""The kernel set of a CPU for which our C++ kernels were compiled.

Inputs that a kernel doesn't support (another dtype, rows that don't fill vectors) are computed by plain torch.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from engine_server.modeling.layers.kernel_sets import plain as plain_torch
from engine_server.modeling.layers.kernel_sets.kernel_set import Gate, KernelSet, Rotation
from engine_server.modeling.layers.routed_experts import RoutedExperts
from engine_server.modeling.native.activation import ACTIVATIONS, activate
from engine_server.modeling.native.library import DTYPES, VECTOR, address, kernels
from engine_server.modeling.recurrence.native import NativeConvolution, NativeDeltaRule, NativeStateSpace


def fits(*tensors: Tensor) -> bool:
    """Return True for contiguous rows of one dtype that the kernels support."""
    dtypes = {tensor.dtype for tensor in tensors}
    return len(dtypes) == 1 and dtypes <= set(DTYPES) and all(tensor.stride(-1) == 1 for tensor in tensors)


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, offset: float, residual: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Compute the norm of kernels/norm.py."""
    dim = x.shape[-1]
    # Heads within a fused product are contiguous for a single token only: any number of tokens takes the kernel.
    x, residual = x.contiguous(), None if residual is None else residual.contiguous()
    given = [x] if residual is None else [x, residual]
    if dim % VECTOR or not fits(*given, weight):
        return plain_torch.rms_norm(x, weight, eps, offset, residual)
    total = x if residual is None else torch.empty_like(x)
    out = torch.empty_like(x)
    kernels().rms_norm(
        x.dtype == torch.bfloat16, total.data_ptr(), out.data_ptr(), x.data_ptr(),
        None if residual is None else residual.data_ptr(), weight.data_ptr(), x.numel() // dim, dim, eps, offset,
    )  # fmt: skip
    return total, out


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """Return the layer norm of rows [..., dim]."""
    dim, x = x.shape[-1], x.contiguous()
    if dim % VECTOR or not fits(x, weight, *[] if bias is None else [bias]):
        return F.layer_norm(x, weight.shape, weight, bias, eps)
    out = torch.empty_like(x)
    kernels().layer_norm(
        x.dtype == torch.bfloat16, out.data_ptr(), x.data_ptr(), weight.data_ptr(), address(bias), x.numel() // dim,
        dim, eps,
    )  # fmt: skip
    return out


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up: [..., 2 * dim] to [..., dim]."""
    return _gate(kernels().silu_and_mul, plain_torch.silu_and_mul, gate_up)


def gelu_tanh_and_mul(gate_up: Tensor) -> Tensor:
    """Return gelu(gate) * up, with GELU's approximation by tanh: [..., 2 * dim] to [..., dim]."""
    return _gate(kernels().gelu_tanh_and_mul, plain_torch.gelu_tanh_and_mul, gate_up)


def _gate(kernel: Callable[..., None], plain: Gate, gate_up: Tensor) -> Tensor:
    dim = gate_up.shape[-1] // 2
    if dim % VECTOR or not fits(gate_up) or not gate_up.is_contiguous():
        return plain(gate_up)
    out = gate_up.new_empty(*gate_up.shape[:-1], dim)
    kernel(gate_up.dtype == torch.bfloat16, out.data_ptr(), gate_up.data_ptr(), out.numel() // dim, dim)
    return out


def rotations(width: int, dim: int) -> list[Rotation]:
    """Return the only supported rotation, of whole heads."""
    plain = plain_torch.rotations(width, dim)
    return [partial(_rotate_pair, one) for one in plain] if dim % (2 * VECTOR) == 0 else [*plain]


def _rotate_pair(
    plain: Rotation, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor]:
    """Rotate query and key [1, heads, T, dim]; cos, sin: [1, T, dim], each angle twice."""
    if not fits(query, key, cos, sin) or not cos.is_contiguous() or not sin.is_contiguous():
        return plain(query, key, cos, sin)
    return _rotate(query, cos, sin), _rotate(key, cos, sin)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    _, heads, tokens, dim = x.shape
    out = x.new_empty(1, tokens, heads, dim)
    kernels().rotate(
        x.dtype == torch.bfloat16, out.data_ptr(), x.data_ptr(), x.stride(2), x.stride(1),
        cos.data_ptr(), sin.data_ptr(), tokens, heads, dim,
    )  # fmt: skip
    return out.transpose(1, 2)


def add_low_rank(out: Tensor, x: Tensor, slots: Tensor, a: Tensor, b: Tensor, ranks: Tensor) -> None:
    """Add to out [rows, out] the updates of x [rows, in] by the adapters in `slots`, int32 [rows]; -1: none.

    a, b, ranks: see LowRankTable.
    """
    if not fits(out, x, a):
        plain_torch.add_low_rank(out, x, slots, a, b, ranks)
        return
    kernels().add_low_rank(
        out.dtype == torch.bfloat16, out.data_ptr(), out.stride(0), x.data_ptr(), x.stride(0), slots.data_ptr(),
        a.data_ptr(), b.data_ptr(), ranks.data_ptr(), *x.shape, out.shape[1], a.shape[1],
    )  # fmt: skip


NATIVE = KernelSet(
    rms_norm, (0.0, 1.0), [silu_and_mul, gelu_tanh_and_mul], rotations, add_low_rank, layer_norm,
    [partial(activate, kind) for kind in range(len(ACTIVATIONS))], (RoutedExperts,),
    recurrences=(NativeConvolution, NativeDeltaRule, NativeStateSpace),
)  # fmt: skip
