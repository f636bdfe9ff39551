"""A request in the scheduler: a few counters, from which everything else is derived."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import NamedTuple

import msgspec

from engine_server.core.adapters.adapter import NO_ADAPTERS, RequestAdapters
from engine_server.core.draft_state.draft_cache import DraftCache
from engine_server.core.draft_state.draft_history import DraftHistory
from engine_server.core.draft_state.draft_source import DraftSource
from engine_server.core.draft_state.ngram_index import NgramIndex
from engine_server.core.encoding.request_pictures import RequestPictures
from engine_server.core.scheduling.block_hashes import STRETCH, KnownHashes, Stretch
from engine_server.core.scheduling.step_result import StepResult
from engine_server.core.span import Span
from engine_server.requests.messages import AddRequest, RequestStep, TokenLogprobsArray
from engine_server.requests.pooling_params import PoolingParams
from engine_server.requests.sampling_params import SamplingParams
from engine_server.requests.token_bytes import TOKEN_BYTES, pack
from engine_server.structured.limits import Limits

# Token id of virtual tokens, whose embeddings are a prompt adapter's.
VIRTUAL = 0
# An index that no output reaches.
NEVER = 1 << 62
# Placeholder for a token that a launched step samples, of which the host knows not even a draft.
UNKNOWN = -1


class Refusal(NamedTuple):
    """The resources that a waiting request lacked when it was last refused.

    They are recorded since computing them looks up every block of the prompt.
    """

    # Number of tokens that were not cached.
    num_tokens: int
    # Number of free blocks of each kind that admission takes.
    num_blocks: list[int]
    # Number of requests that had been admitted. A later one may have computed blocks that the request can share.
    num_admitted: int


@dataclass(slots=True, eq=False)
class Request(ABC):
    """The tokens and counters that generation and pooling share."""

    request_id: str
    # The prompt adapter's virtual tokens, the prompt, then the output.
    token_ids: list[int]
    # Number of tokens before the output.
    num_prompt: int
    _: KW_ONLY
    # Number of tokens whose K and V are in the cache, those of launched steps included.
    computed: int = 0
    # Number of computed tokens that a received result proves valid.
    confirmed: int = 0
    # Number of results that launched steps will return for the request, those that verify drafts included.
    num_unknown: int = 0
    # Row of the block table; None while the request waits.
    row: int | None = None
    # Number of tokens up to which a decoding request computes one in each step and its blocks stay as they are.
    steady_until: int = 0
    # The rope's regime, on which cached keys depend if the rope depends on the sequence's length.
    rope_regime: int = 0
    # Time of the first step, on the monotonic clock.
    scheduled: float | None = None
    # A lower number runs first.
    priority: int = 0
    # Order in which requests run: the scheduling policy's rank, then arrival.
    queue_position: tuple[int, int] = (0, 0)
    # On the monotonic clock.
    deadline: float | None = None
    cache_salt: str | None = None
    cache_scope: str | None = None
    # The tokens that it had on arrival, as bytes; empty if only `token_ids` has them.
    arrived: bytes = b""
    # Hashes of the first full blocks; extended when more are needed.
    hashes: list[bytes] = field(default_factory=list)
    # Hashes of the prompt's full blocks, shared by the choices of one prompt.
    prompt_hashes: list[bytes] = field(default_factory=list)
    # Columns of the block table after which its prompt is cut, and its states stay cached: see `Checkpoints`.
    checkpoints: tuple[int, ...] = ()
    # Prompt tokens that were found in the prefix cache when the request first ran.
    num_cached: int = 0
    # None if it was never refused.
    refusal: Refusal | None = None
    # Number of steps with this request that ran out of memory.
    num_retries: int = 0
    # Embeddings in place of those of the prompt's tokens, in order; shared by the choices of one prompt.
    prompt_spans: Sequence[Span] = ()
    # None: the prompt has none.
    pictures: RequestPictures | None = None
    # Index of the text of each token (token type), for a prompt of two texts.
    token_type_ids: list[int] | None = None
    # The adapters that the request names.
    adapters: RequestAdapters = NO_ADAPTERS
    # Number of virtual tokens before the prompt.
    num_virtual: int = 0
    # What limits its next tokens; None: it may draw any.
    limits: Limits | None = None
    # Guesses of the next tokens, for the next step to verify.
    drafts: list[int] = field(default_factory=list)
    draft_source: DraftSource | None = None
    # Index of the output token from which on none can be sampled before the host has received the one before it.
    needs_last_token_from: int = NEVER

    @classmethod
    def from_message(cls, message: AddRequest) -> "list[Request]":
        """Build the requests of a front end's message. They share the hashes of the prompt's blocks."""
        prompt = message.token_ids()
        requests = [cls._choice(message, prompt, index) for index in range(len(message.request_ids))]
        virtual = requests[0].num_virtual
        spans = [Span.of(virtual + span.start, span.rows.tensor(), span.digest) for span in message.spans]
        of_pictures = [
            Span(one.start, one.length, one.digest, None, one.first) for one in message.picture_spans
        ]
        for request in requests:
            request.prompt_spans = spans + of_pictures
            if of_pictures:
                request.pictures = RequestPictures(request.request_id, of_pictures)
            request.prompt_hashes = requests[0].prompt_hashes
        return requests

    @classmethod
    def _choice(cls, message: AddRequest, prompt: list[int], index: int) -> "Request":
        """Build the request for a completion. Only the first one reports the prompt's log-probabilities."""
        num_virtual = (
            message.prompt_adapter.prompt_adapter_num_virtual_tokens if message.prompt_adapter else 0
        )
        token_ids = [VIRTUAL] * num_virtual + prompt  # a copy, since it grows
        request: Request
        if message.pooling is not None:
            request = PoolingRequest(
                message.request_ids[index],
                token_ids,
                len(token_ids),
                message.pooling,
            )
        else:
            request = GenerationRequest(
                message.request_ids[index],
                token_ids,
                len(token_ids) - message.num_resumed,
                message.params,
                message.max_tokens,
                choice_index=index,
                num_resumed=message.num_resumed,
                prompt_logprobs=None if index or message.params.prompt_logprobs is None else [],
            )
        request.priority = message.priority
        request.deadline = message.deadline
        request.cache_salt = message.cache_salt
        request.cache_scope = message.cache_scope
        request.num_virtual = num_virtual
        request.token_type_ids = message.token_type_ids
        request.arrived = message.packed_token_ids if not num_virtual else b""
        return request

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - self.num_prompt

    @property
    def num_known(self) -> int:
        """Number of tokens before those that launched steps sample."""
        return len(self.token_ids) - self.num_unknown

    @property
    def pending(self) -> int:
        """Number of tokens that the next forward must cover: 1 in decode."""
        return len(self.token_ids) - self.computed

    @property
    @abstractmethod
    def max_length(self) -> int:
        """Number of tokens that it has at its end, if nothing ends it before."""

    @property
    def last_result_launched(self) -> bool:
        """True once no further step can be needed: the last result is in flight."""
        return self.num_unknown > 0 and len(self.token_ids) >= self.max_length

    @property
    def ready(self) -> bool:
        """False while something that the request needs is prepared elsewhere."""
        return self.settled and not (self.pictures is not None and self.pictures.waiting)

    @property
    def settled(self) -> bool:
        """False while something that the request needs is prepared in a thread of the core's process."""
        return self.adapters.settled

    @property
    def error(self) -> str | None:
        """Why something that the request needs can't be prepared."""
        return self.adapters.error or (self.pictures.error if self.pictures is not None else None)

    @property
    def misfit(self) -> str | None:
        """Why the model can't take its prompt."""
        return None if self.pictures is None else self.pictures.misfit

    @property
    def spans(self) -> Sequence[Span]:
        """The embeddings in place of those of its tokens, in order. Its prompt adapter must be in memory."""
        if self.adapters.prompt is None:
            return self.prompt_spans
        virtual = self.adapters.prompt.content
        assert virtual is not None
        return [virtual, *self.prompt_spans]

    @property
    def reads_prefix_cache(self) -> bool:
        """True if cached blocks may replace the computation of the prompt's beginning."""
        return True

    def leave_row(self) -> None:
        """Note that the request doesn't run any more, and none of its tokens is computed."""
        self.row = self.draft_source = None
        self.computed = self.steady_until = 0

    @abstractmethod
    def expect_result(self, draft: int = UNKNOWN) -> None:
        """Count a result that a launched step will return, a token that may be known as a draft."""

    @abstractmethod
    def cancel_result(self) -> None:
        """Undo the latest `expect_result`, for a step that was not launched after all."""

    @abstractmethod
    def accept(self, result: StepResult, eos_token_ids: Collection[int], num_results: int = 1) -> RequestStep:
        """Take the oldest expected result, which has no error, and return the part of it for the front end.

        num_results: the number of expected results that it stands for; those that it has no token for were drafts
            after a wrong one.
        """

    def hash_blocks(self, count: int, known: KnownHashes) -> None:
        """Extend `hashes` to at least `count` blocks. Each block of a prompt is hashed once for all its choices."""
        self.hashes += self.prompt_hashes[len(self.hashes) : count]
        size = known.block_size
        while (first := len(self.hashes)) < count:
            end = min(count, first - first % STRETCH + STRETCH)
            parent = self.hashes[-1] if first else self._root()
            tokens = self._packed(first * size, end * size)
            self.hashes += known.of(Stretch(parent, tokens, self._extras(first, end, size)))
        self.prompt_hashes += self.hashes[len(self.prompt_hashes) : self.num_prompt // size]

    def _packed(self, start: int, end: int) -> bytes:
        """Return tokens as bytes; a slice of those that it arrived with, if it has them."""
        packed = self.arrived[TOKEN_BYTES * start : TOKEN_BYTES * end]
        return packed if len(packed) == TOKEN_BYTES * (end - start) else pack(self.token_ids[start:end])

    def _extras(self, first: int, end: int, size: int) -> Sequence[bytes]:
        """Return what hashes of blocks depend on besides tokens: embeddings that overlap them, and where they begin."""
        spans = [span for span in self.spans if span.overlaps(first * size, end * size)]
        if not spans:
            return ()
        extras = []
        for start in range(first * size, end * size, size):
            # A digest, and where its first row is relative to the block's first token.
            embedded = [
                (span.digest, span.start - span.first - start)
                for span in spans
                if span.overlaps(start, start + size)
            ]
            extras.append(msgspec.msgpack.encode(embedded) if embedded else b"")
        return tuple(extras)

    def forget_hashes(self) -> None:
        """Drop the hashes, which depend on the rope's regime, so that they are computed again."""
        self.hashes, self.prompt_hashes = [], []

    def _root(self) -> bytes:
        """Hash everything but tokens and spans that must be equal for two requests to share blocks."""
        salt = self.cache_salt if self.cache_scope is None else (self.cache_scope, self.cache_salt)
        digests = [] if self.adapters.lora is None else [self.adapters.lora.digest]
        known = (salt, self.rope_regime, None, *digests)  # the None keeps the hashes of earlier releases
        return hashlib.sha256(msgspec.msgpack.encode(known)).digest()


@dataclass(slots=True, eq=False)
class GenerationRequest(Request):
    """A request for tokens."""

    params: SamplingParams
    # Maximum number of output tokens.
    max_tokens: int
    _: KW_ONLY
    # Index among the n completions of one prompt.
    choice_index: int = 0
    # Number of output tokens that the request already had on arrival.
    num_resumed: int = 0
    # Log-probabilities of the prompt's tokens that the front end has not got yet; None if not requested.
    prompt_logprobs: list[TokenLogprobsArray] | None = None
    # Number of the prompt's tokens, from the second on, whose log-probabilities were computed.
    num_ranked: int = 0
    # What its drafter knows of it, once it drafts: earlier n-grams, what became of drafts, what a draft model computed.
    ngrams: NgramIndex | None = None
    draft_history: DraftHistory | None = None
    draft_cache: DraftCache | None = None

    def __post_init__(self) -> None:
        if self.params.needs_last_token:
            self.needs_last_token_from = 0
        elif (reasoning := self.params.reasoning) is not None and reasoning.budget is not None:
            self.needs_last_token_from = reasoning.budget  # the reasoning is no longer than the output

    @property
    def max_length(self) -> int:
        return self.num_prompt + self.max_tokens

    @property
    def settled(self) -> bool:
        return self.adapters.settled and (self.limits is None or self.limits.ready)

    @property
    def awaits_prompt_logprobs(self) -> bool:
        """True if log-probabilities of the prompt are requested, and not all of them were computed."""
        return self.prompt_logprobs is not None and self.num_ranked < self.num_prompt - self.num_virtual - 1

    @property
    def reads_prefix_cache(self) -> bool:
        return not self.awaits_prompt_logprobs

    def leave_row(self) -> None:
        Request.leave_row(self)
        self.draft_cache = None

    def expect_result(self, draft: int = UNKNOWN) -> None:
        self.token_ids.append(draft)
        self.num_unknown += 1

    def cancel_result(self) -> None:
        self.token_ids.pop()
        self.num_unknown -= 1

    def accept(self, result: StepResult, eos_token_ids: Collection[int], num_results: int = 1) -> RequestStep:
        """Replace the oldest placeholders by the result's tokens, up to one that ends the request."""
        index = self.confirmed = self.num_known
        self.num_unknown -= num_results
        tokens = []
        reason = stop = None
        for num_output, token in enumerate(result.tokens, index + 1 - self.num_prompt):
            tokens.append(token)
            reason, stop = self.params.end(token, num_output, self.max_tokens, eos_token_ids)
            if reason:
                break
        self.token_ids[index : index + num_results] = tokens
        if self.row is not None:  # a request that was preempted since has no computed tokens
            self.computed -= num_results - len(tokens)
        logprobs = result.logprobs and result.logprobs[: len(tokens)]
        step = RequestStep(self.request_id, tokens, logprobs, reason, stop)
        if index == self.num_prompt + self.num_resumed:
            step.scheduled, step.num_cached_tokens = self.scheduled, self.num_cached
        return step


@dataclass(slots=True, eq=False)
class PoolingRequest(Request):
    """A request for a vector, scores or hidden states of its prompt."""

    params: PoolingParams

    @property
    def max_length(self) -> int:
        return self.num_prompt

    def expect_result(self, draft: int = UNKNOWN) -> None:
        self.num_unknown += 1

    def cancel_result(self) -> None:
        self.num_unknown -= 1

    def accept(self, result: StepResult, eos_token_ids: Collection[int], num_results: int = 1) -> RequestStep:
        self.num_unknown -= num_results
        return RequestStep(
            self.request_id, [], finish_reason="stop", scheduled=self.scheduled, pooled=result.vector
        )
