"""The bytes that each token of a tokenizer adds to a text."""

import json
import re
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer

from engine_server.requests.messages import Vocabulary

# Tokens like <tool_call> and [TOOL_CALLS], of which many tokenizers say that they are not special.
MARK = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")
# The notation of a byte in tokenizers with byte fallback.
BYTE = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)}


def read_vocabulary(tokenizer: Tokenizer, size: int, eos_token_ids: Sequence[int]) -> Vocabulary:
    """Return the vocabulary of a tokenizer.

    size: number of the model's logits. Tokens without a text of their own are empty, and no grammar allows them. Added
    tokens that delimit parts of a text are special, so that text in a grammar is never one of them.
    """
    names = [tokenizer.id_to_token(token_id) or "" for token_id in range(size)]
    added = {
        token_id: token for token_id, token in tokenizer.get_added_tokens_decoder().items() if token_id < size
    }
    if "ByteLevel" in decoder_types(tokenizer):
        tokens = [byte_level(name) for name in names]
    else:
        tokens = added_texts(tokenizer, names)
    for token_id, token in added.items():
        tokens[token_id] = token.content.encode()
    special = {
        token_id for token_id, token in added.items() if token.special or MARK.fullmatch(token.content)
    }
    special |= set(eos_token_ids)
    return Vocabulary(tokens, sorted(special), list(eos_token_ids))


def decoder_types(tokenizer: Tokenizer) -> set[str]:
    """Return the types of the tokenizer's decoders."""
    decoder: dict[str, Any] = json.loads(tokenizer.to_str())["decoder"] or {}
    return {decoder.get("type", "")} | {one["type"] for one in decoder.get("decoders", ())}


def byte_level(name: str) -> bytes:
    """Return the bytes that a token of a byte-level tokenizer stands for."""
    return bytes(BYTES[character] for character in name) if BYTES.keys() >= set(name) else b""


def byte_characters() -> dict[str, int]:
    """Return GPT-2's mapping of characters to bytes: printable bytes are themselves, the others follow from 256 on."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + number): byte for number, byte in enumerate(others)
    }


BYTES = byte_characters()


def added_texts(tokenizer: Tokenizer, names: Sequence[str]) -> list[bytes]:
    """Return the text that each token adds after another one, since decoders treat the first token differently."""
    anchor = next(
        (token_id for token_id, name in enumerate(names) if name.isascii() and name.isalnum()), None
    )
    if anchor is None:
        return [BYTE.get(name, b"") for name in names]
    before = tokenizer.decode([anchor])
    texts = tokenizer.decode_batch([[anchor, token_id] for token_id in range(len(names))])
    return [
        BYTE.get(name) or (text[len(before) :].encode() if text.startswith(before) else b"")
        for name, text in zip(names, texts, strict=True)
    ]
