"""The tokens that end an answer by a GGUF file, which has one as its eos, and others by name or as texts alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gguf import GGUFReader

NAMES = ("eos_token_id", "eot_token_id", "eom_token_id")
# The texts that llama.cpp takes for ends of turns and of texts (src/llama-vocab.cpp), but </s>, which is a tag of HTML
# in some vocabularies and the eos in others.
TEXTS = frozenset(
    {
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|calls|>",
        "<|flush|>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<turn|>",
        "<|tool_response>",
        "<eos>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<｜end▁of▁sentence｜>",
        "[e~[",
    }
)
# With these, of which one ends an answer, <|end|> ends a part of it.
PART_END = "<|end|>"
ANSWER_ENDS = frozenset({"<|return|>", "<|flush|>"})


def read_ends(reader: GGUFReader, config: Any) -> list[int]:
    """Return the tokens that end an answer. config: transformers' own, which may have a list for the architecture."""
    named = [reader.get_field(f"tokenizer.ggml.{name}") for name in NAMES]
    ends = [int(field.contents()) for field in named if field is not None]
    own = getattr(config, "eos_token_id", None)
    if isinstance(own, list):
        ends += own
    texts = reader.get_field("tokenizer.ggml.tokens")
    if texts is not None:
        found = {text: token_id for token_id, text in enumerate(texts.contents()) if text in TEXTS}
        if not found.keys().isdisjoint(ANSWER_ENDS):
            part_end = found.pop(PART_END, None)
            ends = [one for one in ends if one != part_end]
        ends += found.values()
    return list(dict.fromkeys(ends))
