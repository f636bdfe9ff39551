"""The tokens that end an answer, with their sources."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from engine_server.config import ModelConfig
from engine_server.contract.base.quoting import quote
from engine_server.engine.input.template_end import TemplateEnd, rendered_end

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

EOS = "eos_token_id"
GENERATION_CONFIG, CONFIG, TOKENIZER, TEMPLATE = (
    "generation_config.json",
    "config.json",
    "tokenizer",
    "chat template",
)
# Defaults of a configuration's class.
CLASS = "transformers"
# It replaces all others.
OVERRIDE = "override_generation_config"

Ends = dict[str, list[int]]


def token_ids(value: object, source: str, name: str = EOS) -> list[int]:
    """Return the tokens of a setting such as `eos_token_id`, which is null, one, or a list. Raises ValueError."""
    found = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(one, int) and not isinstance(one, bool) for one in found):
        raise ValueError(f"{source} has {name} {quote(value)}; it takes a token's id, or a list of them")
    return list(dict.fromkeys(found))


def declared_ends(
    generation_config: Mapping[str, Any], settings: Mapping[str, Any], text_config: Any, vocab_size: int
) -> Ends:
    """Return the ends that a model's files name, by source. Raises ValueError.

    settings: those of config.json, with the overrides. Where no file names any, the default of the configuration's
    class stands, which is often about another vocabulary.
    """
    default = getattr(text_config, EOS, None)
    parts = [part for part in settings.values() if isinstance(part, dict) and EOS in part]
    nested = [part[EOS] for part in parts if part[EOS] == default]
    found = {
        GENERATION_CONFIG: token_ids(generation_config.get(EOS), GENERATION_CONFIG),
        CONFIG: token_ids(settings.get(EOS), CONFIG) + token_ids(nested[0] if nested else None, CONFIG),
    }
    if not any(found.values()):
        found = {CLASS: token_ids(default, CLASS)}
    return within(found, vocab_size)


def overridden_ends(value: object, vocab_size: int) -> Ends:
    """Return the ends that an override names. Raises ValueError for one that is no token of the vocabulary."""
    found = token_ids(value, OVERRIDE)
    if any(not 0 <= one < vocab_size for one in found):
        raise ValueError(
            f"{OVERRIDE} has {EOS} {value!r}; the vocabulary has the tokens 0 to {vocab_size - 1}"
        )
    return {OVERRIDE: found}


def within(ends: Ends, vocab_size: int) -> Ends:
    """Return the ends that are tokens of the vocabulary, without sources that have none."""
    found = {
        source: [one for one in dict.fromkeys(ids) if 0 <= one < vocab_size] for source, ids in ends.items()
    }
    return {source: ids for source, ids in found.items() if ids}


def merged(ends: Ends) -> list[int]:
    """Return the ends of all sources."""
    return list(dict.fromkeys(token_id for ids in ends.values() for token_id in ids))


def with_answer_ends(
    config: ModelConfig, tokenizer: PreTrainedTokenizerBase | None, template_end: TemplateEnd = rendered_end
) -> ModelConfig:
    """Return the settings of a model with the ends that its tokenizer and its chat template add, and log all."""
    if config.pooling is not None:
        return config
    ends = dict(config.eos_sources)
    if not ends and config.eos_token_ids:
        ends[CONFIG] = config.eos_token_ids
    if tokenizer is not None and OVERRIDE not in ends:
        own = tokenizer_end(tokenizer, config.vocab_size)
        if own is not None:
            if own not in ends.get(CLASS, [own]):
                del ends[CLASS]
            ends[TOKENIZER] = [own]
        printed = template_end(tokenizer, merged(ends))
        if printed is not None:
            ends |= within({TEMPLATE: [printed]}, config.vocab_size)
    logger.info("answers end at: %s", described(ends, tokenizer))
    return msgspec.structs.replace(config, eos_token_ids=merged(ends), eos_sources=ends)


def tokenizer_end(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> int | None:
    """Return the end of a tokenizer; None for one without, or with a text that is none of its tokens."""
    text = tokenizer.eos_token
    token_id: int | None = None if text is None else tokenizer.backend_tokenizer.token_to_id(str(text))
    return token_id if token_id is not None and token_id < vocab_size else None


def described(ends: Ends, tokenizer: PreTrainedTokenizerBase | None) -> str:
    """Return the ends for a person, each with its sources."""

    def name(token_id: int) -> str:
        token = None if tokenizer is None else tokenizer.backend_tokenizer.id_to_token(token_id)
        return str(token_id) if token is None else f"{token} {token_id}"

    def sources(token_id: int) -> Sequence[str]:
        return [source for source, ids in ends.items() if token_id in ids]

    return ", ".join(f"{name(one)} ({', '.join(sources(one))})" for one in merged(ends)) or "no token"
