"""The gated delta rule (Yang et al., arXiv 2412.06464) over the tokens of a flat batch."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engine_server.modeling.attention.hook import refuse_options, running_forward
from engine_server.modeling.attention.states import Recurrence, StateShape
from engine_server.modeling.recurrence.chains import by_chain
from engine_server.modeling.recurrence.function import RecurrentFunction

# Within the root of the norm of queries and keys.
EPSILON = 1e-6


class DeltaRule(RecurrentFunction):
    """A gated delta rule, in place of transformers'."""

    replaces = "torch_chunk_gated_delta_rule"

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        g: Tensor,
        beta: Tensor,
        initial_state: Tensor | None = None,
        output_final_state: bool = False,
        use_qk_l2norm_in_kernel: bool = False,
        **options: Any,
    ) -> tuple[Tensor, None]:
        """Return [1, T, value heads, value dim].

        query, key: [1, T, key heads, key dim]; value: [1, T, value heads, value dim]; g, the logarithm of the decay,
        and beta: [1, T, value heads].
        """
        refuse_options("a gated delta rule is given", options)
        recurrence = running_forward().recurrence
        shape = StateShape((value.shape[2], query.shape[3], value.shape[3]), torch.float32)
        states = recurrence.site(shape, value.device)
        tokens = Tokens(query[0], key[0], value[0], g[0], beta[0])
        return self.continued(recurrence, states, tokens, use_qk_l2norm_in_kernel).unsqueeze(0), None

    def continued(self, recurrence: Recurrence, states: Tensor, tokens: "Tokens", normalises: bool) -> Tensor:
        """Continue the sequences from their states, [slots, value heads, key dim, value dim].

        normalises: queries and keys are made of length 1. Returns [T, value heads, value dim].
        """

        def prompt(parts: Sequence[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
            query, key, value, decay, beta = parts
            output, new = self.original(
                query,
                key,
                value,
                g=decay,
                beta=beta,
                initial_state=state,
                output_final_state=True,
                use_qk_l2norm_in_kernel=normalises,
            )
            return output, new[0]

        def decodes(parts: Sequence[Tensor], states: Tensor) -> tuple[Tensor, Tensor]:
            query, key, value, decay, beta = (one.float() for one in parts)
            if normalises:
                query, key = normalised(query), normalised(key)
            shared = value.shape[1] // query.shape[1]
            query = (query * query.shape[2] ** -0.5).repeat_interleave(shared, 1).unsqueeze(-1)
            key = key.repeat_interleave(shared, 1).unsqueeze(-1)
            states = states * decay.exp()[..., None, None]
            missing = (value - (states * key).sum(-2)) * beta.unsqueeze(-1)
            states += key * missing.unsqueeze(-2)
            return (states * query).sum(-2).to(tokens.value.dtype), states

        return by_chain(recurrence, states, tokens, prompt, decodes)


class Tokens(NamedTuple):
    """What a step's tokens give to the rule."""

    # [T, key heads, key dim]
    query: Tensor
    key: Tensor
    # [T, value heads, value dim]
    value: Tensor
    # [T, value heads]: the logarithm of the decay, and the share of what is missing that is added.
    decay: Tensor
    beta: Tensor


def normalised(heads: Tensor) -> Tensor:
    """Return heads [..., dim] of length 1."""
    return heads * torch.rsqrt((heads * heads).sum(-1, keepdim=True) + EPSILON)
