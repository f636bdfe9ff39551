"""The gated delta rule (Yang et al., arXiv 2412.06464) over the tokens of a flat batch."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from engine_server.modeling.attention.hook import refuse_options, running_forward
from engine_server.modeling.attention.states import StateShape
from engine_server.modeling.recurrence.chains import by_chain
from engine_server.modeling.recurrence.function import RecurrentFunction

# Within the root of the norm of queries and keys.
EPSILON = 1e-6


class DeltaRule(RecurrentFunction):
    """In place of transformers' `torch_chunk_gated_delta_rule`."""

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
        heads, dim = value.shape[2], query.shape[3]

        def prompt(parts: Sequence[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
            queries, keys, values, decays, betas = parts
            output, new = self.original(
                queries,
                keys,
                values,
                g=decays,
                beta=betas,
                initial_state=state,
                output_final_state=True,
                use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
            )
            return output, new[0]

        def decodes(parts: Sequence[Tensor], states: Tensor) -> tuple[Tensor, Tensor]:
            queries, keys, values, decays, betas = (one.float() for one in parts)
            if use_qk_l2norm_in_kernel:
                queries, keys = normalised(queries), normalised(keys)
            shared = heads // queries.shape[1]
            queries = (queries * dim**-0.5).repeat_interleave(shared, 1).unsqueeze(-1)
            keys = keys.repeat_interleave(shared, 1).unsqueeze(-1)
            states = states * decays.exp()[..., None, None]
            missing = (values - (states * keys).sum(-2)) * betas.unsqueeze(-1)
            states += keys * missing.unsqueeze(-2)
            return (states * queries).sum(-2).to(value.dtype), states

        recurrence = running_forward().recurrence
        shape = StateShape((heads, dim, value.shape[3]), torch.float32)
        states = recurrence.read(shape, value.device)
        arguments = [one[0] for one in (query, key, value, g, beta)]
        return by_chain(recurrence, arguments, states, prompt, decodes).unsqueeze(0), None


def normalised(heads: Tensor) -> Tensor:
    """Return heads [..., dim] of length 1."""
    return heads * torch.rsqrt((heads * heads).sum(-1, keepdim=True) + EPSILON)
