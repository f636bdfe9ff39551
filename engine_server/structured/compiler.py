"""Compilation of grammars by llguidance."""

import threading
from collections.abc import Sequence

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from engine_server.requests.messages import Vocabulary
from engine_server.structured.errors import GrammarError

# Stack of a thread that compiles: the library's recursion follows the grammar's. A trial has half of it, so that what
# passes never overflows the stack elsewhere.
STACK_BYTES = 32 << 20
TRIAL_STACK_BYTES = STACK_BYTES // 2
# Limits of one mask's computation and of a matcher's memory. A matcher that exceeds one reports an error.
LIMITS = LLParserLimits(
    max_items_in_row=2000,
    step_max_items=10_000,
    step_lexer_fuel=50_000,
    max_lexer_states=50_000,
    max_grammar_size=200_000,
    verbose_errors=False,
)


# Tokens of an output that a trial generates.
WALKED_TOKENS = 8
# Tokens that are read between two masks. The work on new states is limited between two masks; this many of the longest
# tokens stay below the limit.
TOKENS_OF_A_MASK = 32


class Compiler:
    """The compiler of one vocabulary's grammars. Any thread may call `compile`; it takes the GIL only briefly."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        tokens = TokenizerWrapper(Tokens(vocabulary))
        self._tokenizer = LLTokenizer(
            tokens, n_vocab=len(vocabulary.tokens), eos_token=list(vocabulary.eos_token_ids)
        )

    def compile(self, grammar: str) -> LLMatcher:
        """Return a matcher at the start of a grammar; its copies share the compiled grammar. Raises GrammarError.

        grammar: Lark's text, or llguidance's list of grammars as JSON.
        """
        if not grammar.startswith("{"):
            grammar = LLMatcher.grammar_from_lark(grammar)
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=LIMITS)
        if not matcher.is_error():
            matcher.compute_bitmask()  # finds grammars that no text matches
        if matcher.is_error():
            raise GrammarError(matcher.get_error())
        return matcher

    def walk(self, start: LLMatcher) -> None:
        """Follow a grammar for a few tokens, to find limits that it exceeds from the beginning. Raises GrammarError."""
        matcher = start.deep_copy()
        for _ in range(WALKED_TOKENS):
            bits = int.from_bytes(matcher.compute_bitmask(), "little")
            if matcher.is_stopped() or not bits:
                break
            matcher.consume_token((bits & -bits).bit_length() - 1)  # the lowest of the allowed tokens
        if matcher.is_error():
            raise GrammarError(matcher.get_error())


def consume(matcher: LLMatcher, token_ids: Sequence[int]) -> None:
    """Move a matcher along any number of tokens. A failure is kept in the matcher."""
    for first in range(0, len(token_ids), TOKENS_OF_A_MASK):
        if first:
            matcher.compute_bitmask()
        matcher.consume_tokens(list(token_ids[first : first + TOKENS_OF_A_MASK]))


class Tokens:
    """A vocabulary in the form that llguidance reads."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = vocabulary.eos_token_ids[0]
        self.bos_token_id = None
        self.tokens = vocabulary.tokens
        self.special_token_ids = vocabulary.special_token_ids

    def __call__(self, text: str | bytes) -> list[int]:
        """Return no tokens: with `no_forcing` no grammar needs tokens of a text."""
        return []


def start_with_stack(thread: threading.Thread, stack_bytes: int) -> None:
    """Start a thread with a stack of this size."""
    before = threading.stack_size(stack_bytes)
    try:
        thread.start()
    finally:
        threading.stack_size(before)
