"""Causal convolution of each channel, over the tokens of a flat batch."""

from typing import Any

import torch
from torch import Tensor
from transformers.activations import ACT2FN

from engine_server.modeling.attention.hook import refuse_options, running_forward
from engine_server.modeling.attention.states import StateShape
from engine_server.modeling.recurrence.function import RecurrentFunction


class Convolution(RecurrentFunction):
    """In place of transformers' `causal_conv1d_fn`."""

    def __call__(
        self,
        hidden_states: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
        **options: Any,
    ) -> Tensor:
        """Return [1, channels, T] of as many inputs; weight: [channels, K]; bias: [channels]."""
        refuse_options("a convolution is given", options)
        recurrence = running_forward().recurrence
        channels, width = weight.shape
        # A sequence's state is its last K - 1 inputs, zeros before its first.
        tails = recurrence.read(StateShape((channels, width - 1), hidden_states.dtype), weight.device)
        if all(length == 1 for length in recurrence.lengths):
            inputs = torch.cat([tails, hidden_states[0].t().unsqueeze(-1)], -1)
            recurrence.write(inputs[..., 1:])
            output = convolved(inputs.to(weight.dtype), weight, bias).squeeze(-1).t()
        else:
            parts = torch.split(hidden_states[0], list(recurrence.lengths), dim=-1)
            continued = [torch.cat(pair, -1) for pair in zip(tails, parts, strict=True)]
            recurrence.write(torch.stack([one[:, one.shape[1] - width + 1 :] for one in continued]))
            output = torch.cat([convolved(one.to(weight.dtype), weight, bias) for one in continued], -1)
        if activation is not None:
            output = ACT2FN[activation](output)
        return output.to(hidden_states.dtype).unsqueeze(0)


def convolved(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return [..., channels, n] of inputs [..., channels, K - 1 + n], in an order that doesn't depend on n."""
    count = inputs.shape[-1] - weight.shape[1] + 1
    output = inputs[..., :count] * weight[:, :1]
    for place in range(1, weight.shape[1]):
        output += inputs[..., place : place + count] * weight[:, place, None]
    return output if bias is None else output + bias[:, None]
