"""Conversion of GGUF files, once, to folders that load fast: transformers would unpack a GGUF file at every load.

Weights of the types in gguf_blocks.py stay quantised: `NAME_int4` or `NAME_int8`, their codes; `NAME_scales`; and
`NAME_minima` unless they are symmetric. All others are dequantised to bfloat16.
"""

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine_server.models import store
from engine_server.models.errors import ModelSourceError
from engine_server.models.gguf_ends import read_ends

if TYPE_CHECKING:
    from gguf import GGUFReader

# Of the files that a conversion writes; another version has another folder.
FILES_VERSION = 2
# The `quantization_config` of converted models.
METHOD, VERSION = "integers", 1
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
    version = f"{status.st_size} {status.st_mtime_ns} {FILES_VERSION}"
    key = hashlib.sha256(f"{gguf} {version}{form}".encode()).hexdigest()
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

    from engine_server.models.gguf_weights import read_weights

    try:
        # A folder's own code is never run: without the option transformers asks for it on a terminal.
        own: dict[str, Any] = {"gguf_file": gguf.name, "trust_remote_code": False}
        tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, **own)
        config = transformers.AutoConfig.from_pretrained(gguf.parent, **own)
        _restore_expert_size(reader, config)
        with torch.device("meta"):
            causal: Any = transformers.AutoModelForCausalLM
            model = causal.from_config(config, dtype=torch.bfloat16)
        weights, quantised = read_weights(reader, gguf, model, dense)
    except ModelSourceError:
        raise
    except Exception as error:  # a damaged file can raise anything
        raise ModelSourceError(f"{gguf.name}: transformers cannot read this GGUF file: {error}") from error
    if quantised:
        model.config.quantization_config = {"quant_method": METHOD, "version": VERSION}
    _restore_pre_tokenizer(reader, tokenizer)
    ends = read_ends(reader, config.get_text_config())
    eos = ends[0] if len(ends) == 1 else ends or None
    model.config.get_text_config().eos_token_id = eos
    generation: Any = transformers.GenerationConfig
    model.generation_config = generation(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=eos,
        pad_token_id=tokenizer.pad_token_id,
    )
    model.save_pretrained(place, state_dict=weights, save_original_format=False)
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


def _restore_expert_size(reader: "GGUFReader", config: Any) -> None:
    """Set the inner size of experts, which transformers' reader ignores."""
    architecture = reader.get_field("general.architecture")
    field = architecture and reader.get_field(f"{architecture.contents()}.expert_feed_forward_length")
    if field is not None and hasattr(config, "moe_intermediate_size"):
        config.moe_intermediate_size = field.contents()


def _restore_pre_tokenizer(reader: "GGUFReader", tokenizer: Any) -> None:
    from tokenizers import pre_tokenizers

    field = reader.get_field("tokenizer.ggml.pre")
    if field is not None and field.contents() in _SPLIT_DIGITS:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
