"""The model's tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer as Backend

from engine_server.config import ModelConfig
from engine_server.requests.messages import Vocabulary
from engine_server.requests.prompts import TokensPrompt
from engine_server.structured.vocabulary import read_vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase | None:
    """Return the model's tokenizer, or None with skip_tokenizer_init.

    Raises ValueError if there is none, or one that can't decode token by token.
    """
    if config.skip_tokenizer_init:
        return None
    from transformers import AutoTokenizer  # imports torch, which takes seconds

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            config.tokenizer,
            local_files_only=Path(config.tokenizer).is_dir(),
            trust_remote_code=config.trust_remote_code and Path(config.tokenizer).is_dir(),
        )
    except (OSError, ValueError) as error:
        raise ValueError(f"no tokenizer can be loaded from {config.tokenizer}: {error}") from error
    if not isinstance(getattr(tokenizer, "backend_tokenizer", None), Backend):
        raise ValueError(f"{type(tokenizer).__name__} in {config.tokenizer} is not backed by `tokenizers`")
    return tokenizer


def backend_of(tokenizer: PreTrainedTokenizerBase) -> Backend:
    """Return the tokenizer of the `tokenizers` library that transformers' tokenizer wraps."""
    backend: Backend = tokenizer.backend_tokenizer
    return backend


def model_vocabulary(tokenizer: PreTrainedTokenizerBase | None, config: ModelConfig) -> Vocabulary | None:
    """Return the vocabulary that grammars need, or None for a model that can't follow them."""
    if tokenizer is None or config.pooling is not None or not config.eos_token_ids:
        return None
    return read_vocabulary(backend_of(tokenizer), config.vocab_size, config.eos_token_ids)


def text_pair(
    tokenizer: PreTrainedTokenizerBase, first: str, second: str, longest: int | None = None
) -> TokensPrompt:
    """Return two texts as one prompt, as cross-encoders read them, cut to `longest` tokens in all."""
    encoded = tokenizer(first, second, truncation=longest is not None, max_length=longest)
    prompt = TokensPrompt(prompt_token_ids=encoded["input_ids"])
    if "token_type_ids" in encoded:
        prompt["token_type_ids"] = encoded["token_type_ids"]
    return prompt
