"""From a GGUF file to the folder that transformers loads at once: a GGUF is unpacked slowly at every load."""

import hashlib
import os
from pathlib import Path
from typing import Any

from engine_server.models import store
from engine_server.models.errors import ModelSourceError

# Pre-tokenizers that a file names, which split digits one by one before bytes; transformers' reader drops it.
_DIGITS_ALONE = {"smollm"}


def find(path: Path, wanted: bool) -> Path | None:
    """The GGUF file that `path` is or holds; in a folder with safetensors too only if it is `wanted`."""
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
    """Where `gguf` as it is now is kept once it is converted."""
    status = gguf.stat()
    key = hashlib.sha256(f"{gguf} {status.st_size} {status.st_mtime_ns}".encode()).hexdigest()
    return store.cache() / "models" / "gguf" / f"{gguf.stem}-{key[:12]}"


def convert(gguf: Path, place: Path) -> None:
    """Writes `gguf` into the folder `place`: bfloat16 weights, configuration, tokenizer, chat template."""
    os.environ.setdefault(
        "TQDM_DISABLE", "1"
    )  # its bars are for terminals; read when transformers is imported
    import torch
    import transformers

    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16, **_unpacked(transformers)
        )
    except Exception as error:  # whatever a damaged file makes its readers raise
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


def _unpacked(transformers: Any) -> dict[str, Any]:
    """Newer releases keep weights packed, and then cannot save them, unless they are told not to."""
    config = getattr(transformers, "GgufConfig", None)
    return {"quantization_config": config(dequantize=True)} if config else {}


def _restore_pre_tokenizer(gguf: Path, tokenizer: Any) -> None:
    from gguf import GGUFReader
    from tokenizers import pre_tokenizers

    field = GGUFReader(gguf).get_field("tokenizer.ggml.pre")
    if field is not None and field.contents() in _DIGITS_ALONE:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
