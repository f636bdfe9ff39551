"""The tokens that end an answer by a GGUF file."""

from pathlib import Path

import pytest
from model_sources.conftest import save_gguf

from engine_server import EngineArgs
from engine_server.engine.input.tokenizer import read_tokenizer
from engine_server.model_sources.gguf.ends import read_ends
from engine_server.model_sources.gguf.file import GgufFile


class Config:
    """Of transformers, with the ends of an architecture."""

    def __init__(self, eos_token_id: object) -> None:
        self.eos_token_id = eos_token_id


def written(folder: Path, marks: list[str], **named: str) -> Path:
    return save_gguf(folder / "model.gguf", {}, marks=marks, **named)


def texts_of_ends(file: Path) -> list[str]:
    """Return the ends of the converted model."""
    config = EngineArgs(model=str(file)).create_engine_config().model_config
    backend = read_tokenizer(config.path, False).backend_tokenizer
    return [str(backend.id_to_token(token_id)) for token_id in config.eos_token_ids]


def test_ends_are_the_eos_those_with_a_name_and_those_known_by_their_text(
    cache: Path, tmp_path: Path
) -> None:
    marks = ["<|stop|>", "<|pause|>", "<|im_start|>", "<|im_end|>", "<end_of_turn>"]
    file = written(tmp_path, marks, eot="<|stop|>", eom="<|pause|>")
    assert texts_of_ends(file) == ["</s>", "<|stop|>", "<|pause|>", "<|im_end|>", "<end_of_turn>"]


@pytest.mark.parametrize(
    ("marks", "ends"),
    [
        (["<|end|>"], ["</s>", "<|end|>"]),
        (["<|end|>", "<|return|>"], ["</s>", "<|end|>", "<|return|>"]),
        (["<|end|>", "<|return|>", "<|call|>"], ["</s>", "<|return|>", "<|call|>"]),
        (["<|end|>", "<|flush|>", "<|calls|>"], ["</s>", "<|flush|>", "<|calls|>"]),
        (["<turn|>", "<|tool_response>", "<|turn>"], ["<turn|>", "<|tool_response>"]),
        (["<|file_sep|>", "<|repo_name|>"], ["</s>", "<|file_sep|>", "<|repo_name|>"]),
    ],
)
def test_ends_of_a_vocabulary_are_those_of_llama_cpp(
    tmp_path: Path, marks: list[str], ends: list[str]
) -> None:
    reader = GgufFile([written(tmp_path, marks, eot=marks[0])])
    tokens = reader.items("tokenizer.ggml.tokens", str)
    assert tokens is not None
    found = read_ends(reader, Config(2))
    assert [tokens[one] for one in found] == ends


def test_ends_that_transformers_has_for_an_architecture_stay(tiny_gguf: Path) -> None:
    assert read_ends(GgufFile([tiny_gguf]), Config([1, 106, 50])) == [2, 1, 106, 50]
