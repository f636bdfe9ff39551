"""The tokenizers of GGUF files, which have llama.cpp's ids."""

from collections import defaultdict
from pathlib import Path

import pytest
from model_sources.gguf_digests import digest, files, read_table
from model_sources.gguf_texts import texts
from model_sources.gguf_vocabularies import byte_level, sentence_pieces

from engine_server import LLM, SamplingParams
from engine_server.engine.input.tokenizer import read_tokenizer as read_folder
from engine_server.model_sources import ModelSourceError, resolve
from engine_server.model_sources.gguf.file import GgufFile
from engine_server.model_sources.gguf.pre_tokenizers import PRE_TOKENIZERS
from engine_server.model_sources.gguf.tokenizer import read_tokenizer

pytestmark = pytest.mark.transformers
TABLE = read_table()


def same_names() -> list[list[str]]:
    """Return the names that have digests, those of one pre-tokenizer together."""
    groups: dict[object, list[str]] = defaultdict(list)
    for name in TABLE.digests:
        groups[PRE_TOKENIZERS.get(name, name)].append(name)
    return list(groups.values())


@pytest.mark.parametrize("names", same_names(), ids=lambda names: names[0])
def test_ids_of_texts_are_those_of_llama_cpp(tmp_path: Path, names: list[str]) -> None:
    file = files(TABLE)[names[0]](tmp_path / "m.gguf")
    backend = read_tokenizer(GgufFile([file])).backend_tokenizer
    found = digest([encoding.ids for encoding in backend.encode_batch(texts())])
    assert {TABLE.digests[name] for name in names} == {found}


def test_every_name_that_is_taken_has_a_digest() -> None:
    assert PRE_TOKENIZERS.keys() <= TABLE.digests.keys()
    assert len(PRE_TOKENIZERS) > 60


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_engine_loads_the_tokenizer_as_it_was_converted(
    cache: Path, tmp_path: Path, architecture: str
) -> None:
    file = byte_level(tmp_path / "m.gguf", TABLE.merges, "deepseek-v3", architecture=architecture)
    expected = read_tokenizer(GgufFile([file])).backend_tokenizer
    found = read_folder(str(resolve(str(file))), False).backend_tokenizer
    for text in texts()[::20]:
        assert found.encode(text).ids == expected.encode(text).ids


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"pre": "new"}, r"m\.gguf: tokenizer\.ggml\.pre is 'new'; it takes .*command-r, .*--tokenizer"),
        ({"pre": "x\ny" * 100_000}, r"tokenizer\.ggml\.pre is 'x\\ny"),
        ({"pre": 7}, r"tokenizer\.ggml\.pre is 7; it takes a text"),
        ({"model": "rwkv"}, r"tokenizer\.ggml\.model is 'rwkv'; it takes gpt2, llama or gemma4; .*--tokenizer"),
        ({"merges": ["ab"]}, r"tokenizer\.ggml\.merges is 'ab'; it takes two texts with a space between"),
        ({"token_type": [1, 3]}, r"tokenizer\.ggml\.token_type is \[1, 3\]; it takes \d+ numbers"),
        ({"eos_token_id": 100_000}, r"tokenizer\.ggml\.eos_token_id is 100000; it takes a token, of 0 to \d+"),
        ({"add_bos_token": 1}, r"tokenizer\.ggml\.add_bos_token is 1; it takes true or false"),
        ({"tokens": ["a", "b", "a"]}, r"tokenizer\.ggml\.tokens is 'a'; it takes each text once"),
    ],
)  # fmt: skip
def test_tokenizer_that_is_not_known_is_refused_by_key_and_value(
    cache: Path, tmp_path: Path, keys: dict[str, object], reason: str
) -> None:
    file = byte_level(tmp_path / "m.gguf", TABLE.merges, None, **keys)
    with pytest.raises(ModelSourceError, match=reason) as refused:
        resolve(str(file))
    assert len(str(refused.value)) < 3000 and "\n" not in str(refused.value)
    assert not list((cache / "model_sources/gguf").glob("m-*"))


def test_tokenizer_of_the_user_takes_the_place_of_an_unknown_one(cache: Path, tmp_path: Path) -> None:
    unknown = byte_level(tmp_path / "m.gguf", TABLE.merges, "some-new-one")
    known = resolve(str(byte_level(tmp_path / "known.gguf", TABLE.merges, "qwen2")))
    llm = LLM(model=str(unknown), tokenizer=str(known), dtype="float32")
    assert llm.generate(["x"], SamplingParams(max_tokens=2, ignore_eos=True))[0].outputs[0].token_ids
    with pytest.raises(ModelSourceError, match="some-new-one"):
        resolve(str(unknown))


def test_phi_3_by_the_models_title_takes_white_space_after_marks(tmp_path: Path) -> None:
    plain, named = (
        read_tokenizer(
            GgufFile([sentence_pieces(tmp_path / "m.gguf", TABLE.pieces, **keys)])
        ).backend_tokenizer
        for keys in ({}, {"name": "Phi-3 mini"})
    )
    assert len(plain.encode("<|mark|> \n a").ids) > len(named.encode("<|mark|> \n a").ids)
    assert plain.encode("<|endoftext|> a").ids == named.encode("<|endoftext|> a").ids


@pytest.mark.parametrize(
    ("templates", "expected"),
    [
        ({"": "plain"}, "plain"),
        ({"": "plain", ".tool_use": "tools"}, {"default": "plain", "tool_use": "tools"}),
        ({".tool_use": "tools"}, {"tool_use": "tools"}),
        ({}, None),
    ],
)
def test_chat_templates_are_kept_by_their_names(
    cache: Path, tmp_path: Path, templates: dict[str, str], expected: object
) -> None:
    file = byte_level(tmp_path / "m.gguf", TABLE.merges, "qwen2", templates=templates)
    assert read_folder(str(resolve(str(file))), False).chat_template == expected


@pytest.mark.parametrize("name", [".../up", ". x", f".{'x' * 100_000}", ".a.b", "."])
def test_template_whose_name_is_no_name_of_a_file_is_refused(cache: Path, tmp_path: Path, name: str) -> None:
    file = byte_level(tmp_path / "m.gguf", TABLE.merges, "qwen2", templates={name: "text"})
    with pytest.raises(
        ModelSourceError, match=r"after tokenizer\.chat_template\. is .*; it takes letters"
    ) as refused:
        resolve(str(file))
    assert len(str(refused.value)) < 1000
