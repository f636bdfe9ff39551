"""Random walks through compiled grammars, with a small tokenizer."""

import random
from collections.abc import Sequence
from functools import cache

import numpy as np
from llguidance import LLMatcher
from small_tokenizers import EOS, byte_level, vocabulary_of
from tokenizers import Tokenizer

from engine_server.structured.compiler import Compiler

# Python takes these characters for white space, unlike JavaScript.
SEPARATORS = set("\x1c\x1d\x1e\x1f")
# Steps after which endings come first.
STEPS = 120


class Walker:
    """Walks through grammars with the tokens of one tokenizer.

    endings: texts with which values end, tried now and then so that walks end.
    """

    def __init__(self, tokenizer: Tokenizer, endings: Sequence[str]) -> None:
        self.compiled = cache(Compiler(vocabulary_of(tokenizer)).compile)
        self.tokenizer = tokenizer
        self._endings = [tokenizer.encode(text, add_special_tokens=False).ids for text in endings]
        size = tokenizer.get_vocab_size()
        self._left_out = {number for number in range(size) if set(tokenizer.decode([number])) & SEPARATORS}

    def random_text(self, grammar: str, seed: int) -> str:
        """Return a text that follows a grammar, of random tokens of those that the masks allow."""
        matcher, choose = self.compiled(grammar).deep_copy(), random.Random(seed)
        token_ids: list[int] = []
        while True:
            allowed = allowed_tokens(matcher)
            assert not matcher.is_error() and allowed, matcher.get_error()
            if EOS in allowed and (len(allowed) == 1 or len(token_ids) > STEPS or choose.random() < 0.3):
                return self.tokenizer.decode(token_ids, skip_special_tokens=False)
            step = [choose.choice(sorted(allowed - {EOS} - self._left_out))]
            if choose.random() < (0.9 if len(token_ids) > STEPS else 0.2):
                fitting = [ids for ids in self._endings if matcher.validate_tokens(ids) == len(ids)]
                step = choose.choice(fitting) if fitting else step
            matcher.consume_tokens(step)
            token_ids += step


def allowed_tokens(matcher: LLMatcher) -> set[int]:
    """Return the tokens that may follow."""
    bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
    return set(np.flatnonzero(bits).tolist())


BYTES = Walker(byte_level(), ("\n</parameter>\n", '"', "}", "]"))
