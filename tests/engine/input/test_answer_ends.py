"""The tokens that end an answer, with the files of a small model."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine_server import EngineArgs, LLMEngine, RequestOutput, SamplingParams, StructuredOutputsParams
from engine_server.config import ModelConfig
from engine_server.engine.input.answer_ends import declared_ends, with_answer_ends
from engine_server.engine.input.tokenizer import load_tokenizer

# The tokens of SmolLM2.
ENDOFTEXT, IM_START, IM_END = 0, 1, 2
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
# Thoughts end with the token with which answers of other templates end.
CHANNELS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.thinking %}thoughts {{ m.thinking }}<|im_end|><|im_start|>answer {% endif %}"
    "{{ m.content }}<|im_end|>{% endfor %}"
)
NAMES = ("generation_config.json", "config.json", "tokenizer_config.json")


def changed(
    model: Path,
    folder: Path,
    generation: object = None,
    config: object = None,
    tokenizer: str | None = None,
    template: str | None = None,
) -> Path:
    """Make a model's folder whose files name these ends, each null for none."""
    folder.mkdir()
    for file in model.glob("[!.]*"):
        (folder / file.name).symlink_to(file)
    fields = ("eos_token_id", "eos_token_id", "eos_token")
    for name, field, end in zip(NAMES, fields, (generation, config, tokenizer), strict=True):
        settings = json.loads((model / name).read_text()) | {field: end}
        (folder / name).unlink()
        (folder / name).write_text(json.dumps(settings))
    if template is not None:
        (folder / "chat_template.jinja").unlink()
        (folder / "chat_template.jinja").write_text(template)
    return folder


def ends_of(folder: Path, **settings: Any) -> ModelConfig:
    config = EngineArgs(model=str(folder), **settings).create_engine_config().model_config
    return with_answer_ends(config, load_tokenizer(config))


@pytest.mark.parametrize(
    ("ends", "sources"),
    [
        (
            {"generation": [5, 6], "config": 7, "tokenizer": "<|im_end|>"},
            {"generation_config.json": [5, 6], "config.json": [7], "tokenizer": [IM_END]},
        ),
        ({"generation": IM_END}, {"generation_config.json": [IM_END]}),
        ({"config": IM_END}, {"config.json": [IM_END]}),
        ({"tokenizer": "<|im_end|>"}, {"tokenizer": [IM_END]}),
        ({}, {"chat template": [IM_END]}),
        (
            {"generation": ENDOFTEXT, "config": 0, "tokenizer": "<|endoftext|>"},
            {
                "generation_config.json": [0],
                "config.json": [0],
                "tokenizer": [0],
                "chat template": [IM_END],
            },
        ),
        ({"generation": 0, "template": PLAIN}, {"generation_config.json": [0]}),
        ({"generation": 0, "template": CHANNELS}, {"generation_config.json": [0]}),
        ({"generation": -1, "config": 10**6, "template": PLAIN}, {}),
    ],
)
def test_ends_are_those_of_all_files_and_that_of_the_template_where_none_stands(
    smollm2: Path, tmp_path: Path, ends: dict[str, Any], sources: dict[str, list[int]]
) -> None:
    config = ends_of(changed(smollm2, tmp_path / "model", **ends))
    assert config.eos_sources == sources
    assert config.eos_token_ids == list(dict.fromkeys(one for ids in sources.values() for one in ids))


def test_default_of_a_configurations_class_counts_only_with_the_tokenizers_own_end(
    smollm2: Path, tmp_path: Path
) -> None:
    """A llama's is 2."""
    folder = changed(smollm2, tmp_path / "model", tokenizer="<|im_end|>", template=PLAIN)
    (folder / "generation_config.json").unlink()
    settings = json.loads((folder / "config.json").read_text())
    del settings["eos_token_id"]
    (folder / "config.json").write_text(json.dumps(settings))
    assert ends_of(folder).eos_sources == {"transformers": [2], "tokenizer": [2]}
    written = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(written | {"eos_token": "<|endoftext|>"}))
    assert ends_of(folder).eos_sources == {"tokenizer": [0]}


@pytest.mark.parametrize(
    ("settings", "ends"),
    [
        ({"eos_token_id": 5, "text_config": {"eos_token_id": 2}}, {"config.json": [5, 2]}),
        ({"eos_token_id": 2, "text_config": {"eos_token_id": 2}}, {"config.json": [2]}),
        ({"eos_token_id": 5, "text_config": {}}, {"config.json": [5]}),
        ({"text_config": {}}, {"transformers": [2]}),
    ],
)
def test_ends_of_the_config_are_those_of_the_whole_and_of_its_text_part(
    settings: dict[str, Any], ends: dict[str, list[int]]
) -> None:
    assert declared_ends({}, settings, SimpleNamespace(eos_token_id=2), vocab_size=8) == ends


@pytest.mark.parametrize(("given", "ends"), [(5, [5]), ([0, 9], [0, 9])])
def test_override_replaces_all_ends(smollm2: Path, given: object, ends: list[int]) -> None:
    config = ends_of(smollm2, override_generation_config={"eos_token_id": given, "temperature": 0.5})
    assert config.eos_token_ids == ends
    assert config.eos_sources == {"override_generation_config": ends}
    assert config.get_diff_sampling_param() == {"temperature": 0.5}


@pytest.mark.parametrize("given", ["</s>", [1, "2"], 1.5, True, -1, [10**6]])
def test_override_that_is_no_token_is_refused(smollm2: Path, given: object) -> None:
    args = EngineArgs(model=str(smollm2), override_generation_config={"eos_token_id": given})
    with pytest.raises(ValueError, match="override_generation_config has eos_token_id"):
        args.create_engine_config()


def test_ends_are_logged_with_their_sources(
    smollm2: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = changed(smollm2, tmp_path / "model", generation=0, config=0)
    with caplog.at_level(logging.INFO):
        ends_of(folder)
    (line,) = [line for line in caplog.messages if line.startswith("answers end at: ")]
    assert line.removeprefix("answers end at: ") == (
        "<|endoftext|> 0 (generation_config.json, config.json), <|im_end|> 2 (chat template)"
    )


@pytest.fixture(scope="module")
def misled(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> LLMEngine:
    """An engine for files of which each names an end, which is not that of the chat template."""
    folder = tmp_path_factory.mktemp("misled") / "model"
    changed(smollm2, folder, generation=0, config=0, tokenizer="<|endoftext|>")
    return LLMEngine.from_engine_args(
        EngineArgs(
            model=str(folder),
            dtype="float32",
            max_model_len=256,
            kv_cache_memory_bytes=1 << 28,
            disable_log_stats=True,
        )
    )


PROMPT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("plain", {}),
        ("ignore_eos", {"ignore_eos": True}),
        ("min_tokens", {"min_tokens": 60}),
        ("grammar", {"structured_outputs": StructuredOutputsParams(choice=["Hello"]), "ignore_eos": True}),
    ],
)
def test_answer_ends_where_the_template_ends_it(
    misled: LLMEngine,
    finish: Callable[[LLMEngine], dict[str, RequestOutput]],
    name: str,
    params: dict[str, Any],
) -> None:
    sampling = SamplingParams.from_optional(temperature=0, max_tokens=80, skip_special_tokens=False, **params)
    misled.add_request(name, PROMPT, sampling)
    (answer,) = finish(misled)[name].outputs
    tokens = list(answer.token_ids)
    match name:
        case "plain":
            assert (answer.finish_reason, tokens[-1]) == ("stop", IM_END)
            assert "<|im" not in answer.text
        case "ignore_eos":
            assert answer.finish_reason == "length" and IM_END in tokens
        case "min_tokens":
            assert IM_END not in tokens[:59] and ENDOFTEXT not in tokens[:59]
        case "grammar":
            assert (answer.finish_reason, answer.text, tokens[-1]) == ("stop", "Hello", IM_END)
