"""Conversion of GGUF files, once, to folders that load fast: transformers would unpack a GGUF file at every load.

Weights of the types in gguf_blocks.py stay quantised: `NAME_int4` or `NAME_int8`, their codes; `NAME_scales`; and
`NAME_minima` unless they are symmetric. transformers reads everything else, and dequantises the weights too, with which
ours are compared: one that differs, since the architecture stores it in another order, is stored dense.
"""

import hashlib
import logging
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engine_server.models import store
from engine_server.models.errors import ModelSourceError
from engine_server.models.gguf_blocks import KINDS, Integers, integers

if TYPE_CHECKING:
    from gguf import GGUFReader

# The `quantization_config` of converted models.
METHOD, VERSION = "integers", 1
# The largest difference from a weight in bfloat16: relative to it, and to the largest of its matrix.
RELATIVE, ABSOLUTE = 2.0**-7, 2.0**-8
log = logging.getLogger(__name__)
# Names of pre-tokenizers that split numbers into single digits, which transformers' reader ignores.
_SPLIT_DIGITS = {"smollm"}


def find(path: Path, wanted: bool) -> Path | None:
    """Return the GGUF file that `path` is or contains, None without one.

    wanted: prefer it to safetensors in the same folder, and raise ModelSourceError without one.
    """
    if path.is_file():
        return path.resolve() if path.suffix == ".gguf" else None
    files = sorted(path.glob("*.gguf"))
    if not wanted and (not files or any(path.glob("*.safetensors"))):
        return None
    if len(files) != 1:
        names = ", ".join(file.name for file in files) or "none"
        raise ModelSourceError(f"{path}: one .gguf file is expected; there is {names}")
    return files[0].resolve()


def place(gguf: Path, dense: bool) -> Path:
    """Return the cache folder of the converted file; another version of the file has another folder."""
    status = gguf.stat()
    form = "" if dense else f" {METHOD} {VERSION}"
    key = hashlib.sha256(f"{gguf} {status.st_size} {status.st_mtime_ns}{form}".encode()).hexdigest()
    return store.cache() / "models" / "gguf" / f"{gguf.stem}-{key[:12]}"


def convert(gguf: Path, place: Path, dense: bool) -> None:
    """Write weights, configuration, tokenizer and chat template into the folder `place`.

    dense: dequantise all weights to bfloat16. Raises ModelSourceError for a file that can't be read.
    """
    reader = open_gguf(gguf)
    # Progress bars are for terminals; transformers reads this when it is imported.
    os.environ.setdefault("TQDM_DISABLE", "1")
    import torch
    import transformers

    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16, **_dequantize_options(transformers)
        )
    except Exception as error:  # a damaged file can raise anything
        raise ModelSourceError(f"{gguf.name}: transformers cannot read this GGUF file: {error}") from error
    _restore_pre_tokenizer(reader, tokenizer)
    generation: Any = transformers.GenerationConfig
    model.generation_config = generation(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    weights = None if dense else _quantised_weights(reader, model, gguf.name)
    model.save_pretrained(place, state_dict=weights)
    tokenizer.save_pretrained(place)


def open_gguf(gguf: Path) -> "GGUFReader":
    """Return a reader of a file whose header and tensors are whole. Raises ModelSourceError."""
    from gguf import GGUFReader

    try:
        reader = GGUFReader(gguf)
        for tensor in reader.tensors:
            if int(tensor.data_offset) + int(tensor.n_bytes) > gguf.stat().st_size:
                raise ValueError(f"the data of {tensor.name} end beyond the file")
    except Exception as error:  # a damaged file can raise anything
        raise ModelSourceError(f"{gguf.name} is truncated or damaged: {error}") from error
    return reader


def _quantised_weights(reader: "GGUFReader", model: Any, name: str) -> dict[str, Any] | None:
    """Return the model's weights, quantised as in the file; None if none is.

    Sets the model's `quantization_config`. Raises ModelSourceError for scales that are NaN or infinite.
    """
    import torch

    stored = {tensor.name: tensor for tensor in reader.tensors}
    names = _names(reader, model)
    tied = model.all_tied_weights_keys
    weights = {key: weight for key, weight in model.state_dict().items() if key not in tied}
    kept: Counter[str] = Counter()
    dense: Counter[str] = Counter()
    for key, weight in list(weights.items()):
        tensor = stored.get(names.get(key, ""))
        if tensor is None or tensor.tensor_type.name in ("F32", "F16", "BF16"):
            continue
        found = _integers(tensor, weight, model.config) if tensor.tensor_type.name in KINDS else None
        if found is None:
            dense[tensor.tensor_type.name] += 1
            continue
        kept[tensor.tensor_type.name] += 1
        del weights[key]
        parts = {f"int{found.bits}": found.packed, "scales": found.scales, "minima": found.minima}
        for part, values in parts.items():
            if values is not None:
                weights[f"{key}_{part}"] = torch.from_numpy(np.ascontiguousarray(values))
    if dense:
        log.info("%s: dequantised to bfloat16: %s", name, _listed(dense))
    if not kept:
        return None
    log.info("%s: kept quantised: %s", name, _listed(kept))
    model.config.quantization_config = {"quant_method": METHOD, "version": VERSION}
    return weights


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} tensors of {kind}" for kind, count in sorted(counts.items()))


def _names(reader: "GGUFReader", model: Any) -> dict[str, str]:
    """Return the file's names of tensors by the model's names of parameters."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    field = reader.get_field("general.architecture")
    architecture = None if field is None else field.contents()
    kinds = [kind for kind, text in MODEL_ARCH_NAMES.items() if text == architecture]
    if not kinds:
        return {}
    names = get_tensor_name_map(kinds[0], model.config.get_text_config().num_hidden_layers)
    found = {key: names.get_name(key, try_suffixes=(".weight",)) for key in model.state_dict()}
    return {key: text for key, text in found.items() if text is not None}


def _integers(tensor: Any, weight: Any, config: Any) -> Integers | None:
    """Return the codes of a tensor, its outputs in the order of `weight`; None if they are not the same weights.

    weight: as transformers dequantised it. The rows of queries and keys of some architectures are permuted in the file:
    the two halves of each head that a rope rotates together alternate there.
    """
    if weight.ndim != 2 or tensor.data.ndim != 2 or len(tensor.data) != len(weight):
        return None
    found = integers(tensor.tensor_type.name, np.asarray(tensor.data))
    for factors in (found.scales, found.minima):
        if factors is not None and not np.isfinite(factors.astype(np.float32)).all():
            raise ModelSourceError(f"the scales of {tensor.name} are NaN or infinite")
    expected = weight.float().numpy()
    dense = found.dense()
    if dense.shape != expected.shape:
        return None
    if _same(dense, expected):
        return found
    text = config.get_text_config()
    for heads in (getattr(text, "num_attention_heads", None), getattr(text, "num_key_value_heads", None)):
        if heads and len(dense) % (2 * heads) == 0:
            order = np.arange(len(dense)).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
            if _same(dense[order], expected):
                return found.rows(order)
    return None


def _same(ours: Any, expected: Any) -> bool:
    largest = np.abs(expected).max(initial=0)
    return bool(np.allclose(ours, expected, RELATIVE, ABSOLUTE * largest))


def _dequantize_options(transformers: Any) -> dict[str, Any]:
    """Return the options to dequantize: newer releases keep weights packed by default and can't save them."""
    config = getattr(transformers, "GgufConfig", None)
    return {"quantization_config": config(dequantize=True)} if config else {}


def _restore_pre_tokenizer(reader: "GGUFReader", tokenizer: Any) -> None:
    from tokenizers import pre_tokenizers

    field = reader.get_field("tokenizer.ggml.pre")
    if field is not None and field.contents() in _SPLIT_DIGITS:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
