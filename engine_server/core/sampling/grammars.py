"""The tokens that each request may draw next, by its reasoning, its grammar and its parameters."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from llguidance import LLExecutor, LLMatcher

from engine_server.core.sampling.token_masks import Redirects, TokenMasks
from engine_server.core.scheduling.batch import Batch, Scheduled, sampled_part
from engine_server.core.scheduling.request import GenerationRequest, Request
from engine_server.modeling.platform.cpu_quota import available_cpus
from engine_server.modeling.platform.interface import Platform
from engine_server.requests.messages import Vocabulary
from engine_server.structured.grammar_cache import GrammarCache
from engine_server.structured.limits import Limits
from engine_server.structured.matcher import Matcher
from engine_server.structured.reasoning_position import ReasoningPosition
from engine_server.structured.token_bits import Bits, bits_of, num_bytes
from engine_server.structured.token_rules import TokenRules

# Maximum number of threads that fill masks.
MAX_THREADS = 8


class Grammars:
    """The token masks of a step, filled on the host."""

    def __init__(self, eos_token_ids: Sequence[int], vocabulary: int, platform: Platform) -> None:
        """vocabulary: number of tokens."""
        self._size = num_bytes(vocabulary)
        self._set_ends(eos_token_ids)
        self._platform = platform
        self._cache: GrammarCache | None = None
        self._token_bytes: Sequence[bytes] = ()
        self._threads: LLExecutor | None = None

    def load(self, vocabulary: Vocabulary) -> None:
        """Take the vocabulary, which requests with a grammar need, and those with reasoning between marks of text.

        Its ends replace the ones before, since the tokenizer and its chat template may have added some.
        """
        self._set_ends(vocabulary.eos_token_ids)
        self._cache = GrammarCache(vocabulary)
        self._token_bytes = vocabulary.tokens
        self._threads = LLExecutor(min(available_cpus(), MAX_THREADS))

    def _set_ends(self, eos_token_ids: Sequence[int]) -> None:
        self._eos_token_ids = list(eos_token_ids)
        self._ends = bits_of(self._eos_token_ids, self._size)

    def open(self, request: Request) -> None:
        """Set what limits a request's tokens. Start to compile its grammar if it has one; it runs once that is done."""
        if not isinstance(request, GenerationRequest):
            return
        rules = TokenRules.of(request.params, self._eos_token_ids, self._size)
        grammar, reasoning = request.params.structured_outputs, request.params.reasoning
        matcher = position = may_begin_with = None
        if grammar is not None:
            assert self._cache is not None and grammar.grammar is not None
            compiled = self._cache.get(grammar.grammar)
            matcher = Matcher(
                compiled, grammar.starts_after, frozenset(self._eos_token_ids), request.num_prompt
            )
            # Where marks are text, the reasoning is a part of the grammar.
            if reasoning is not None and reasoning.exact and not matcher.starts_after_tokens:
                may_begin_with = matcher.may_begin_with
        if reasoning is not None and (reasoning.budget is not None or grammar is not None):
            in_grammar = grammar is not None and not reasoning.exact
            position = ReasoningPosition(
                reasoning, self._token_bytes, request.num_prompt, may_begin_with, in_grammar
            )
        limits = Limits(rules, matcher, position)
        request.limits = limits if any(one is not None for one in limits) else None

    def fill(self, batch: Batch) -> TokenMasks | None:
        """Return the masks of the requests that sample and may not draw every token; None if there are none.

        Earlier steps' tokens must be known from `Request.needs_last_token_from` on.
        """
        masked: list[MaskedRow] = []
        errors: dict[int, str] = {}
        redirects = Redirects([], [], self._eos_token_ids)
        limits = Limits()
        previous: Request | None = None
        sampling = sampled_part(batch)
        for row, scheduled in enumerate(sampling):
            own = scheduled.request.limits
            if own is None:
                continue
            # The request's own move along no drafts.
            limits = limits.fork() if scheduled.request is previous else own
            previous = scheduled.request
            rules, matcher, reasoning = limits
            if rules is not None and not rules.apply_to(scheduled.output_index):
                rules = None
            forced = self._read(scheduled, matcher, reasoning)
            position = None
            if matcher is not None:
                position = matcher.position
                if matcher.error is not None:
                    errors[row] = matcher.error
            openings: list[int] = []
            goes_on = False
            if reasoning is not None:
                openings = reasoning.openings
                closing = reasoning.closing
                goes_on = forced is None and closing is not None and closing not in self._eos_token_ids
                if goes_on and closing is not None:
                    redirects.rows.append(row)
                    redirects.targets.append(closing)
            if rules is not None or position is not None or forced is not None:
                masked.append(MaskedRow(row, scheduled, rules, matcher, position, openings, forced, goes_on))
        if not masked and not errors and not redirects.rows:
            return None
        bits = np.full((len(masked), self._size), 255, np.uint8)
        self._match(masked, bits, errors)
        for row in errors:
            self._discard(sampling[row].request)
        for allowed, one in zip(bits, masked, strict=True):
            self._restrict(allowed, one)
        return TokenMasks([one.row for one in masked], self._platform.to_device(bits), errors, redirects)

    def _read(
        self, scheduled: Scheduled, matcher: Matcher | None, reasoning: ReasoningPosition | None
    ) -> int | None:
        """Move along a request's tokens; return the only token that its reasoning allows next, if that is spent."""
        token_ids, end = scheduled.request.token_ids, scheduled.end
        forced = None if reasoning is None else reasoning.read(token_ids, end)
        if matcher is not None:
            if reasoning is not None and reasoning.gates:
                matcher.start_at(reasoning.grammar_start)
            matcher.read(token_ids, end)
            if matcher.starts_after_tokens and matcher.position is not None:
                return None  # the grammar begins after the reasoning
        return forced

    def _match(self, masked: list["MaskedRow"], bits: Bits, errors: dict[int, str]) -> None:
        """Fill the rows of requests with a grammar by the tokens that it allows, in parallel and without the GIL."""
        positions = [(one.position, index) for index, one in enumerate(masked) if one.position is not None]
        if not positions:
            return
        assert self._threads is not None
        self._threads.unsafe_compute_mask_ptr(positions, bits.ctypes.data, self._size, len(bits))
        for one in masked:
            if one.matcher is not None and one.position is not None:
                one.matcher.check()
                if one.matcher.error is not None:
                    errors[one.row] = one.matcher.error

    def _restrict(self, bits: Bits, masked: "MaskedRow") -> None:
        """Change a row's bits from the tokens that its grammar allows to those that may be drawn."""
        scheduled, position, rules = masked.scheduled, masked.position, masked.rules
        if masked.openings:
            bits |= bits_of(masked.openings, self._size)
        if masked.goes_on:
            bits |= self._ends
        if masked.forced is not None:
            forced = bits_of([masked.forced], self._size)
            if (bits & forced).any():  # else the grammar is past its reasoning
                bits[:] = forced
                return
        if rules is None:
            return
        ends = bits & self._ends
        rules.restrict(bits, scheduled.request.token_ids, scheduled.request.num_prompt, scheduled.end)
        if position is not None and not bits.any():  # then the grammar may only end
            bits[:] = ends

    def _discard(self, request: Request) -> None:
        """Have a grammar that failed compiled anew for the next request with it."""
        assert isinstance(request, GenerationRequest) and self._cache is not None
        grammar = request.params.structured_outputs
        assert grammar is not None and grammar.grammar is not None
        self._cache.discard(grammar.grammar)


class MaskedRow(NamedTuple):
    """A request that samples from a row and may not draw every token."""

    row: int
    scheduled: Scheduled
    rules: TokenRules | None
    matcher: Matcher | None
    # The matcher's position, if its grammar limits the next token.
    position: LLMatcher | None
    # Tokens that begin the reasoning, and may be drawn whatever the grammar allows.
    openings: list[int]
    # The only token that may be drawn, unless the grammar excludes it.
    forced: int | None
    # The output's end goes to that of the reasoning, so that the grammar, which excludes it, leaves it.
    goes_on: bool
