"""Conversion of GGUF files, once, to folders that load fast: transformers would unpack a GGUF file at every load.

Weights of the types in blocks.py stay quantised: `NAME_int4` or `NAME_int8`, their codes; `NAME_scales`; and
`NAME_minima` unless they are symmetric. All others are dequantised to bfloat16.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine_server.model_sources import record, store
from engine_server.model_sources.errors import ModelSourceError, UnusableModelError
from engine_server.model_sources.folder import CONFIG, TOKENIZER_CONFIG
from engine_server.model_sources.gguf.shards import shards, some
from engine_server.model_sources.record import Checksums

if TYPE_CHECKING:
    from transformers import PretrainedConfig, TokenizersBackend

    from engine_server.model_sources.gguf.file import GgufFile

# Of the files beside the weights: those that another version wrote are written anew.
FILES_VERSION = 3
# Of the weights: another version has another folder.
WEIGHTS_VERSION = 1
# The `quantization_config` of converted models.
METHOD, VERSION = "integers", 1
log = logging.getLogger(__name__)


def find(path: Path, wanted: bool) -> Path | None:
    """Return the GGUF file that `path` is or contains, the first of a split one; None without one.

    wanted: prefer it to safetensors in the same folder, and raise ModelSourceError without one.
    """
    if path.is_file():
        return _first(path) if path.suffix == ".gguf" else None
    files = sorted(path.glob("*.gguf"))
    if not wanted and (not files or any(path.glob("*.safetensors"))):
        return None
    if len({shards(file.name)[0] for file in files}) != 1:
        names = ", ".join(file.name for file in files) or "none"
        raise UnusableModelError(f"{path}: one .gguf file is expected; there is {names}")
    return _first(files[0])


def place(gguf: Path, dense: bool) -> Path:
    """Return the cache folder of the converted file; another version of the file has another folder."""
    states = [file.stat() for file in _files(gguf)]
    version = " ".join(f"{state.st_size} {state.st_mtime_ns}" for state in states)
    form = "dense" if dense else f"{METHOD} {VERSION}"
    key = hashlib.sha256(f"{gguf} {version} {WEIGHTS_VERSION} {form}".encode()).hexdigest()
    return store.cache() / "models" / "gguf" / f"{gguf.stem}-{key[:12]}"


def convert(gguf: Path, place: Path, dense: bool, own_tokenizer: bool = False) -> Checksums:
    """Write weights, configuration, tokenizer and chat templates into the folder `place`.

    dense: dequantise all weights to bfloat16. own_tokenizer: the model is used with a tokenizer of its user, and the
    file's is left out if it can't be read. Raises ModelSourceError.
    """
    with _readable(gguf):
        file, model, tokenizer = _read(gguf, own_tokenizer)
        from engine_server.model_sources.gguf.weights import read_weights

        weights, quantised = read_weights(file, model, dense)
    _set_quantisation(model.config, quantised)
    model.save_pretrained(place, state_dict=weights, save_original_format=False)
    _save_tokenizer(tokenizer, place)
    return Checksums(conversion=FILES_VERSION)


def renew(gguf: Path, converted: Path, place: Path, own_tokenizer: bool = False) -> Checksums:
    """Write the files beside the weights of the folder `converted` anew, into `place`. Raises ModelSourceError."""
    with _readable(gguf):
        _, model, tokenizer = _read(gguf, own_tokenizer)
        settings = json.loads((converted / CONFIG).read_bytes())
    _set_quantisation(model.config, "quantization_config" in settings)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(place)
    model.generation_config.save_pretrained(place)
    _save_tokenizer(tokenizer, place)
    return Checksums(conversion=FILES_VERSION)


def is_current(place: Path, own_tokenizer: bool = False) -> bool:
    """Return False for a converted folder whose files beside the weights are to be written anew."""
    complete = own_tokenizer or (place / TOKENIZER_CONFIG).is_file()
    return record.recorded(place).conversion == FILES_VERSION and complete


def warn_if_outdated(folder: Path) -> None:
    """Log that a fetched folder, which may not be written here, was converted by another version.

    Only conversions whose weights stayed quantised can be told from models that were never GGUF files.
    """
    settings = json.loads((folder / CONFIG).read_bytes()).get("quantization_config")
    is_converted = isinstance(settings, dict) and settings.get("quant_method") == METHOD
    known = record.recorded(folder)
    if is_converted and known.sha256 and known.conversion != FILES_VERSION:
        log.warning(
            "%s was converted from a GGUF file by another version, whose rope, tokenizer and ends of answers may "
            "differ: fetch the model again",
            folder,
        )


def _first(path: Path) -> Path:
    """Return the file with the keys, of a split file the first one."""
    first = path.with_name(shards(path.name)[0])
    _files(first)
    return first.parent.resolve() / first.name


def _files(first: Path) -> list[Path]:
    """Return all files of a model. Raises ModelSourceError if one is missing."""
    files = [first.with_name(name) for name in shards(first.name)]
    if missing := [file.name for file in files if not file.is_file()]:
        raise ModelSourceError(
            f"{first.name} is one of {len(files)} files; missing beside it: {some(missing)}"
        )
    return files


@contextmanager
def _readable(gguf: Path) -> Iterator[None]:
    """Turn the errors of a damaged file, which can raise anything, into ModelSourceError."""
    try:
        yield
    except ModelSourceError:
        raise
    except Exception as error:
        raise ModelSourceError(f"{gguf.name}: this GGUF file cannot be read: {error}") from error


def _read(gguf: Path, own_tokenizer: bool) -> tuple[GgufFile, Any, TokenizersBackend | None]:
    """Return the file, its model on the meta device, and its tokenizer, with all settings but the quantisation."""
    # Progress bars are for terminals; transformers reads this when it is imported.
    os.environ.setdefault("TQDM_DISABLE", "1")
    import torch
    import transformers

    from engine_server.model_sources.gguf.ends import read_ends
    from engine_server.model_sources.gguf.file import GgufFile
    from engine_server.model_sources.gguf.tokenizer import read_tokenizer

    file = GgufFile(_files(gguf))
    tokenizer = None
    try:
        tokenizer = read_tokenizer(file)
    except ModelSourceError as error:
        if not own_tokenizer:
            raise
        log.info("%s; the tokenizer is left out", error)
    config = _read_config(file, gguf)
    with torch.device("meta"):
        causal: Any = transformers.AutoModelForCausalLM
        model = causal.from_config(config, dtype=torch.bfloat16)
    ends = read_ends(file, config.get_text_config())
    eos = ends[0] if len(ends) == 1 else ends or None
    model.config.get_text_config().eos_token_id = eos
    generation: Any = transformers.GenerationConfig
    model.generation_config = generation(
        bos_token_id=tokenizer and tokenizer.bos_token_id,
        eos_token_id=eos,
        pad_token_id=tokenizer and tokenizer.pad_token_id,
    )
    return file, model, tokenizer


def _read_config(file: GgufFile, gguf: Path) -> Any:
    """Return transformers' configuration, with what its reader leaves out. Raises ModelSourceError."""
    import transformers

    from engine_server.model_sources.gguf.rope import set_rope

    settings, _ = transformers.PreTrainedConfig.get_config_dict(gguf.parent, gguf_file=gguf.name)
    if file.architecture == "llama":
        settings["model_type"] = "llama"  # transformers takes a model that is named "mistral" for one
    if settings.pop("rope_scaling", None) is not None:  # gpt-oss, whose keys transformers misreads
        settings["rope_parameters"] = {"rope_type": "default", "rope_theta": settings["rope_theta"]}
    if (
        len(file.paths) > 1 and file.tensor("output.weight") is not None
    ):  # transformers reads the first file alone
        settings["tie_word_embeddings"] = False
    config: Any = transformers.AutoConfig.for_model(**settings)
    experts = file.of_model("expert_feed_forward_length", int)
    if experts is not None and hasattr(config, "moe_intermediate_size"):
        config.moe_intermediate_size = experts
    set_rope(file, config)
    return config


def _set_quantisation(config: PretrainedConfig, quantised: bool) -> None:
    if quantised:
        config.quantization_config = {"quant_method": METHOD, "version": VERSION}


def _save_tokenizer(tokenizer: TokenizersBackend | None, place: Path) -> None:
    if tokenizer is not None:
        tokenizer.save_pretrained(place)
