"""The model's tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tokenizers import Encoding
from tokenizers import Tokenizer as Backend

from engine_server.config import ModelConfig
from engine_server.model_sources.folder import TOKENIZER_CONFIG, json_object
from engine_server.model_sources.gguf.tokenizer import is_converted
from engine_server.requests.errors import InvalidRequestError
from engine_server.requests.messages import Vocabulary
from engine_server.requests.prompts import TokensPrompt
from engine_server.structured.vocabulary import read_vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# transformers reads it for processors alone.
PROCESSORS_TEMPLATE = "chat_template.json"
# Tokenizers of adapters that are kept.
ADAPTER_TOKENIZERS = 16


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase | None:
    """Return the model's tokenizer, or None with skip_tokenizer_init.

    Raises ValueError if there is none, or one that can't decode token by token.
    """
    if config.skip_tokenizer_init:
        return None
    return read_tokenizer(config.tokenizer, config.trust_remote_code and Path(config.tokenizer).is_dir())


@lru_cache(maxsize=ADAPTER_TOKENIZERS)
def adapter_tokenizer(folder: str) -> PreTrainedTokenizerBase | None:
    """Return the tokenizer in an adapter's folder, or None if there is none. Raises ValueError for a wrong one."""
    return read_tokenizer(folder, False) if Path(folder, TOKENIZER_CONFIG).is_file() else None


def read_tokenizer(source: str, trust_remote_code: bool) -> PreTrainedTokenizerBase:
    """Return the tokenizer in a folder, or of a hub's name. Raises ValueError."""
    from transformers import AutoTokenizer, TokenizersBackend  # imports torch, which takes seconds

    kind: Any = TokenizersBackend if is_converted(Path(source)) else AutoTokenizer
    try:
        tokenizer: PreTrainedTokenizerBase = kind.from_pretrained(
            source, local_files_only=Path(source).is_dir(), trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError) as error:
        raise ValueError(f"no tokenizer can be loaded from {source}: {error}") from error
    if not isinstance(getattr(tokenizer, "backend_tokenizer", None), Backend):
        raise ValueError(f"{type(tokenizer).__name__} in {source} is not backed by `tokenizers`")
    if tokenizer.chat_template is None:
        tokenizer.chat_template = processors_template(Path(source))
    # Files of embedding models may set both; here each request sets its limit.
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    return tokenizer


def processors_template(folder: Path) -> str | None:
    """Return the chat template that a model's processor has in a file of its own; None without one."""
    file = folder / PROCESSORS_TEMPLATE
    settings = json_object(file) if file.is_file() else {}
    template = settings.get("chat_template")
    return template if isinstance(template, str) else None


def score_token_ids(words: Sequence[str], source: str) -> list[int]:
    """Return the token of each word: a negative and a positive answer, or a positive one alone. Raises ValueError.

    source: a folder or a hub's name.
    """
    if not 1 <= len(words) <= 2:
        raise ValueError(
            f"score_tokens has {len(words)} words; it takes a positive answer, or a negative one before it"
        )
    backend = backend_of(read_tokenizer(source, False))
    tokens = []
    for word in words:
        token = backend.token_to_id(word)
        found = backend.encode(word, add_special_tokens=False).ids if token is None else [token]
        if len(found) != 1:
            raise ValueError(
                f"score_tokens has {word!r}, which is {len(found)} tokens; it takes words of one token"
            )
        tokens += found
    return tokens


def backend_of(tokenizer: PreTrainedTokenizerBase) -> Backend:
    """Return the tokenizer of the `tokenizers` library that transformers' tokenizer wraps."""
    backend: Backend = tokenizer.backend_tokenizer
    return backend


def model_vocabulary(tokenizer: PreTrainedTokenizerBase | None, config: ModelConfig) -> Vocabulary | None:
    """Return the vocabulary that grammars need, or None for a model that can't follow them."""
    if tokenizer is None or config.pooling is not None or not config.eos_token_ids:
        return None
    return read_vocabulary(backend_of(tokenizer), config.vocab_size, config.eos_token_ids)


class Truncation(NamedTuple):
    """Limits of a prompt's length in tokens; None: no limit."""

    # Of the whole prompt, special tokens included.
    longest: int | None = None
    # The side from which tokens are removed.
    side: Literal["left", "right"] = "right"
    # Of the first text of a pair, or of an only text, and of the second, without special tokens.
    longest_first: int | None = None
    longest_second: int | None = None


WHOLE = Truncation()


def encode_texts(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    truncation: Truncation = WHOLE,
    add_special_tokens: bool = True,
) -> list[list[int]]:
    """Return the token ids of each text.

    No setting of the tokenizer is changed, so any thread may call this; other threads run while it tokenizes.
    """
    backend = backend_of(tokenizer)
    room = _room(truncation.longest, backend.num_special_tokens_to_add(False) if add_special_tokens else 0)
    encodings = backend.encode_batch_fast(list(texts), add_special_tokens=False)
    for encoding in encodings:
        _truncate(encoding, truncation.longest_first, truncation.side)
        _truncate(encoding, room, truncation.side)
    return [backend.post_process(one, add_special_tokens=add_special_tokens).ids for one in encodings]


def encode_pairs(
    tokenizer: PreTrainedTokenizerBase,
    pairs: Sequence[tuple[str, str]],
    truncation: Truncation = WHOLE,
) -> list[TokensPrompt]:
    """Return a prompt for each pair of texts, as cross-encoders read them; the longer text is cut first.

    Like `encode_texts`, any thread may call this.
    """
    backend = backend_of(tokenizer)
    room, side = _room(truncation.longest, backend.num_special_tokens_to_add(True)), truncation.side
    firsts, seconds = (
        backend.encode_batch_fast(list(texts), add_special_tokens=False)
        for texts in ([first for first, _ in pairs], [second for _, second in pairs])
    )
    has_types = "token_type_ids" in tokenizer.model_input_names
    prompts = []
    for first, second in zip(firsts, seconds, strict=True):
        _truncate(first, truncation.longest_first, side)
        _truncate(second, truncation.longest_second, side)
        if room is not None:
            lengths = _longest_first(len(first), len(second), room)
            _truncate(first, lengths[0], side)
            _truncate(second, lengths[1], side)
        encoding = backend.post_process(first, second)
        prompt = TokensPrompt(prompt_token_ids=encoding.ids)
        if has_types:
            prompt["token_type_ids"] = encoding.type_ids
        prompts.append(prompt)
    return prompts


def _room(longest: int | None, num_special: int) -> int | None:
    """Return how many tokens of text fit beside the special tokens. Raises InvalidRequestError if none fits."""
    if longest is None:
        return None
    if longest < num_special:
        raise InvalidRequestError(
            f"truncate_prompt_tokens is {longest}; the model's special tokens alone are {num_special}",
            "truncate_prompt_tokens",
        )
    return longest - num_special


def _truncate(encoding: Encoding, longest: int | None, side: str) -> None:
    if longest is not None and len(encoding) > longest:
        encoding.truncate(longest, direction=side)


def _longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Return the lengths to which two texts are cut so that both fit: the longer one gives way to half of the room."""
    half = room // 2
    if first > second:
        second = min(second, half)
        return min(first, room - second), second
    first = min(first, half)
    return first, min(second, room - first)
