"""Pooling settings of a model, from its config and from sentence-transformers' files in its folder."""

import json
from pathlib import Path
from typing import Any

from engine_server.config import Activation, Pooling, PoolingConfig

GENERATING = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
POOLINGS: dict[str, Pooling] = {
    "cls": "CLS", "cls_token": "CLS", "mean": "MEAN", "mean_tokens": "MEAN", "lasttoken": "LAST",
}  # fmt: skip
# Keyed by a class of torch.nn, or a problem type of transformers.
ACTIVATIONS: dict[str, Activation] = {
    "Identity": "identity",
    "Sigmoid": "sigmoid",
    "regression": "identity",
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
}


def read_pooling_config(path: Path, config: Any, runner: str) -> PoolingConfig | None:
    """Return a model's pooling settings, None for one that generates. Raises ValueError for unsupported pooling.

    config: transformers' configuration of the model.
    """
    modules: list[dict[str, str]] = _read(path / "modules.json") or []
    architecture = (config.architectures or [GENERATING[0]])[0]
    if runner == "generate" or (runner == "auto" and not modules and architecture.endswith(GENERATING)):
        return None
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    encoder = config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES  # bidirectional attention
    encoder = encoder or getattr(config, "use_bidirectional_attention", None) is True
    pooling = POOLINGS[getattr(config, "classifier_pooling", "cls")] if encoder else "LAST"
    kinds = {module["type"].rpartition(".")[2]: path / module["path"] for module in modules}
    if "Pooling" in kinds:
        pooling = _pooling(_read(kinds["Pooling"] / "config.json") or {})
    if unknown := [
        *kinds.keys() - {"Transformer", "Pooling", "Normalize"},
        *["a decoder"] * config.is_encoder_decoder,
    ]:
        raise ValueError(f"{path} has {unknown[0]} after the encoder, which is not supported yet")
    classifies = architecture.endswith("ForSequenceClassification")
    whole = config.get_text_config().hidden_size if getattr(config, "is_matryoshka", False) else 0
    return PoolingConfig(
        pooling=pooling,
        normalize=not modules or "Normalize" in kinds,
        encoder=encoder,
        num_labels=config.num_labels if classifies else None,
        labels=[str(config.id2label[index]) for index in range(config.num_labels)] if classifies else [],
        activation=_activation(config),
        dimensions=getattr(config, "matryoshka_dimensions", None) or list(range(1, whole + 1)),
        num_token_types=getattr(config, "type_vocab_size", 0),
    )


def longest_prompt(path: Path) -> int | None:
    """Return the longest prompt in tokens by sentence-transformers' or the tokenizer's settings; None: no limit."""
    limits = (("sentence_bert_config.json", "max_seq_length"), ("tokenizer_config.json", "model_max_length"))
    lengths = ((_read(path / file) or {}).get(key) for file, key in limits)
    return min((int(length) for length in lengths if length), default=None)


def _pooling(settings: dict[str, Any]) -> Pooling:
    """Return the mode of a Pooling module: one setting, or a flag per mode in older files."""
    prefix = "pooling_mode_"
    flags = [key.removeprefix(prefix) for key, value in settings.items() if key.startswith(prefix) and value]
    mode = " and ".join(flags or [str(settings.get("pooling_mode"))])
    if mode not in POOLINGS:
        raise ValueError(f"pooling by {mode} isn't supported; by {', '.join(POOLINGS)} is")
    return POOLINGS[mode]


def _activation(config: Any) -> Activation:
    """Return the activation of a classifier's scores: cross-encoders name a class, others a problem type."""
    named = (getattr(config, "sentence_transformers", None) or {}).get("activation_fn")
    named = named or getattr(config, "sbert_ce_default_activation_function", None) or config.problem_type
    if named is None:
        return "sigmoid" if config.num_labels == 1 else "softmax"
    if (name := named.rpartition(".")[2]) not in ACTIVATIONS:
        raise ValueError(f"scores by {name} aren't supported; by {', '.join(ACTIVATIONS)} are")
    return ACTIVATIONS[name]


def _read(file: Path) -> Any:
    """Return the content of a JSON file; None if there is no file."""
    try:
        return json.loads(file.read_text()) if file.is_file() else None
    except ValueError as error:
        raise ValueError(f"{file} can't be read: {error}") from error
