"""The state space of Mamba 2 (Dao and Gu, arXiv 2405.21060) over the tokens of a flat batch."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from engine_server.modeling.attention.hook import refuse_options, running_forward
from engine_server.modeling.attention.states import Recurrence, StateShape
from engine_server.modeling.recurrence.chains import by_chain
from engine_server.modeling.recurrence.function import RecurrentFunction


class StateSpace(RecurrentFunction):
    """A state space, in place of transformers'."""

    replaces = "mamba2_chunk_scan"

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
        recurrence = running_forward().recurrence
        shape = StateShape((*hidden_states.shape[2:], B.shape[3]), torch.float32)
        states = recurrence.site(shape, B.device)
        tokens = Tokens(hidden_states[0], dt[0], B[0], C[0])
        rule = Rule(A, D, dt_bias, dt_softplus, dt_limit, chunk_size)
        return self.continued(recurrence, states, tokens, rule).unsqueeze(0)

    def continued(self, recurrence: Recurrence, states: Tensor, tokens: "Tokens", rule: "Rule") -> Tensor:
        """Continue the sequences from their states, [slots, heads, dim, size]. Returns float32 [T, heads, dim]."""

        def prompt(parts: Sequence[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
            x, steps, inward, outward = parts
            output, new = self.original(
                x,
                steps,
                rule.rates,
                inward,
                outward,
                chunk_size=rule.chunk_size,
                D=rule.skip,
                z=None,
                dt_bias=rule.bias,
                initial_states=state,
                dt_softplus=rule.softplus,
                dt_limit=rule.limits,
                return_final_states=True,
            )
            return output, new[0]

        def decodes(parts: Sequence[Tensor], states: Tensor) -> tuple[Tensor, Tensor]:
            x, steps, inward, outward = parts
            steps = rule.steps(steps)
            x, inward, outward = x.float(), inward.float(), outward.float()
            shared = x.shape[1] // inward.shape[1]
            inward, outward = (one.repeat_interleave(shared, 1).unsqueeze(-2) for one in (inward, outward))
            states = states * (rule.rates.float() * steps).exp()[..., None, None]
            states += (x * steps.unsqueeze(-1)).unsqueeze(-1) * inward
            output = (states * outward).sum(-1)
            return output if rule.skip is None else output + rule.skip[:, None] * x, states

        return by_chain(recurrence, states, tokens, prompt, decodes)


class Tokens(NamedTuple):
    """What a step's tokens give to a state space."""

    # [T, heads, dim]
    x: Tensor
    # [T, heads]
    steps: Tensor
    # B and C, [T, groups, size].
    inward: Tensor
    outward: Tensor


class Rule(NamedTuple):
    """The parameters of a state space."""

    # A, D and the bias of the steps, [heads].
    rates: Tensor
    skip: Tensor | None
    bias: Tensor | None
    softplus: bool
    limits: tuple[float, float]
    # Tokens that `original` computes together.
    chunk_size: int

    def steps(self, given: Tensor, softplus: Callable[[Tensor], Tensor] = F.softplus) -> Tensor:
        """Return the lengths of the steps, float32 [T, heads]."""
        steps = given if self.bias is None else given + self.bias.to(given.dtype)
        return (softplus(steps) if self.softplus else steps).clamp(*self.limits).float()
