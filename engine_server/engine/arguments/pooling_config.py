"""Pooling settings of a model, from its config and from sentence-transformers' files in its folder."""

from pathlib import Path
from typing import Any

from engine_server.config import Activation, PoolingConfig
from engine_server.engine.arguments.fields import Arguments
from engine_server.engine.arguments.sentence_transformers import (
    MODULES,
    POOLINGS,
    SETTINGS,
    Modules,
    check_settings,
    read,
    read_encoder_settings,
    read_modules,
    read_settings,
)
from engine_server.engine.input.tokenizer import score_token_ids

GENERATING = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
# Keyed by a class of torch.nn, or a problem type of transformers.
ACTIVATIONS: dict[str, Activation] = {
    "Identity": "identity",
    "Sigmoid": "sigmoid",
    "regression": "identity",
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
}


def read_pooling_config(path: Path, config: Any, args: Arguments) -> PoolingConfig | None:
    """Return a model's pooling settings, None for one that generates. Raises ValueError for unsupported pooling.

    config: transformers' configuration of the model.
    """
    architecture = (config.architectures or [GENERATING[0]])[0]
    if args.runner == "generate":
        if args.score_tokens:
            raise ValueError("score_tokens is set; a model that generates, by runner, doesn't score")
        return None
    modules = read_modules(path, config.get_text_config())
    # vLLM's setting.
    words: list[str] = args.score_tokens or getattr(config, "classifier_from_token", None) or []
    generates = architecture.endswith(GENERATING) and modules is None and not words
    if args.runner == "auto" and generates:
        return None
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    encoder = config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES  # bidirectional attention
    encoder = encoder or getattr(config, "use_bidirectional_attention", None) is True
    if config.is_encoder_decoder:
        raise ValueError(f"{path} has a decoder after the encoder, which is not supported yet")
    check_settings(path)
    settings = read_settings(path)
    found = modules or Modules(normalize=True)
    common: dict[str, Any] = {"encoder": encoder, "num_token_types": getattr(config, "type_vocab_size", 0)}
    if words or found.score_tokens:
        if encoder:
            raise ValueError(f"{path} is an encoder; score tokens are answers of a model that generates")
        tokens = score_token_ids(words, args.tokenizer or str(path)) if words else found.score_tokens
        if wrong := [token for token in tokens if not 0 <= token < config.get_text_config().vocab_size]:
            raise ValueError(f"{path} has {wrong[0]} as a score token, which its vocabulary lacks")
        return PoolingConfig(
            pooling="LAST",
            normalize=False,
            num_labels=1,
            labels=["LABEL_0"],
            **_activations(path, config, settings.activation_fn, 1),
            dimensions=[],
            score_tokens=tokens,
            instruction=settings.default_prompt,
            template_arguments=read_encoder_settings(path).template_arguments,
            **common,
        )
    by_default = POOLINGS[getattr(config, "classifier_pooling", "cls")] if encoder else "LAST"
    classifies = architecture.endswith("ForSequenceClassification")
    whole = (
        found.size or config.get_text_config().hidden_size if getattr(config, "is_matryoshka", False) else 0
    )
    return PoolingConfig(
        pooling=found.pooling or by_default,
        modules=found.layers,
        normalize=found.normalize,
        num_labels=config.num_labels if classifies else None,
        labels=[str(config.id2label[index]) for index in range(config.num_labels)] if classifies else [],
        **_activations(path, config, settings.activation_fn, config.num_labels),
        dimensions=getattr(config, "matryoshka_dimensions", None) or list(range(1, whole + 1)),
        default_dimensions=None if classifies else settings.truncate_dim,
        prompts={} if classifies else settings.prompts,
        default_prompt=None if classifies else settings.default_prompt_name,
        lower_case=not classifies and bool(read_encoder_settings(path).do_lower_case),
        **common,
    )


def longest_prompt(path: Path) -> int | None:
    """Return the longest prompt in tokens by sentence-transformers' or the tokenizer's settings; None: no limit."""
    tokenizer = read(path / "tokenizer_config.json", dict[str, Any]) or {}
    lengths = read_encoder_settings(path).max_seq_length, tokenizer.get("model_max_length")
    return min((int(length) for length in lengths if length), default=None)


def _activations(path: Path, config: Any, named: str | None, num_labels: int) -> dict[str, Any]:
    """Return the activations of labels and of scores: `named`, a class or problem type of the config, or a default.

    A cross-encoder in sentence-transformers' files that names none scores by that library's default, whatever the
    problem type; vLLM and this engine's labels go by the type. Raises ValueError.
    """
    named = named or (getattr(config, "sentence_transformers", None) or {}).get("activation_fn")
    named = named or getattr(config, "sbert_ce_default_activation_function", None)
    labels = _activation(named or config.problem_type, num_labels)
    is_theirs = any((path / file).is_file() for file in (MODULES, SETTINGS))
    by_library = named is None and num_labels == 1 and is_theirs
    return {"activation": labels, "score_activation": "sigmoid" if by_library else labels}


def _activation(named: str | None, num_labels: int) -> Activation:
    if named is None:
        return "sigmoid" if num_labels == 1 else "softmax"
    if (name := named.rpartition(".")[2]) not in ACTIVATIONS:
        raise ValueError(f"scores by {name} aren't supported; by {', '.join(ACTIVATIONS)} are")
    return ACTIVATIONS[name]
