"""Drafts for the next step of all running requests, as many as pay."""

from collections.abc import Sequence

from engine_server.config import EngineConfig
from engine_server.core.draft_state.acceptance import Acceptance
from engine_server.core.draft_state.draft_history import DraftHistory
from engine_server.core.executor import Executor
from engine_server.core.scheduling.batch import Batch
from engine_server.core.scheduling.request import GenerationRequest, Request
from engine_server.core.speculation.cost_model import DraftAllocation, seconds_by_rows
from engine_server.core.speculation.drafter import Drafter
from engine_server.core.speculation.head_drafter import HeadDrafter
from engine_server.core.speculation.model_drafter import ModelDrafter
from engine_server.core.speculation.ngram_drafter import NgramDrafter
from engine_server.modeling.attention.interface import UnsupportedModelError


class Speculator:
    """The drafts of each step: which requests get some, and how many."""

    def __init__(self, drafter: Drafter, allocation: DraftAllocation, most: int) -> None:
        """most: the number of drafts that a request may have in a step."""
        self._drafter = drafter
        self._allocation = allocation
        self._most = most
        # Of all requests, with which a new one begins.
        self._everyone = Acceptance()

    def observe(self, batch: Batch) -> None:
        """Take in that a step was launched."""
        self._drafter.observe(batch)

    def observe_host(self, seconds: float) -> None:
        """Take in the time that the host has worked on a step of an engine whose steps overlap."""
        self._allocation.observe_host(seconds)

    def needs_results(self, running: Sequence[Request]) -> bool:
        """Return True if the next step is expected to have drafts, so that the step in flight must be collected first.

        That step verifies no drafts. Its tokens are unknown, so this is decided from the state before them.
        """
        if self._drafter.follows_prompts and self._prompts_to_follow(running):
            return True
        requests = [one for one in decoding(running) if not one.last_result_launched]
        if not requests:
            return False
        histories = self._learned_histories(requests)
        limits = self._limits(requests)
        if self._drafter.is_free:
            keep(requests, histories, self._drafter.draft(requests, limits))
        acceptances = [history.acceptance for history in histories]
        debts = self._drafter.debts(requests)
        return self._allocation.may_pay(acceptances, limits, len(running), debts)

    def propose(self, running: Sequence[Request]) -> None:
        """Set the drafts of the running requests, whose results have all been received."""
        if prompts := self._prompts_to_follow(running):
            self._drafter.follow(prompts)
        requests = decoding(running)
        if not requests:
            return
        histories = self._learned_histories(requests)
        acceptances = [history.acceptance for history in histories]
        debts = self._drafter.debts(requests)
        lengths = self._allocation.allot(acceptances, self._limits(requests), len(running), debts)
        keep(requests, histories, self._drafter.draft(requests, lengths))
        for request, history in zip(requests, histories, strict=True):
            request.drafts = history.drafts

    def _prompts_to_follow(self, running: Sequence[Request]) -> list[Request]:
        """Return the requests within their prompts if drafts would pay in a step with the running requests."""
        prompts = [one for one in running if one.pending > 1]
        pays = bool(prompts) and self._allocation.pays(len(running), self._everyone.probability)
        return prompts if pays else []

    def _limits(self, requests: Sequence[GenerationRequest]) -> list[int]:
        """Return the most drafts of each request."""
        rooms = [request.max_tokens - request.num_output - 1 for request in requests]
        return list(map(min, self._drafter.limits(requests, self._most), rooms))

    def _learned_histories(self, requests: Sequence[GenerationRequest]) -> list[DraftHistory]:
        """Return the histories of requests, compared with the tokens that have arrived since."""
        histories = []
        for request in requests:
            if request.draft_history is None:
                request.draft_history = DraftHistory(Acceptance(self._everyone.probability))
            request.draft_history.learn(request.token_ids, request.num_known, self._everyone)
            histories.append(request.draft_history)
        return histories


def keep(
    requests: Sequence[GenerationRequest], histories: Sequence[DraftHistory], drafts: Sequence[list[int]]
) -> None:
    """Keep the latest drafts of requests, to compare them with the tokens that arrive in their place."""
    for request, history, own in zip(requests, histories, drafts, strict=True):
        history.drafts, history.num_before = own, request.num_known


def decoding(running: Sequence[Request]) -> list[GenerationRequest]:
    """Return the requests whose next step computes their last token alone."""
    return [one for one in running if isinstance(one, GenerationRequest) and one.pending == 1]


def make_speculator(config: EngineConfig, executor: Executor) -> Speculator | None:
    """Return the speculator of an engine whose cache is blank, or None if it has none. Raises UnsupportedModelError."""
    settings, scheduling = config.speculative_config, config.scheduler_config
    if settings is None:
        return None
    if executor.first.stretched:
        raise UnsupportedModelError(
            "speculative_config is set, and the model's rope changes with a sequence's length, so that drafts would be "
            "verified by other keys than without; only None is allowed"
        )
    drafter: Drafter
    if settings.draft_model_config is not None:
        longest = settings.draft_model_config.max_model_len
        drafter = ModelDrafter(executor, longest, scheduling.max_num_batched_tokens)
    elif settings.has_head:
        drafter = HeadDrafter(executor)
    else:
        drafter = NgramDrafter(settings.prompt_lookup_min, settings.prompt_lookup_max)
    step_seconds = seconds_by_rows(executor.decode_seconds(), scheduling.max_num_rows)
    allocation = DraftAllocation(step_seconds, drafter.seconds(scheduling.max_num_rows))
    return Speculator(drafter, allocation, settings.num_speculative_tokens)
