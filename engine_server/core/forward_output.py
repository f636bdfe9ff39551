"""What a forward leaves for the head."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine_server.core.replay import Replay


class ForwardOutput(NamedTuple):
    """Hidden states on one rank's device; a captured step's are valid until the next forward."""

    # Number of the forward, counted by each rank's runner.
    number: int
    # [n, hidden] of the sequences that sample; of a pooling model [tokens of the step, hidden].
    rows: Tensor
    # [rows, hidden] for each of the inputs' chunks of prompts.
    prompt_rows: Sequence[Tensor]
    # int32, the slots of the adapters of `rows` and of each of `prompt_rows`; empty: none has any.
    slots: Sequence[Tensor]
    # int32 [n], rows of the block table of the sequences that sample.
    sampled: Tensor
    # The captured parts that computed `rows`; None: the model's own code did.
    replay: Replay | None


# That of a step without tokens.
NO_OUTPUT = ForwardOutput(0, torch.zeros(0, 0), (), (), torch.zeros(0, dtype=torch.int32), None)
