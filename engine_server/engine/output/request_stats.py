"""Times and counts of a request, for the stat loggers."""

from engine_server.engine.output.request_state import Completion, RequestState
from engine_server.requests.messages import RequestStep
from engine_server.requests.scheduler_stats import FinishReason
from engine_server.telemetry.stats import FinishedRequest, IterationStats


def record_step(
    state: RequestState, completion: Completion, step: RequestStep, now: float, stats: IterationStats
) -> None:
    """Add a step of one completion to the statistics. `now` is on the monotonic clock."""
    metrics = state.metrics
    stats.num_generation_tokens += len(step.new_token_ids)
    metrics.num_generation_tokens += len(step.new_token_ids)
    if step.scheduled is not None:
        completion.scheduled, completion.first_token = step.scheduled, now
        completion.num_cached_tokens = step.num_cached_tokens
        if state.num_cached_tokens is None:  # the first completion's blocks are shared by the others
            state.num_cached_tokens = step.num_cached_tokens
        stats.num_prompt_tokens += len(state.prompt_token_ids)
        stats.num_cached_prompt_tokens += step.num_cached_tokens
        stats.time_to_first_tokens.append(now - state.arrival)
        if not metrics.first_token_ts:
            metrics.scheduled_ts, metrics.first_token_ts = step.scheduled, now
            metrics.first_token_latency = now - state.arrival
    elif step.new_token_ids:
        stats.inter_token_latencies.append(now - completion.last_token)
    completion.last_token = metrics.last_token_ts = now


def finished_request(
    state: RequestState, completion: Completion, reason: FinishReason, now: float
) -> FinishedRequest:
    """Return the times and counts of a completion that has ended."""
    scheduled, first = completion.scheduled or now, completion.first_token or now
    return FinishedRequest(
        reason=reason,
        num_prompt_tokens=len(state.prompt_token_ids),
        num_generation_tokens=len(completion.token_ids),
        max_tokens=state.params.max_tokens,
        e2e=now - state.arrival,
        queue=scheduled - state.arrival,
        prefill=first - scheduled,
        decode=now - first,
        num_cached_tokens=completion.num_cached_tokens,
    )
