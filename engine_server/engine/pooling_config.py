"""Whether a model pools, and how: from its config and from sentence-transformers' files beside it."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine_server.engine.config import Activation, Pooling, PoolingConfig

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

GENERATING = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
POOLINGS: dict[str, Pooling] = {
    "cls": "CLS",
    "cls_token": "CLS",
    "mean": "MEAN",
    "mean_tokens": "MEAN",
    "lasttoken": "LAST",
}
ACTIVATIONS: dict[str, Activation] = {
    "Identity": "identity",
    "Sigmoid": "sigmoid",
    "regression": "identity",
    "single_label_classification": "softmax",
    "multi_label_classification": "sigmoid",
}


def read_pooling_config(path: Path, config: "PreTrainedConfig", runner: str) -> PoolingConfig | None:
    """None for a model that generates. Raises ValueError for one that would be pooled wrongly."""
    modules: list[dict[str, str]] = _read(path / "modules.json") or []
    architecture = (config.architectures or [GENERATING[0]])[0]
    if runner == "generate" or (runner == "auto" and not modules and architecture.endswith(GENERATING)):
        return None
    encoder = _is_encoder(config)
    classifies = architecture.endswith("ForSequenceClassification")
    pooling = POOLINGS[getattr(config, "classifier_pooling", "cls")] if encoder else "LAST"
    for module in modules:
        match module["type"].rpartition(".")[2]:
            case "Pooling":
                pooling = _pooling(_read(path / module["path"] / "config.json") or {})
            case "Transformer" | "Normalize":
                pass
            case other:
                raise ValueError(f"{path / 'modules.json'} has a module {other}, which isn't supported yet")
    longest = config.get_text_config().hidden_size + 1 if getattr(config, "is_matryoshka", False) else 1
    return PoolingConfig(
        pooling=pooling,
        normalize=not modules or any(module["type"].endswith("Normalize") for module in modules),
        encoder=encoder,
        num_labels=config.num_labels if classifies else None,
        activation=_activation(config),
        dimensions=getattr(config, "matryoshka_dimensions", None) or list(range(1, longest)),
        num_token_types=getattr(config, "type_vocab_size", 0),
    )


def longest_prompt(path: Path) -> int | None:
    """In tokens, as sentence-transformers' or the tokenizer's settings say."""
    told = (
        (_read(path / "sentence_bert_config.json") or {}).get("max_seq_length"),
        (_read(path / "tokenizer_config.json") or {}).get("model_max_length"),
    )
    return min((int(length) for length in told if length), default=None)


def _is_encoder(config: "PreTrainedConfig") -> bool:
    """Whether tokens see those after them."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

    if config.is_encoder_decoder:
        raise ValueError(f"{config.model_type} is an encoder with a decoder, which isn't supported")
    return (
        config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES
        or getattr(config, "use_bidirectional_attention", None) is True
    )


def _pooling(settings: dict[str, Any]) -> Pooling:
    prefix = "pooling_mode_"
    flags = [key.removeprefix(prefix) for key, value in settings.items() if key.startswith(prefix) and value]
    modes = flags or [settings.get("pooling_mode", "mean")]
    if len(modes) != 1 or modes[0] not in POOLINGS:
        raise ValueError(
            f"pooling by {' and '.join(map(str, modes))} isn't supported; by cls, mean or lasttoken is"
        )
    return POOLINGS[modes[0]]


def _activation(config: "PreTrainedConfig") -> Activation:
    """Cross-encoders name a class of torch.nn; other classifiers may tell their problem."""
    by_training = getattr(config, "sentence_transformers", None) or {}
    named = by_training.get("activation_fn") or getattr(config, "sbert_ce_default_activation_function", None)
    told = named.rpartition(".")[2] if named else config.problem_type
    if told is None:
        return "sigmoid" if config.num_labels == 1 else "softmax"
    if told not in ACTIVATIONS:
        raise ValueError(f"scores go through {told}, which isn't supported; {', '.join(ACTIVATIONS)} are")
    return ACTIVATIONS[told]


def _read(file: Path) -> Any:
    """What a JSON file holds; None where there is none."""
    if not file.is_file():
        return None
    try:
        return json.loads(file.read_text())
    except ValueError as error:
        raise ValueError(f"{file} can't be read: {error}") from error
