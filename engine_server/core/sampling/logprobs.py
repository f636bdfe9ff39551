"""Log-probabilities of tokens: ranked on the device, converted on the host."""

from collections.abc import Sequence

from torch import Tensor

from engine_server.requests.messages import TokenLogprobsArray


def rank(logprobs: Tensor, tokens: Tensor, count: int) -> list[Tensor]:
    """Return for each row its token, the token's value and rank, and the `count` likeliest tokens and their values.

    logprobs: [n, vocabulary]; tokens: int64 [n]. The shapes are [n], [n, 1], [n, 1], [n, count] and [n, count].
    """
    own = logprobs.gather(1, tokens.unsqueeze(1))
    top = logprobs.topk(min(count, logprobs.shape[1]))
    return [tokens, own, (logprobs > own).sum(dim=-1, keepdim=True) + 1, top.indices, top.values]


def token_logprobs(ranked: Sequence[Tensor], counts: Sequence[int]) -> list[TokenLogprobsArray]:
    """Convert the result of `rank`, keeping `counts[i]` of the likeliest tokens of row i."""
    return [
        TokenLogprobsArray([token, *ids[:count]], [value, *values[:count]], [rank, *range(1, count + 1)])
        for token, (value,), (rank,), ids, values, count in zip(
            *(part.tolist() for part in ranked), counts, strict=True
        )
    ]


def num_ranked(wanted: int, vocabulary: int) -> int:
    """Return how many of the likeliest tokens a request for `wanted` gets; -1 asks for the whole vocabulary."""
    return vocabulary if wanted < 0 else min(wanted, vocabulary)
