"""Causal convolution of each channel, over the tokens of a flat batch."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.activations import ACT2FN

from engine_server.modeling.attention.hook import refuse_options, running_forward
from engine_server.modeling.attention.states import Recurrence, StateShape
from engine_server.modeling.recurrence.function import RecurrentFunction


class Convolution(RecurrentFunction):
    """A convolution of each channel, in place of transformers'."""

    replaces = "causal_conv1d_fn"

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
        states = recurrence.site(StateShape((width - 1, channels), hidden_states.dtype), weight.device)
        inputs = hidden_states[0].t()
        taps = Filter(weight, bias, activation)
        return self.continued(recurrence, states, inputs, taps).t().unsqueeze(0)

    def continued(self, recurrence: Recurrence, states: Tensor, inputs: Tensor, taps: "Filter") -> Tensor:
        """Continue the sequences of inputs [T, channels] from their states [slots, K - 1, channels]."""
        weight, bias, activation = taps
        tails, kept = recurrence.read(states), weight.shape[1] - 1
        parts = torch.split(inputs, list(recurrence.lengths))
        extended = [torch.cat(pair) for pair in zip(tails, parts, strict=True)]
        recurrence.write(states, torch.stack([one[len(one) - kept :] for one in extended]))
        if all(length == 1 for length in recurrence.lengths):
            output = convolved(torch.stack(extended).to(weight.dtype), weight, bias).squeeze(1)
        else:
            output = torch.cat([convolved(one.to(weight.dtype), weight, bias) for one in extended])
        return (output if activation is None else ACT2FN[activation](output)).to(inputs.dtype)


class Filter(NamedTuple):
    """The parameters of a convolution."""

    # [channels, K]
    weight: Tensor
    # [channels]
    bias: Tensor | None
    # The name, in transformers, of the function of the results.
    activation: str | None


def convolved(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return [..., n, channels] of inputs [..., K - 1 + n, channels], in an order that doesn't depend on n."""
    count = inputs.shape[-2] - weight.shape[1] + 1
    output = inputs[..., :count, :] * weight[:, 0]
    for place in range(1, weight.shape[1]):
        output += inputs[..., place : place + count, :] * weight[:, place]
    return output if bias is None else output + bias
