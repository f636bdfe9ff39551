"""Tiny GGUF files with a tokenizer of each kind, for comparisons with llama.cpp."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from model_sources.gguf_texts import MARKS, texts
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

WIDTH = 32
SPACE = "▁"
BYTE = re.compile("<0x[0-9A-F]{2}>")
# Texts that are tokens of their own, by their types.
TYPES = {
    "<unk>": gguf.TokenType.UNKNOWN,
    "<s>": gguf.TokenType.CONTROL,
    "</s>": gguf.TokenType.CONTROL,
    "<|mark|>": gguf.TokenType.CONTROL,
    "<|plain|>": gguf.TokenType.USER_DEFINED,
    "<|im_end|>": gguf.TokenType.NORMAL,
    "<|endoftext|>": gguf.TokenType.CONTROL,
}
assert TYPES.keys() <= set(MARKS)


def learn_merges(count: int) -> list[str]:
    """Return merges of byte letters that the texts have, across all borders of words."""
    return _learn(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), texts(), 256 + count)


def learn_pieces(count: int) -> list[str]:
    """Return merges of letters, and of the letter for a space, that the texts have.

    None has the character 0, which ends a text in llama.cpp.
    """
    lines = [text.replace(" ", SPACE).replace("\0", "") for text in texts()]
    return [merge for merge in _learn(None, lines, count) if merge.count(" ") == 1]


def _learn(pre_tokenizer: Any, lines: list[str], size: int) -> list[str]:
    tokenizer = Tokenizer(models.BPE())
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False, max_token_length=12)
    tokenizer.train_from_iterator(lines, trainer)
    return [" ".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]


def byte_level(path: Path, learned: Sequence[str], splits: str | None, **keys: Any) -> Path:
    """Write a byte-level vocabulary. Every seventh merge is left out, and the token that it makes stays.

    learned: merges; splits: the name of the pre-tokenizer.
    """
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = [*TYPES, *letters, *(merge.replace(" ", "") for merge in learned)]
    tokens = list(dict.fromkeys(tokens))
    kept = [merge for index, merge in enumerate(learned) if index % 7]
    named = {} if splits is None else {"pre": splits}
    return save(path, "gpt2", tokens, **({"merges": kept} | named | keys))


def sentence_pieces(path: Path, merges: Sequence[str], **keys: Any) -> Path:
    """Write a vocabulary of pieces, of which the first ones have the highest scores."""
    tokens, scores = _pieces(merges)
    return save(path, "llama", tokens, scores=scores, **keys)


def gemma4(path: Path, merges: Sequence[str], **keys: Any) -> Path:
    """Write a vocabulary of pieces with merges."""
    tokens, _ = _pieces(merges)
    return save(path, "gemma4", tokens, merges=list(merges), **keys)


def _pieces(merges: Sequence[str]) -> tuple[list[str], list[float]]:
    made = [merge.replace(" ", "") for merge in merges]
    letters = sorted({letter for merge in merges for letter in merge if letter != " "})
    marks = [*TYPES, *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens = list(dict.fromkeys([*marks, *made, *letters]))
    pieces = tokens[len(marks) :]
    return tokens, [*[0.0] * (len(tokens) - len(pieces)), *(-float(rank) for rank in range(len(pieces)))]


def save(path: Path, kind: str, texts: list[str], **keys: Any) -> Path:
    """Write a random model of one layer.

    kind, texts: of the tokenizer. keys: others of it, without their prefix; or `architecture`; `name`, the title;
    `templates`, by the ends of their keys.
    """
    architecture = keys.pop("architecture", "llama")
    writer = gguf.GGUFWriter(path, architecture)
    if "name" in keys:
        writer.add_name(keys.pop("name"))
    for end, text in keys.pop("templates", {}).items():
        writer.add_string(f"tokenizer.chat_template{end}", text)
    writer.add_context_length(4096)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // 2)
    writer.add_vocab_size(len(texts))
    types = [
        gguf.TokenType.BYTE if BYTE.fullmatch(text) else TYPES.get(text, gguf.TokenType.NORMAL)
        for text in texts
    ]
    marks = {"unknown": "<unk>", "bos": "<s>", "eos": "</s>"}
    written = {"model": kind, "tokens": texts, "token_type": [int(one) for one in types]}
    written |= {f"{name}_token_id": texts.index(mark) for name, mark in marks.items()}
    for name, value in (written | keys).items():
        key = f"tokenizer.ggml.{name}"
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case str():
                writer.add_string(key, value)
            case _:
                writer.add_array(key, value)
    random = np.random.default_rng(0)
    matrices = {f"attn_{part}": WIDTH for part in ("q", "k", "v", "output")}
    matrices |= {f"ffn_{part}": WIDTH for part in ("gate", "up", "down")}
    for name in matrices:
        writer.add_tensor(f"blk.0.{name}.weight", random.standard_normal((WIDTH, WIDTH), np.float32))
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))
    if architecture == "qwen2":
        for part in ("q", "k", "v"):
            writer.add_tensor(f"blk.0.attn_{part}.bias", np.zeros(WIDTH, np.float32))
    writer.add_tensor("token_embd.weight", random.standard_normal((len(texts), WIDTH), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
