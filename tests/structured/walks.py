"""Random walks through compiled grammars, with a small tokenizer."""

import random
from functools import cache

import numpy as np
from llguidance import LLMatcher
from small_tokenizers import EOS, byte_level, vocabulary_of

from engine_server.structured.compiler import Compiler

TOKENIZER = byte_level()
COMPILER = Compiler(vocabulary_of(TOKENIZER))
# Texts with which values end, tried now and then so that walks end.
ENDINGS = ("\n</parameter>\n", '"', "}", "]")
# Python takes these characters for white space, unlike JavaScript.
SEPARATORS = {number for number in range(320) if set(TOKENIZER.decode([number])) & set("\x1c\x1d\x1e\x1f")}
# Steps after which endings come first.
STEPS = 120


@cache
def compiled(grammar: str) -> LLMatcher:
    return COMPILER.compile(grammar)


def random_text(grammar: str, seed: int) -> str:
    """Return a text that follows a grammar, of random tokens of those that the masks allow."""
    matcher, choose = compiled(grammar).deep_copy(), random.Random(seed)
    endings = [TOKENIZER.encode(text).ids for text in ENDINGS]
    token_ids: list[int] = []
    while True:
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        allowed = np.flatnonzero(bits).tolist()
        assert not matcher.is_error() and allowed, matcher.get_error()
        if EOS in allowed and (len(allowed) == 1 or len(token_ids) > STEPS or choose.random() < 0.3):
            return TOKENIZER.decode(token_ids, skip_special_tokens=False)
        step = [choose.choice([one for one in allowed if one != EOS and one not in SEPARATORS])]
        if choose.random() < (0.9 if len(token_ids) > STEPS else 0.2):
            fitting = [ids for ids in endings if matcher.validate_tokens(ids) == len(ids)]
            step = choose.choice(fitting) if fitting else step
        matcher.consume_tokens(step)
        token_ids += step
