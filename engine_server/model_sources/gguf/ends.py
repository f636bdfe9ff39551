"""The tokens that end an answer by a GGUF file, which has one as its eos, and others by name or as texts alone.

The texts are those of llama.cpp (src/llama-vocab.cpp).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine_server.model_sources.gguf.file import GgufFile

NAMES = ("eos", "eot", "eom")
# The eos of a file without its key, by the kind of the tokenizer.
DEFAULT_EOS = {"llama": 2, "gpt2": 11}
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
        "</s>",
        "<｜end▁of▁sentence｜>",
        "[e~[",
    }
)
# Tokens of code that is filled in, which end an answer too: by their keys, else by their texts.
FILL_IN = {
    "fim_pad": frozenset({"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"}),
    "fim_rep": frozenset({"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"}),
    "fim_sep": frozenset({"<|file_sep|>"}),
}
# Texts that are special tokens whatever their type in the file.
SPECIAL_TEXTS = TEXTS.union(*FILL_IN.values())
# With these, of which one ends an answer, <|end|> ends a part of it.
PART_END, CALLS, ANSWER_ENDS = "<|end|>", {"<|call|>", "<|calls|>"}, {"<|return|>", "<|flush|>"}
# With this, </s> is a tag of HTML.
TAG, WITH_TAGS = "</s>", "<|tool_response>"


def read_ends(file: GgufFile, config: Any) -> list[int]:
    """Return the tokens that end an answer. config: transformers' own, which may have a list for the architecture."""
    named = {name: file.get(f"tokenizer.ggml.{name}_token_id", int) for name in (*NAMES, *FILL_IN)}
    if named["eos"] is None:
        named["eos"] = DEFAULT_EOS.get(file.get("tokenizer.ggml.model", str) or "")
    texts = file.items("tokenizer.ggml.tokens", str) or []
    ends = [token_id for token_id in named.values() if token_id is not None and 0 <= token_id < len(texts)]
    own = getattr(config, "eos_token_id", None)
    if isinstance(own, list):
        ends += own
    taken = TEXTS.union(*(FILL_IN[name] for name in FILL_IN if named[name] is None))
    ends += [token_id for token_id, text in enumerate(texts) if text in taken]
    found = {texts[token_id]: token_id for token_id in ends if token_id < len(texts)}
    if not found.keys().isdisjoint(CALLS) and not found.keys().isdisjoint(ANSWER_ENDS):
        ends = [token_id for token_id in ends if token_id != found.get(PART_END)]
    if WITH_TAGS in found:
        ends = [token_id for token_id in ends if token_id != found.get(TAG)]
    return list(dict.fromkeys(ends))
