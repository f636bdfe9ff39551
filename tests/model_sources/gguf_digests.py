"""Digests of llama.cpp's ids for tokenizers in GGUF files, with which this project's are compared.

Written by llama.cpp, of which the package has a build:
    python -m pip install --target=/tmp/xllamacpp xllamacpp==2026.10.11549
    PYTHONPATH=/tmp/xllamacpp:tests:. GGML_NO_BACKTRACE=1 python -m model_sources.gguf_digests
"""

import hashlib
import json
import multiprocessing
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from model_sources import gguf_vocabularies as vocabularies
from model_sources.gguf_texts import texts

from engine_server.model_sources.gguf.pre_tokenizers import PRE_TOKENIZERS

TABLE = Path(__file__).with_suffix(".json")
NUM_MERGES, NUM_PIECES = 800, 1200
MARKS = {"add_bos_token": True, "add_eos_token": True}


class Table(msgspec.Struct):
    # Of byte letters, and of letters.
    merges: list[str]
    pieces: list[str]
    # SHA-256 of the ids of all texts, by the names of `files`.
    digests: dict[str, str]


def read_table() -> Table:
    return msgspec.json.decode(TABLE.read_bytes(), type=Table)


def files(table: Table) -> dict[str, Callable[[Path], Path]]:
    """Return functions that write a file with each tokenizer, by its name."""
    byte_level: Callable[..., Any] = partial(vocabularies.byte_level, learned=table.merges)
    pieces: Callable[..., Any] = partial(vocabularies.sentence_pieces, merges=table.pieces)
    return {name: partial(byte_level, splits=name) for name in PRE_TOKENIZERS} | {
        "no name": partial(byte_level, splits=None),
        "qwen2 with marks": partial(byte_level, splits="qwen2", **MARKS),
        "llama-bpe without BOS": partial(byte_level, splits="llama-bpe", add_bos_token=False),
        "sentence pieces": pieces,
        "sentence pieces without a space before": partial(pieces, add_space_prefix=False),
        "sentence pieces with marks": partial(pieces, **MARKS),
        "sentence pieces without BOS": partial(pieces, add_bos_token=False),
        "gemma4": partial(vocabularies.gemma4, merges=table.pieces),
    }


def digest(ids: list[list[int]]) -> str:
    return hashlib.sha256(json.dumps(ids).encode()).hexdigest()


def theirs(file: Path) -> str:
    """Return the digest of llama.cpp, whose server lives as long as its process."""
    from model_sources.llama_cpp import LlamaCpp

    server = LlamaCpp(file)
    return digest([server.ids(text) for text in texts()])


def main() -> None:
    merges, pieces = vocabularies.learn_merges(NUM_MERGES), vocabularies.learn_pieces(NUM_PIECES)
    table = Table(merges, pieces, {})
    with tempfile.TemporaryDirectory() as folder:
        for name, write in files(table).items():
            with multiprocessing.get_context("spawn").Pool(1) as process:
                table.digests[name] = process.apply(theirs, (write(Path(folder) / "model.gguf"),))
    TABLE.write_bytes(msgspec.json.format(msgspec.json.encode(table), indent=1) + b"\n")


if __name__ == "__main__":
    main()
