"""Bounds on the work of one request, which are checked before any of it is done."""

from typing import NamedTuple


class Bound(NamedTuple):
    """The largest accepted amount of something that a request contains."""

    # The plural of what is counted, as error messages and the documentation have it.
    things: str
    limit: int

    def exceeded(self, amount: int) -> str | None:
        """Return the error message for an amount that is too large, else None."""
        if amount <= self.limit:
            return None
        return f"there are {amount:,} {self.things}; at most {self.limit:,} are allowed"


# The body, before it is parsed: characters that make lists, objects and entries are counted inside of texts too.
JSON_BRACKETS = Bound("`[` and `{` in the body", 1 << 18)
JSON_COMMAS = Bound("commas in the body", 1 << 22)

PROMPTS = Bound("prompts", 1024)
MESSAGES = Bound("messages", 4096)
TOOLS = Bound("tools", 512)
CONTEXT_EDITS = Bound("edits of the context", 4)
TOOL_BYTES = Bound("bytes in the definitions of all tools", 1 << 19)

STOP_STRINGS = Bound("stop strings", 16)
STOP_STRING_CHARACTERS = Bound("characters in a stop string", 256)
STOP_TOKENS = Bound("token ids in stop_token_ids", 1024)
BAD_WORDS = Bound("bad_words", 512)
BAD_WORD_CHARACTERS = Bound("characters in one of bad_words", 256)
ALLOWED_TOKENS = Bound("token ids in allowed_token_ids", 1 << 17)
BIASED_TOKENS = Bound("tokens in logit_bias", 4096)

CHOICES = Bound("choices (prompts x n)", 2048)
OUTPUT_LOGPROBS = Bound("log-probabilities (choices x max_tokens x (logprobs + 1))", 1 << 24)
PROMPT_LOGPROBS = Bound("log-probabilities of prompts (prompt tokens x (prompt_logprobs + 1))", 1 << 22)
TOKEN_RULES = Bound("token rules (choices x entries of the lists of tokens and words)", 1 << 20)

POOLED_TOKENS = Bound("tokens in all inputs of a request for the states of each", 1 << 15)
PAIR_CHARACTERS = Bound("characters in all pairs of texts, each with its query and instruction", 1 << 25)
TOKENIZED_CHARACTERS = Bound("characters in a prompt to tokenize", 1 << 22)
DETOKENIZED_TOKENS = Bound("tokens to convert to text", 1 << 18)

SCHEMA_BYTES = Bound("bytes in a schema or grammar", 1 << 18)
SCHEMA_DEPTH = Bound("levels of containers in a schema", 64)
GRAMMAR_BYTES = Bound("bytes of grammars (choices x bytes)", 1 << 24)

BOUNDS = (
    JSON_BRACKETS, JSON_COMMAS, PROMPTS, MESSAGES, TOOLS, TOOL_BYTES, STOP_STRINGS, STOP_STRING_CHARACTERS,
    STOP_TOKENS, BAD_WORDS, BAD_WORD_CHARACTERS, ALLOWED_TOKENS, BIASED_TOKENS, CHOICES, OUTPUT_LOGPROBS,
    PROMPT_LOGPROBS, TOKEN_RULES, POOLED_TOKENS, PAIR_CHARACTERS, TOKENIZED_CHARACTERS, DETOKENIZED_TOKENS,
    SCHEMA_BYTES, SCHEMA_DEPTH, GRAMMAR_BYTES, CONTEXT_EDITS,
)  # fmt: skip


def excess_of_structure(body: bytes | bytearray) -> str | None:
    """Return the error message for JSON with too many values, whose scan would block other requests; else None."""
    if len(body) <= JSON_BRACKETS.limit:  # the lower of the limits
        return None
    brackets = body.count(b"[") + body.count(b"{")
    return JSON_BRACKETS.exceeded(brackets) or JSON_COMMAS.exceeded(body.count(b","))
