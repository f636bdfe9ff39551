"""Recurrences by the CPU's kernels: token by token, so that results don't depend on how a prompt is cut.

Inputs that a kernel doesn't support (another dtype, states that don't fill vectors) are computed in plain torch.
"""

import torch
from torch import Tensor

from engine_server.modeling.attention.states import Recurrence
from engine_server.modeling.native.activation import softplus
from engine_server.modeling.native.library import DTYPES, VECTOR, address, kernels
from engine_server.modeling.recurrence import delta_rule, state_space
from engine_server.modeling.recurrence.convolution import Convolution, Filter
from engine_server.modeling.recurrence.delta_rule import DeltaRule
from engine_server.modeling.recurrence.state_space import Rule, StateSpace

# Activations that the convolution computes, by transformers' names.
ACTIVATIONS = (None, "silu", "swish")


class NativeConvolution(Convolution):
    """A convolution by the kernel `convolve`."""

    def continued(self, recurrence: Recurrence, states: Tensor, inputs: Tensor, taps: Filter) -> Tensor:
        (weight, bias, activation), dtype = taps, inputs.dtype
        if not fits(inputs, weight.shape[:1]) or weight.dtype != dtype or activation not in ACTIVATIONS:
            return super().continued(recurrence, states, inputs, taps)
        inputs, by_tap = as_tokens(inputs), weight.t().contiguous()
        out = torch.empty(inputs.shape, dtype=dtype)
        kernels().convolve(
            dtype == torch.bfloat16, activation is not None, out.data_ptr(), inputs.data_ptr(), inputs.stride(0),
            by_tap.data_ptr(), address(bias), states.data_ptr(), *sequences(recurrence), *weight.shape,
        )  # fmt: skip
        return out


class NativeDeltaRule(DeltaRule):
    """The rule by the kernel `delta_rule`."""

    def continued(
        self, recurrence: Recurrence, states: Tensor, tokens: delta_rule.Tokens, normalises: bool
    ) -> Tensor:
        dtype = tokens.value.dtype
        if not fits(tokens.value, states.shape[2:]):
            return super().continued(recurrence, states, tokens, normalises)
        query, key, value = (as_tokens(one.to(dtype)) for one in tokens[:3])
        decay, beta = tokens.decay.float().contiguous(), tokens.beta.float().contiguous()
        out = torch.empty(value.shape, dtype=dtype)
        kernels().delta_rule(
            dtype == torch.bfloat16, out.data_ptr(), query.data_ptr(), query.stride(0), key.data_ptr(), key.stride(0),
            value.data_ptr(), value.stride(0), decay.data_ptr(), beta.data_ptr(), states.data_ptr(),
            *sequences(recurrence), query.shape[1], *states.shape[1:], normalises,
        )  # fmt: skip
        return out


class NativeStateSpace(StateSpace):
    """A state space by the kernel `state_space`."""

    def continued(
        self, recurrence: Recurrence, states: Tensor, tokens: state_space.Tokens, rule: Rule
    ) -> Tensor:
        dtype = tokens.x.dtype
        if not fits(tokens.x, states.shape[2:]):
            return super().continued(recurrence, states, tokens, rule)
        x, inward, outward = (as_tokens(one.to(dtype)) for one in (tokens.x, tokens.inward, tokens.outward))
        steps, rates = rule.steps(tokens.steps, softplus).contiguous(), rule.rates.float().contiguous()
        skip = None if rule.skip is None else rule.skip.float().contiguous()
        out = torch.empty(x.shape)
        _, heads, dim, size = states.shape
        kernels().state_space(
            dtype == torch.bfloat16, out.data_ptr(), x.data_ptr(), x.stride(0), inward.data_ptr(), inward.stride(0),
            outward.data_ptr(), outward.stride(0), steps.data_ptr(), rates.data_ptr(), address(skip),
            states.data_ptr(), *sequences(recurrence), heads, inward.shape[1], dim, size,
        )  # fmt: skip
        return out


def fits(values: Tensor, sizes: torch.Size) -> bool:
    """Return True for a dtype, and sizes of a state, that the kernels support."""
    return values.dtype in DTYPES and not any(size % VECTOR for size in sizes)


def as_tokens(values: Tensor) -> Tensor:
    """Return values [T, ...] in which the elements of a token follow each other, copied only if necessary."""
    return values if values[:1].is_contiguous() else values.contiguous()


def sequences(recurrence: Recurrence) -> tuple[int, int]:
    """Return the address of the running forward's sequences, and their number."""
    return recurrence.sequences.data_ptr(), recurrence.sequences.shape[1]
