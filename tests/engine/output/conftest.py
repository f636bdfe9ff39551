"""Small tokenizers of the three kinds of decoder, and a real one."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

WORDS = ["a", "b", "▁", "▁a", "▁b", "ab", "▁ab", "é"]


@pytest.fixture(scope="session")
def byte_level(smollm2: Path) -> Tokenizer:
    return Tokenizer.from_file(str(smollm2 / "tokenizer.json"))


@pytest.fixture(scope="session")
def byte_fallback() -> Tokenizer:
    """Build a tokenizer like Llama 2's: 256 bytes with their values plus 1 as ids, then WORDS; it strips a space."""
    names = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
    vocabulary = {name: token_id for token_id, name in enumerate(names)}
    merges = [("▁", "a"), ("▁", "b"), ("a", "b"), ("▁a", "b")]
    tokenizer = Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


@pytest.fixture(scope="session")
def wordpiece() -> Tokenizer:
    names = ["[UNK]", "ab", "##c", "de", "##f", ".", ",", "do", "n't", "##'", "é", "##漢"]
    vocabulary = {name: token_id for token_id, name in enumerate(names)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


@pytest.fixture(params=["byte_level", "byte_fallback", "wordpiece"])
def any_tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    tokenizer: Tokenizer = request.getfixturevalue(request.param)
    return tokenizer
