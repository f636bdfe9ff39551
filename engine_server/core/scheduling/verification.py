"""The choice of the drafts that a step has confirmed."""

from collections.abc import Iterator, Sequence

from engine_server.core.scheduling.batch import Batch
from engine_server.core.scheduling.request import UNKNOWN, Request
from engine_server.core.scheduling.step_result import StepResult
from engine_server.requests.messages import TokenLogprobsArray


def verified_results(
    sampling: Batch, results: Sequence[StepResult]
) -> Iterator[tuple[Request, StepResult, int]]:
    """Yield each request, its confirmed result, and the number of results that this stands for.

    sampling: the parts that sample. results: one for each part.
    """
    drafts: list[int] = []
    own: list[StepResult] = []
    for scheduled, result in zip(sampling, results, strict=True):
        if scheduled.draft == UNKNOWN and not own:  # a request without drafts
            yield scheduled.request, result, 1
            continue
        drafts.append(scheduled.draft)
        own.append(result)
        if scheduled.draft == UNKNOWN:  # otherwise the request's next part verifies it
            yield scheduled.request, verified(drafts, own), len(own)
            drafts, own = [], []


def verified(drafts: Sequence[int], results: Sequence[StepResult]) -> StepResult:
    """Return a request's tokens up to the first one that its draft missed, as if each had had a step of its own.

    The result after a draft holds only if that draft is the token that was sampled in its place. So the tokens are
    those of decoding without drafts, whatever the sampling parameters (Leviathan et al., "Fast inference from
    transformers via speculative decoding", 2023, with the draft's distribution on one token and the target's random
    numbers fixed by seed and position).

    drafts: the draft of each result; that of the last is none. results: at least one; an error holds only if it is the
        first, since the token before it may have ended the request.
    """
    first = results[0]
    if first.error is not None or len(results) == 1:
        return first
    tokens: list[int] = []
    logprobs: list[TokenLogprobsArray] = []
    for draft, result in zip(drafts, results, strict=True):
        if result.error is not None:
            break
        tokens += result.tokens
        logprobs += result.logprobs or []
        if tokens[-1] != draft:
            break
    return StepResult(tokens, None if first.logprobs is None else logprobs)
