"""A step's sequences by their lengths: those of one token together, longer ones each alone."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from engine_server.modeling.attention.states import Recurrence

# Takes a sequence's part of each argument, [1, n, ...], and its state, [1, ...]; returns its result and the next state.
Prompt = Callable[[Sequence[Tensor], Tensor], tuple[Tensor, Tensor]]
# Takes [n, ...] of n sequences of one token, and their states, [n, ...]; returns results and the next states.
Decodes = Callable[[Sequence[Tensor], Tensor], tuple[Tensor, Tensor]]


def by_chain(
    recurrence: Recurrence, slots: Tensor, arguments: Sequence[Tensor], prompt: Prompt, decodes: Decodes
) -> Tensor:
    """Compute each sequence from its state, keep the next states, and return the results of all tokens, [T, ...].

    slots: [slots, ...]; arguments: [T, ...] each.
    """
    states = recurrence.read(slots)
    lengths, starts = recurrence.lengths, recurrence.starts
    single = [index for index, length in enumerate(lengths) if length == 1]
    if len(single) == len(lengths):
        output, new = decodes(arguments, states)
        recurrence.write(slots, new)
        return output
    new = torch.empty_like(states)
    results: list[Tensor | None] = [None] * len(lengths)
    if single:
        places = torch.tensor([starts[index] for index in single], device=states.device)
        rows = torch.tensor(single, device=states.device)
        outputs, new[rows] = decodes([one[places] for one in arguments], states[rows])
        for index, output in zip(single, torch.split(outputs, 1), strict=True):
            results[index] = output
    for index, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        if length > 1:
            parts = [one[start : start + length].unsqueeze(0) for one in arguments]
            output, new[index] = prompt(parts, states[index : index + 1])
            results[index] = output[0]
    recurrence.write(slots, new)
    return torch.cat([one for one in results if one is not None])
