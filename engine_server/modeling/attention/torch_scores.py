"""Scores and weighted sums of plain torch's attention, for one sequence or a group of decodes."""

from dataclasses import dataclass, field
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from engine_server.modeling.heads.scoring import Scoring

# Maximum number of scores in memory at a time, if they must be written there.
MOST_SCORES = 1 << 26
# A CPU is up to twice as fast in bfloat16 if scores are written to memory: from this many scores of a prompt on, and
# then of this many tokens at a time, so that they are still in the CPU's caches when they are used.
MANY_SCORES = 1 << 12
ROWS = 128

# Masks by the values that they depend on: layers with the same visible tokens and biases share one.
Masks = dict[tuple[object, ...], Tensor]


@dataclass(slots=True)
class Sequence:
    """The last tokens of one sequence, which attend over all of it."""

    # Tokens of the sequence.
    context: int
    # See `Platform`.
    writes_scores: bool
    # Position of the first of them: earlier ones are not seen.
    start: int = 0
    masks: Masks = field(default_factory=dict)

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scoring: Scoring) -> Tensor:
        """Return [tokens, query heads, dim].

        query: [query heads, tokens, dim]; keys, values: [kv heads, context, dim].
        """
        if (
            self.writes_scores
            and may_write_scores(query, scoring)
            and query.shape[1] * self.context >= MANY_SCORES
        ):
            return self._attend_by_rows(query, keys, values, scoring)
        query, keys, values = (tensor.unsqueeze(0) for tensor in (query, keys, values))
        mask = self._mask(query, scoring)
        if mask is None or scoring.fused:
            return attention(query, keys, values, mask, scoring)[0].transpose(0, 1)
        rows = 1 + MOST_SCORES // (query.shape[1] * self.context)
        parts = zip(torch.split(query, rows, 2), torch.split(mask, rows, -2), strict=True)
        output = torch.cat([attention(part, keys, values, mask, scoring) for part, mask in parts], 2)
        return output[0].transpose(0, 1)

    def _attend_by_rows(self, query: Tensor, keys: Tensor, values: Tensor, scoring: Scoring) -> Tensor:
        """Attend as `attend` does, for ROWS tokens at a time, over no more keys than they may see."""
        heads, tokens, dim = query.shape
        output = query.new_empty(tokens, heads, values.shape[-1])
        mask = None if self._plain(scoring) else self._mask(query.unsqueeze(0), scoring)
        for start in range(0, tokens, ROWS):
            rows = query[:, start : start + ROWS]
            stop = start + rows.shape[1]
            seen = self.context - tokens + stop if scoring.causal else self.context
            scores = scores_of(rows.reshape(len(keys), -1, dim), keys[:, :seen], scoring.scaling)
            by_head = scores.view(heads, -1, seen)
            if mask is not None:
                by_head += mask[0, :, start:stop, :seen]
            elif scoring.causal:
                by_head[..., start - stop :] += future(stop - start, query.dtype)
            attended = scores.softmax(-1) @ values[:, :seen]
            output[start:stop] = attended.view(heads, stop - start, -1).transpose(0, 1)
        return output

    def _plain(self, scoring: Scoring) -> bool:
        """Return True if scores have no mask other than causality, and no bias."""
        last = self.start + self.context - 1
        narrow = scoring.window is not None and scoring.window.seen(last) < self.context
        return not narrow and scoring.alibi is None and scoring.relative_bias is None

    def _mask(self, query: Tensor, scoring: Scoring) -> Tensor | None:
        """Return [1, 1 or query heads, tokens, context]; None if torch's kernel needs none, which is faster."""
        if scoring.relative_bias is not None:
            return scoring.relative_bias[..., : self.context, : self.context]
        count, window = query.shape[2], scoring.window
        if self._plain(scoring) and (not scoring.causal or (scoring.fused and count == self.context)):
            return None
        key = (window, scoring.alibi, scoring.causal)
        if key not in self.masks:
            positions = torch.arange(self.start, self.start + self.context, device=query.device)
            mask = mask_out(positions[-count:], positions, scoring, query.dtype)
            self.masks[key] = mask.transpose(0, 1)[None]  # torch's fused kernel takes four dims
        return self.masks[key]


def may_write_scores(query: Tensor, scoring: Scoring) -> bool:
    """Return True if scores may be written to memory; not in float32, which is independent of batch composition."""
    return scoring.fused and query.dtype != torch.float32


@cache
def future(count: int, dtype: torch.dtype) -> Tensor:
    """Return [count, count] on the CPU: -inf for the tokens after each of `count` consecutive ones, else 0."""
    return torch.full((count, count), -torch.inf, dtype=dtype).triu_(1)


def attention(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scoring: Scoring) -> Tensor:
    """Return [n, heads, tokens, dim] of query [n, heads, tokens, dim]; keys, values: [n, kv heads, context, dim].

    `mask` is added to the scores [n, heads, tokens, context]; without one, causality hides tokens or none are hidden.
    """
    if scoring.fused:
        return F.scaled_dot_product_attention(
            query,
            keys,
            values,
            attn_mask=mask,
            is_causal=mask is None and scoring.causal,
            scale=scoring.scaling,
            enable_gqa=query.shape[1] != keys.shape[1],
        )
    count, heads, tokens, dim = query.shape
    kv_heads, context = keys.shape[1:3]
    scores = (query.reshape(count, kv_heads, -1, dim) @ keys.mT).view(count, heads, tokens, context).float()
    scores = scores * scoring.scaling
    if scoring.softcap is not None:
        scores = torch.tanh(scores / scoring.softcap) * scoring.softcap
    if mask is not None:
        scores = scores + mask
    if scoring.sinks is not None:
        sinks = scoring.sinks.view(heads, -1, 1).expand(count, -1, tokens, 1)
        scores = torch.cat([scores, sinks], -1)
    weights = scores.softmax(-1)[..., :context].to(values.dtype)
    return (weights.reshape(count, kv_heads, -1, context) @ values).view(count, heads, tokens, -1)


def scores_of(query: Tensor, keys: Tensor, scaling: float) -> Tensor:
    """Return new scores [n, rows, context] of query [n, rows, dim] and keys [n, context, dim]."""
    return torch.baddbmm(query.new_empty(1, 1, 1), query, keys.mT, beta=0, alpha=scaling)


def mask_out(own: Tensor, others: Tensor, scoring: Scoring, dtype: torch.dtype) -> Tensor:
    """Return the term that is added to scores: -inf for hidden tokens, else 0 or ALiBi's negative bias.

    own: positions of the queries [n]; others: positions of the keys [width] or [n, 1, width]; the result:
    [n, 1 or query heads, width].
    """
    distance = own[:, None, None] - others
    hidden = distance < 0 if scoring.causal else torch.zeros_like(distance, dtype=torch.bool)
    if scoring.window is not None:
        hidden = hidden | (distance.abs() >= scoring.window.seen(own[:, None, None]))
    mask = torch.zeros(hidden.shape, dtype=dtype, device=own.device).masked_fill_(hidden, -torch.inf)
    return mask if scoring.alibi is None else mask - (scoring.alibi[:, None] * distance).to(dtype)
