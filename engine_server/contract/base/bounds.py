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


# The body, before it is parsed: characters that make lists, objects and entries.
JSON_BRACKETS = Bound("`[` and `{` outside of the body's strings", 1 << 18)
JSON_COMMAS = Bound("commas outside of the body's strings", 1 << 18)
# In place of the latter where a body may have token ids: for paths that take them, and for a stream that is continued.
TOKEN_ID_COMMAS = Bound("commas outside of the body's strings, of a body that may have token ids", 1 << 20)
# Of all strings of JSON in a body, which are parsed too: the arguments of earlier calls.
NESTED_VALUES = Bound(
    "`[`, `{` and commas in the JSON of earlier calls' arguments, outside of its strings", 1 << 18
)

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
BEAM_TOKENS = Bound("tokens in the beams of a search (prompt tokens x width)", 1 << 17)
OUTPUT_LOGPROBS = Bound("log-probabilities (choices x max_tokens x (logprobs + 1))", 1 << 24)
PROMPT_LOGPROBS = Bound("log-probabilities of prompts (prompt tokens x (prompt_logprobs + 1))", 1 << 22)
TOKEN_RULES = Bound("token rules (choices x entries of the lists of tokens and words)", 1 << 20)

POOLED_TOKENS = Bound("tokens in all inputs of a request for the states of each", 1 << 15)
ANSWER_BYTES = Bound("bytes in the numbers of an answer (24 for each number, in base64 6)", 1 << 27)
PAIR_CHARACTERS = Bound("characters in all pairs of texts, each with its query and instruction", 1 << 25)
TOKENIZED_BYTES = Bound("UTF-8 bytes in a text to tokenize", 1 << 22)
TOKENIZED_TOKENS = Bound("tokens in a text to tokenize", 1 << 20)
DETOKENIZED_TOKENS = Bound("tokens to convert to text", 1 << 20)


SCHEMA_BYTES = Bound("bytes in a schema or grammar", 1 << 18)
SCHEMA_DEPTH = Bound("levels of containers in a schema", 64)
GRAMMAR_BYTES = Bound("bytes of grammars (choices x bytes)", 1 << 24)

PICTURES = Bound("pictures in a request", 64)
PICTURE_BYTES = Bound("bytes in a picture", 20 << 20)
PICTURE_PIXELS = Bound("pixels in a picture", 1 << 25)
PICTURES_PIXELS = Bound("pixels in all pictures of a request", 1 << 27)
PICTURE_ASPECT = Bound("times the shorter side of a picture in its longer side", 200)

BOUNDS = (
    JSON_BRACKETS, JSON_COMMAS, TOKEN_ID_COMMAS, NESTED_VALUES, PROMPTS, MESSAGES, TOOLS, TOOL_BYTES,
    STOP_STRINGS, STOP_STRING_CHARACTERS,
    STOP_TOKENS, BAD_WORDS, BAD_WORD_CHARACTERS, ALLOWED_TOKENS, BIASED_TOKENS, CHOICES, BEAM_TOKENS, OUTPUT_LOGPROBS,
    PROMPT_LOGPROBS, TOKEN_RULES, POOLED_TOKENS, ANSWER_BYTES, PAIR_CHARACTERS, TOKENIZED_BYTES, TOKENIZED_TOKENS,
    DETOKENIZED_TOKENS,
    SCHEMA_BYTES, SCHEMA_DEPTH, GRAMMAR_BYTES, CONTEXT_EDITS,
    PICTURES, PICTURE_BYTES, PICTURE_PIXELS, PICTURES_PIXELS, PICTURE_ASPECT,
)  # fmt: skip

# The ends of strings that `without_strings` looks for.
MOST_QUOTES = 1 << 20


def excess_of_values(text: bytes | bytearray, commas: Bound) -> str | None:
    """Return the error message for a text with too many brackets or commas, else None."""
    return JSON_BRACKETS.exceeded(num_brackets(text)) or commas.exceeded(text.count(b","))


def num_brackets(text: bytes | bytearray) -> int:
    return text.count(b"[") + text.count(b"{")


def without_strings(body: bytes | bytearray) -> bytes:
    """Return JSON without its strings; what follows the first MOST_QUOTES quotes is left as it is."""
    # Without escaped backslashes, each that is left escapes what follows it.
    unescaped = body.replace(rb"\\", b"").replace(rb"\"", b"")
    return b"".join(unescaped.split(b'"', MOST_QUOTES)[::2])
