"""The model's settings, read from its folder's config files before anything is loaded."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from engine_server.config import ModelConfig, SamplingDefaults
from engine_server.contract.cluster.sources.hub import HubRepository
from engine_server.engine.arguments.context_length import context_length, positions_of
from engine_server.engine.arguments.fields import Arguments
from engine_server.engine.arguments.picture_settings import picture_limit, picture_options
from engine_server.engine.arguments.pooling_config import longest_prompt, read_pooling_config
from engine_server.engine.input.answer_ends import (
    EOS,
    GENERATION_CONFIG,
    Ends,
    declared_ends,
    merged,
    overridden_ends,
    token_ids,
)
from engine_server.model_sources import resolve
from engine_server.model_sources.hf_config import read_hf_config
from engine_server.model_sources.settings_tables import GENERATION_CONFIG as GENERATION_SETTINGS
from engine_server.model_sources.source import locate
from engine_server.modeling.loader.picture_refusal import refusal_by_settings
from engine_server.requests.sampling_params import SamplingParams

# SamplingParams' names by those of generation_config.json.
SAMPLING_NAMES = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}
SUPPRESSED = "suppress_tokens"


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """The properties of a model that are known before it is loaded."""

    config: ModelConfig
    # Embeddings can take the place of tokens: no layer has inputs of its own by token (Gemma 3n and 4).
    takes_embeddings: bool


def describe_model(args: Arguments) -> ModelDescription:
    """Resolve `args.model` to a folder and read its settings. Raises ValueError."""
    path = resolve_folder(args)
    config = read_hf_config(path, args.hf_overrides, args.trust_remote_code)
    text_config = _text_config(path, config)
    pooling = read_pooling_config(path, config, args)
    names = args.served_model_name
    ends = _ends(args, path, text_config)
    model = ModelConfig(
        model=args.model,
        path=str(path),
        tokenizer=args.tokenizer or str(path),
        served_model_name=[names] if isinstance(names, str) else names or [args.model],
        dtype=args.dtype,
        max_model_len=context_length(
            args.max_model_len, positions_of(text_config), longest_prompt(path) if pooling else None
        ),
        vocab_size=text_config.vocab_size,
        eos_token_ids=merged(ends),
        eos_sources=ends,
        seed=args.seed or 0,
        fit_max_model_len=args.max_model_len == -1,
        batch_invariant=args.batch_invariant,
        skip_tokenizer_init=args.skip_tokenizer_init,
        tokenizer_cache_bytes=args.tokenizer_cache_bytes,
        enforce_eager=args.enforce_eager,
        logits_processors=args.logits_processors or [],
        pooling=pooling,
        max_logprobs=args.max_logprobs,
        logprobs_mode=args.logprobs_mode,
        hidden_size=_hidden_size(text_config),
        prompt_embeds_size=_embedding_size(text_config) if args.enable_prompt_embeds else None,
        language_model_only=args.language_model_only,
        max_pictures=picture_limit(args.limit_mm_per_prompt or {}),
        picture_options=picture_options(args.mm_processor_kwargs or {}),
        hf_overrides=args.hf_overrides or {},
        trust_remote_code=args.trust_remote_code,
        sampling_defaults=SamplingDefaults()
        if pooling
        else _sampling_defaults(
            args.generation_config, path, args.override_generation_config or {}, text_config.vocab_size
        ),
    )
    model = msgspec.structs.replace(model, refuses_pictures=refusal_by_settings(model, config))
    takes_embeddings = not getattr(text_config, "hidden_size_per_layer_input", None)
    for name in ("enable_prompt_embeds", "enable_prompt_adapter"):
        if getattr(args, name) and not takes_embeddings:
            raise ValueError(
                f"{name} is set; the model's layers have inputs by token, and take no embeddings"
            )
    return ModelDescription(model, takes_embeddings)


def resolve_folder(args: Arguments) -> Path:
    """Return the model's local folder, fetched first where it must be. Raises ValueError."""
    source, uri = locate(args.model), args.model
    if args.trust_remote_code and not isinstance(source, Path):
        raise ValueError(
            f"trust_remote_code is True, and {uri} is not a local folder; fetch the model, read its code, and give "
            "its folder as model"
        )
    if args.revision is not None:
        if not isinstance(source, HubRepository):
            raise ValueError(f"revision is {args.revision!r}; {uri} is not on the hub, and has no revisions")
        if source.revision not in (None, args.revision):
            raise ValueError(f"revision is {args.revision!r}; {uri} names another")
        uri = str(replace(source, revision=args.revision))
    own_tokenizer = args.tokenizer is not None or args.skip_tokenizer_init
    return resolve(uri, load_format=args.load_format, own_tokenizer=own_tokenizer)


def _text_config(path: Path, config: Any) -> Any:
    """Return the settings of a model's text part. Raises ValueError for a model with several."""
    try:
        return config.get_text_config()
    except ValueError as error:
        name = (config.architectures or [config.model_type])[0]
        raise ValueError(f"the model in {path}, {name}, can't be loaded: {error}") from error


def _embedding_size(config: Any) -> int:
    """Return the size of a token's embedding: the hidden size, except in models that project one to the other."""
    names = ("word_embed_proj_dim", "embedding_size", "hidden_size")
    return int(next(filter(None, (getattr(config, name, None) for name in names))))


def _ends(args: Arguments, path: Path, text_config: Any) -> Ends:
    """Return the tokens that end an answer by the override, else by the model's files. Raises ValueError."""
    override = (args.override_generation_config or {}).get(EOS)
    if override is not None:
        return overridden_ends(override, text_config.vocab_size)
    settings = _read_json(path / "config.json") | (args.hf_overrides or {})
    return declared_ends(_read_json(path / GENERATION_CONFIG), settings, text_config, text_config.vocab_size)


def _sampling_defaults(
    source: str, model: Path, override: dict[str, Any], vocab_size: int
) -> SamplingDefaults:
    """Return the defaults of `source`: auto (the model's), vllm (none), or a folder. Raises ValueError.

    override: settings that replace those of `source`, with generation_config.json's names.
    """
    names = (*SAMPLING_NAMES, SUPPRESSED, EOS)
    refused = GENERATION_SETTINGS.refused
    if unknown := override.keys() - {*names, *refused}:
        raise ValueError(
            f"override_generation_config has {', '.join(sorted(unknown))}; it takes {', '.join(names)}, and null for "
            "settings that are refused in a file"
        )
    file, found = _generation_config(source, model)
    settings = found | override
    where = "override_generation_config" if override else str(file)
    GENERATION_SETTINGS.check(
        settings,
        where if override.keys() & refused else str(file),
        "; generation_config vllm ignores the file, and override_generation_config replaces its settings by null",
    )
    defaults = {name: settings.get(key) for key, name in SAMPLING_NAMES.items()}
    try:
        SamplingParams.from_optional(**defaults)
        suppressed = token_ids(settings.get(SUPPRESSED), where, SUPPRESSED)
    except ValueError as error:
        raise ValueError(f"{where} has wrong sampling parameters: {error}") from error
    # Others are no tokens, as in transformers.
    words = [[one] for one in suppressed if 0 <= one < vocab_size]
    return SamplingDefaults(**defaults, bad_words_token_ids=words or None)


def _generation_config(source: str, model: Path) -> tuple[Path, dict[str, Any]]:
    """Return the file that `source` names and its settings, {} for vllm. Raises ValueError."""
    if source == "vllm":
        return model, {}
    folder = model if source == "auto" else Path(source).expanduser()
    file = folder if folder.suffix == ".json" else folder / GENERATION_CONFIG
    if source != "auto" and not file.is_file():
        raise ValueError(
            f"generation_config is {source!r}; it takes auto, vllm, or a folder with {GENERATION_CONFIG}"
        )
    return file, _read_json(file)


def _hidden_size(config: Any) -> int:
    """Return the size of hidden states; 0 if the config has none, or one for each layer."""
    try:
        size = getattr(config, "hidden_size", None)
    except RuntimeError:  # it has one for each layer
        size = None
    return int(size) if isinstance(size, int | float) else 0


def _read_json(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file; {} if there is no file. Raises ValueError."""
    if not file.is_file():
        return {}
    try:
        settings = json.loads(file.read_text())
    except ValueError as error:
        raise ValueError(f"{file} can't be read: {error}") from error
    if not isinstance(settings, dict):
        raise ValueError(f"{file} can't be read: it is no JSON object")
    return settings
