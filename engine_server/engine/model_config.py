"""What the engine must know of a model before it loads it: read from the folder's config files."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine_server.config import ModelConfig
from engine_server.engine.pooling_config import longest_prompt, read_pooling_config
from engine_server.models import resolve

if TYPE_CHECKING:
    from engine_server.engine.engine_args import EngineArgs


def read_model_config(args: "EngineArgs") -> ModelConfig:
    """Resolve `args.model` to a folder and read its limits. Raises ValueError in words."""
    path = resolve(args.model, load_format=args.load_format)
    from transformers import AutoConfig  # takes seconds, which a model that isn't there need not wait

    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"{path / 'config.json'} is no configuration that transformers knows: {error}"
        ) from error
    text_config = config.get_text_config()
    pooling = read_pooling_config(path, config, args.runner)
    names = args.served_model_name
    return ModelConfig(
        model=args.model,
        path=str(path),
        tokenizer=args.tokenizer or str(path),
        served_model_name=[names] if isinstance(names, str) else names or [args.model],
        dtype=args.dtype,
        max_model_len=_context(
            args.max_model_len, _positions(text_config), longest_prompt(path) if pooling else None
        ),
        vocab_size=text_config.vocab_size,
        eos_token_ids=_eos_token_ids(path, text_config),
        seed=args.seed,
        batch_invariant=args.batch_invariant,
        skip_tokenizer_init=args.skip_tokenizer_init,
        enforce_eager=args.enforce_eager,
        logits_processors=args.logits_processors or [],
        pooling=pooling,
        prompt_embeds_size=_embedding_size(text_config) if args.enable_prompt_embeds else None,
    )


def _positions(config: Any) -> int | None:
    """How many tokens the model can tell apart; a dynamic rope stretches them as a context grows."""
    limit: int | None = getattr(config, "max_position_embeddings", None)
    rope = getattr(config, "rope_parameters", None) or {}
    return int(limit * rope["factor"]) if limit and rope.get("rope_type") == "dynamic" else limit


def _embedding_size(config: Any) -> int:
    """Not the hidden size in the few models that project from the one to the other."""
    names = ("word_embed_proj_dim", "embedding_size", "hidden_size")
    return int(next(filter(None, (getattr(config, name, None) for name in names))))


def _context(asked: int | None, limit: int | None, advised: int | None) -> int:
    if asked is None:
        return min((length for length in (limit, advised) if length), default=2048)
    if limit is not None and asked > limit:
        raise ValueError(f"max_model_len is {asked}; the model's positions end at {limit}")
    return asked


def _eos_token_ids(path: Path, config: Any) -> list[int]:
    """Generation settings know best: chat models end at more tokens than their config names."""
    found = config.eos_token_id
    if (path / "generation_config.json").is_file():
        from transformers import GenerationConfig

        try:
            found = GenerationConfig.from_pretrained(path).eos_token_id or found
        except (OSError, ValueError, json.JSONDecodeError) as error:
            raise ValueError(f"{path / 'generation_config.json'} can't be read: {error}") from error
    if found is None:
        return []
    return list(found) if isinstance(found, list) else [found]
