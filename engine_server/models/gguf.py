"""Conversion of GGUF files, once, to folders that load fast: transformers would unpack a GGUF file at every load."""

import hashlib
import os
from pathlib import Path
from typing import Any

from engine_server.models import store
from engine_server.models.errors import ModelSourceError

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


def place(gguf: Path) -> Path:
    """Return the cache folder of the converted file; another version of the file has another folder."""
    status = gguf.stat()
    key = hashlib.sha256(f"{gguf} {status.st_size} {status.st_mtime_ns}".encode()).hexdigest()
    return store.cache() / "models" / "gguf" / f"{gguf.stem}-{key[:12]}"


def convert(gguf: Path, place: Path) -> None:
    """Write bfloat16 weights, configuration, tokenizer and chat template into the folder `place`."""
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
    _restore_pre_tokenizer(gguf, tokenizer)
    generation: Any = transformers.GenerationConfig
    model.generation_config = generation(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)


def _dequantize_options(transformers: Any) -> dict[str, Any]:
    """Return the options to dequantize: newer releases keep weights packed by default and can't save them."""
    config = getattr(transformers, "GgufConfig", None)
    return {"quantization_config": config(dequantize=True)} if config else {}


def _restore_pre_tokenizer(gguf: Path, tokenizer: Any) -> None:
    from gguf import GGUFReader
    from tokenizers import pre_tokenizers

    field = GGUFReader(gguf).get_field("tokenizer.ggml.pre")
    if field is not None and field.contents() in _SPLIT_DIGITS:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
