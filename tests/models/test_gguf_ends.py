"""The tokens that end an answer by a GGUF file."""

from pathlib import Path

import pytest
from models.conftest import save_gguf

from engine_server import EngineArgs
from engine_server.engine.input.tokenizer import read_tokenizer
from engine_server.models.gguf import open_gguf
from engine_server.models.gguf_ends import read_ends


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
        (["<|end|>"], ["<|end|>"]),
        (["<|end|>", "<|return|>", "<|call|>"], ["<|return|>", "<|call|>"]),
        (["<turn|>", "<|tool_response>", "<|turn>"], ["<turn|>", "<|tool_response>"]),
    ],
)
def test_end_of_a_part_is_no_end_where_another_token_ends_the_answer(
    tmp_path: Path, marks: list[str], ends: list[str]
) -> None:
    reader = open_gguf(written(tmp_path, marks, eot=marks[0]))
    tokens = reader.get_field("tokenizer.ggml.tokens")
    assert tokens is not None
    found = read_ends(reader, Config(2))
    assert [tokens.contents()[one] for one in found] == ["</s>", *ends]


def test_ends_that_transformers_has_for_an_architecture_stay(tiny_gguf: Path) -> None:
    assert read_ends(open_gguf(tiny_gguf), Config([1, 106, 50])) == [2, 1, 106, 50]
