"""Fixtures of the tests that need a GPU: `pytest tests/gpu` on a machine that has one."""

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig


@pytest.fixture(scope="session")
def gpu() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU here")
    return torch.device("cuda")


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save the configuration of a llama whose weights take 306 MiB in bfloat16, for load_format="dummy"."""
    folder = tmp_path_factory.mktemp("llama")
    LlamaConfig(
        hidden_size=1024, intermediate_size=4096, num_hidden_layers=6, num_attention_heads=8, num_key_value_heads=4,
        vocab_size=32000, max_position_embeddings=4096, initializer_range=0.1, eos_token_id=1, bos_token_id=0,
        dtype="bfloat16",
    ).save_pretrained(folder)  # fmt: skip
    return folder
