"""The tokens that may be drawn from some rows of logits, as bits."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine_server.modeling.platform.interface import Platform


class Redirects(NamedTuple):
    """Rows in which the tokens that end an output are not drawn: their probability goes to another token."""

    # Indexes among the rows that sample.
    rows: list[int]
    # For each of them the token that gets the probability, none of `ends`.
    targets: list[int]
    # The tokens that end an output.
    ends: list[int]

    def apply(self, logits: Tensor, platform: Platform) -> None:
        """Change logits [n, vocabulary] in place."""
        if not self.rows:
            return
        columns = np.empty((len(self.rows), 1 + len(self.ends)), np.int64)
        columns[:, 0], columns[:, 1:] = self.targets, self.ends
        rows, tokens = platform.to_device(self.rows)[:, None], platform.to_device(columns)
        values = logits[rows, tokens]
        merged = torch.logsumexp(values.float(), 1)
        values.fill_(-torch.inf)
        values[:, 0] = merged
        logits[rows, tokens] = values


class TokenMasks(NamedTuple):
    """A step's constraints on the tokens that it samples."""

    # Indexes among the rows that sample.
    rows: list[int]
    # uint8 [rows, bytes] on the device: a bit for each token, the lowest bit first.
    bits: Tensor
    # By index among the rows that sample.
    errors: dict[int, str]
    # They apply to what processors make of the logits.
    redirects: Redirects

    def apply(self, logits: Tensor, blocked: "BlockedTokens") -> None:
        """Set the logits [n, vocabulary] of other tokens to minus infinity, in place."""
        if not self.rows:
            return
        flags = blocked.flags(self.bits)[:, : logits.shape[1]]
        width = flags.shape[1]
        if len(self.rows) == len(logits):
            logits[:, :width].masked_fill_(flags, -torch.inf)
        else:
            rows = blocked.to_device(self.rows)
            masked = logits[rows]
            masked[:, :width].masked_fill_(flags, -torch.inf)
            logits.index_copy_(0, rows, masked)


class BlockedTokens:
    """A table from each byte of bits to eight flags, which unpacks bits in one gather."""

    def __init__(self, platform: Platform) -> None:
        values = np.arange(256, dtype=np.uint8).reshape(256, 1)
        flags = 1 - np.unpackbits(values, axis=1, bitorder="little")
        self._platform = platform
        self._table = platform.to_device(flags.view(np.int64)[:, 0])

    def to_device(self, rows: list[int]) -> Tensor:
        """Return indexes of rows on the device, without waiting for it."""
        return self._platform.to_device(rows)

    def flags(self, bits: Tensor) -> Tensor:
        """Return a flag for each token that may not be drawn, bool [rows, tokens]."""
        gathered = self._table.index_select(0, bits.flatten().int())
        return gathered.view(torch.bool).view(len(bits), -1)
