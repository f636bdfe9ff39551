"""The model's tokenizer."""

from pathlib import Path

from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from engine_server.engine.config import ModelConfig


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase | None:
    """None where the config says so. Raises ValueError for a folder without one, or one that can't stream."""
    if config.skip_tokenizer_init:
        return None
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            config.tokenizer, local_files_only=Path(config.tokenizer).is_dir()
        )
    except (OSError, ValueError) as error:
        raise ValueError(f"no tokenizer can be loaded from {config.tokenizer}: {error}") from error
    if not isinstance(getattr(tokenizer, "backend_tokenizer", None), Backend):
        raise ValueError(f"{type(tokenizer).__name__} in {config.tokenizer} is not backed by `tokenizers`")
    return tokenizer


def backend_of(tokenizer: PreTrainedTokenizerBase) -> Backend:
    backend: Backend = tokenizer.backend_tokenizer
    return backend
