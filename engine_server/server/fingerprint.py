"""The fingerprint of a served model, by which answers of different replicas can be compared.

It covers the weights, the tokenizer, the chat template, the dtypes of weights and KV cache, the kind of device and, on
a CPU, its instruction set. Replicas of one model have the same one: names, times and places of files don't count.

Of weights it covers each file's size, its head with the tensors' names, types and shapes, and samples at regular
distances. A file of up to `HEAD_BYTES + SAMPLES * SAMPLE_BYTES` is covered completely; in a larger one a change within
less than 1/`SAMPLES` of the file may go unnoticed, which no fine-tuning or quantisation is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from engine_server.config import DenseModule
from engine_server.contract.wire.continuation import RENDERING
from engine_server.contract.wire.digests import DIGEST_LENGTH

if TYPE_CHECKING:
    from engine_server.config import EngineConfig, ModelConfig, PoolingConfig
    from engine_server.server.conversation.layout import Layout
    from engine_server.server.settings import ApiSettings

WEIGHT_FILES = ("*.safetensors", "*.gguf")
CONFIG_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
HEAD_BYTES = 1 << 20
SAMPLES = 1024
SAMPLE_BYTES = 4096
# In hexadecimal digits.
LENGTH = 32


def fingerprint(config: EngineConfig, chat_template: object) -> str:
    """Return the fingerprint of the model that an engine serves. Reads about 5 MiB of each file with weights.

    chat_template: plain data, as tokenizers have it.
    """
    model = config.model_config
    digest = hashlib.sha256()
    settings = {
        "dtype": model.dtype,
        "kv_cache_dtype": config.cache_config.cache_dtype,
        "device": device_kind(config.device_config.device),
        "dequantized": config.load_config.load_format == "dequantized",
        "quantization": config.load_config.quantization,
        "hf_overrides": model.hf_overrides,
        "batch_invariant": model.batch_invariant,
        "chat_template": chat_template,
    }
    add(digest, msgspec.json.encode(settings, order="sorted"))
    for folder in dict.fromkeys((Path(model.path), Path(model.tokenizer))):
        for name in CONFIG_FILES:
            file = folder / name
            add(digest, file.read_bytes() if file.is_file() else b"")
    for file in weight_files(Path(model.path)):
        add_samples(digest, file)
    if model.pooling is not None and (extras := beyond_the_model(model.pooling)):
        add(digest, msgspec.json.encode(extras, order="sorted"))
        for module in model.pooling.modules:
            for file in (
                weight_files(Path(model.path, module.path)) if isinstance(module, DenseModule) else ()
            ):
                add_samples(digest, file)
    return digest.hexdigest()[:LENGTH]


def stream_settings(
    config: ModelConfig,
    settings: ApiSettings,
    sampling_defaults: Mapping[str, Any],
    layout: Layout | None,
) -> str:
    """Return the hash of all settings on which a stream of one model depends besides its request.

    Replicas that differ in them don't continue each other's streams: a prompt, a sampling parameter or an event would
    change within one answer. sampling_defaults: by name. layout: None without a tokenizer.
    """
    covered: dict[str, object] = {
        "rendering": RENDERING,
        "sampling_defaults": sampling_defaults,
        "eos_token_ids": config.eos_token_ids,
        "logprobs_mode": config.logprobs_mode,
        "api": settings.of_streams(),
    }
    if layout is not None:
        covered["layout"] = {
            "response_template": layout.data,
            "marks": layout.with_calls.marks.texts,
            "call": layout.call,
            "call_id": layout.call_id,
            "takes_tools": layout.takes_tools,
            "capabilities": layout.capabilities,
            **({"pictures": layout.pictures} if layout.pictures else {}),
        }
    encoded = msgspec.json.encode(covered, order="sorted")
    return hashlib.sha256(encoded).hexdigest()[:DIGEST_LENGTH]


def beyond_the_model(pooling: PoolingConfig) -> dict[str, object]:
    """Return the settings of what sentence-transformers puts around a model; empty if there is nothing."""
    names = (
        "modules", "prompts", "default_prompt", "lower_case", "score_tokens", "instruction", "template_arguments",
    )  # fmt: skip
    return {name: value for name in names if (value := getattr(pooling, name))}


def device_kind(device: str) -> str:
    """Return the kind of device that computes; on a CPU with its instruction set, on which rounding depends."""
    import torch  # the tokenizer has imported it

    from engine_server.modeling.native.levels import instruction_level
    from engine_server.modeling.native.library import kernels, loads

    if device == "cuda" or (device == "auto" and torch.cuda.is_available()):
        return torch.cuda.get_device_name()
    return f"cpu {kernels().level if loads() else instruction_level()}"


def weight_files(model: Path) -> list[Path]:
    """Return the files with a model's weights, in an order that is the same everywhere."""
    if model.is_file():
        return [model]
    return sorted(
        (file for pattern in WEIGHT_FILES for file in model.glob(pattern)), key=lambda file: file.name
    )


def add(digest: Any, data: bytes) -> None:
    """Add data and its length, so that no two sequences of data have the same digest."""
    digest.update(len(data).to_bytes(8, "little"))
    digest.update(data)


def add_samples(digest: Any, file: Path) -> None:
    """Add a file's size, its head and samples of the rest."""
    size = file.stat().st_size
    digest.update(size.to_bytes(8, "little"))
    with file.open("rb") as stream:
        add(digest, stream.read(HEAD_BYTES))
        rest = max(0, size - HEAD_BYTES)
        if rest <= SAMPLES * SAMPLE_BYTES:
            add(digest, stream.read())
            return
        for sample in range(SAMPLES):
            stream.seek(HEAD_BYTES + (rest - SAMPLE_BYTES) * sample // (SAMPLES - 1))
            add(digest, stream.read(SAMPLE_BYTES))
