"""The state space of Mamba 2 (Dao and Gu, arXiv 2405.21060) over the tokens of a flat batch."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from engine_server.modeling.attention.hook import refuse_options, running_forward
from engine_server.modeling.attention.states import StateShape
from engine_server.modeling.recurrence.chains import by_chain
from engine_server.modeling.recurrence.function import RecurrentFunction


class StateSpace(RecurrentFunction):
    """In place of transformers' `mamba2_chunk_scan`."""

    def __call__(
        self,
        hidden_states: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        chunk_size: int,
        D: Tensor | None = None,
        dt_bias: Tensor | None = None,
        initial_states: Tensor | None = None,
        dt_softplus: bool = False,
        dt_limit: tuple[float, float] = (0.0, float("inf")),
        return_final_states: bool = False,
        **options: Any,
    ) -> Tensor:
        """Return float32 [1, T, heads, dim].

        hidden_states: [1, T, heads, dim]; dt: [1, T, heads]; A, D, dt_bias: [heads]; B, C: [1, T, groups, state].
        """
        refuse_options("a state space is given", options)
        heads, dim = hidden_states.shape[2:]

        def prompt(parts: Sequence[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
            x, steps, inward, outward = parts
            output, new = self.original(
                x,
                steps,
                A,
                inward,
                outward,
                chunk_size=chunk_size,
                D=D,
                z=None,
                dt_bias=dt_bias,
                initial_states=state,
                dt_softplus=dt_softplus,
                dt_limit=dt_limit,
                return_final_states=True,
            )
            return output, new[0]

        def decodes(parts: Sequence[Tensor], states: Tensor) -> tuple[Tensor, Tensor]:
            x, steps, inward, outward = parts
            steps = steps if dt_bias is None else steps + dt_bias.to(steps.dtype)
            steps = (F.softplus(steps) if dt_softplus else steps).clamp(*dt_limit)
            x, steps, inward, outward = x.float(), steps.float(), inward.float(), outward.float()
            shared = heads // inward.shape[1]
            inward, outward = (one.repeat_interleave(shared, 1).unsqueeze(-2) for one in (inward, outward))
            states = states * (A.float() * steps).exp()[..., None, None]
            states += (x * steps.unsqueeze(-1)).unsqueeze(-1) * inward
            output = (states * outward).sum(-1)
            return output if D is None else output + D[:, None] * x, states

        recurrence = running_forward().recurrence
        states = recurrence.read(StateShape((heads, dim, B.shape[3]), torch.float32), B.device)
        arguments = [one[0] for one in (hidden_states, dt, B, C)]
        return by_chain(recurrence, arguments, states, prompt, decodes).unsqueeze(0)
