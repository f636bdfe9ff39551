"""The tables of settings: they have what the installed libraries have, docs/models.md has them, and they hold."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from settings_tables import FORMATS, documented, table
from transformers import GenerationConfig, LlamaConfig

from engine_server import EngineArgs
from engine_server.models.folder_settings import Format
from engine_server.models.settings_tables import GENERATION_CONFIG

# Settings of other tools, and names that must not harm a log.
UNKNOWN: dict[str, Any] = {f"x_tool_{number}": number for number in range(27)} | {
    "line\nend": 1, "\x1b[31mred": True, "long" * 100_000: "value" * 100_000,
}  # fmt: skip


def generation_defaults() -> dict[str, Any]:
    """Return every setting of transformers with its default in `generate`."""
    return GenerationConfig().__dict__ | GenerationConfig._get_default_generation_params()


# The settings of the libraries' classes, with their defaults.
LIBRARIES: dict[str, Callable[[], dict[str, Any]]] = {GENERATION_CONFIG.name: generation_defaults}


Result = Callable[[Path, str, Any], Any]
Changes = dict[str, tuple[tuple[Any, Any], Result]]


def generation_result(folder: Path, name: str, value: Any) -> Any:
    model = EngineArgs(model=str(write(llama(folder), **{name: value}))).create_engine_config().model_config
    return model.get_diff_sampling_param(), model.eos_token_ids


def llama(folder: Path) -> Path:
    """Write the config of a small model into a new folder; no weights are read."""
    LlamaConfig(
        vocab_size=96, hidden_size=32, intermediate_size=48, num_attention_heads=4, num_hidden_layers=1,
        architectures=["LlamaForCausalLM"],
    ).save_pretrained(folder)  # fmt: skip
    save_file({"none": torch.zeros(1)}, folder / "model.safetensors")
    return folder


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    return llama(tmp_path / "model")


def refused() -> list[Any]:
    return [
        pytest.param(format, name, id=f"{format.name}: {name}")
        for format in FORMATS
        for name in format.refused
    ]


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_a_table_has_the_settings_of_the_librarys_class(format: Format) -> None:
    assert format.settings.keys() == LIBRARIES[format.name]().keys()
    assert not format.settings.keys() & format.others.keys()


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_defaults_of_the_library_and_empty_values_are_never_refused(format: Format) -> None:
    format.check(LIBRARIES[format.name](), "file")
    for empty in (None, False, "", [], {}, {"a": [None]}):
        format.check(dict.fromkeys(format.all, empty), "file")


@pytest.mark.parametrize(("format", "name"), refused())
def test_a_refused_setting_is_named_with_its_value_and_what_it_takes(format: Format, name: str) -> None:
    taken = format.all[name].default
    with pytest.raises(
        ValueError, match=rf"^place has {name} 'odd' \(it takes .*null\), which is not supported"
    ):
        format.check({name: "odd"}, "place")
    format.check({name: taken}, "place")


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_unknown_settings_are_one_short_line_in_the_log(
    format: Format, caplog: pytest.LogCaptureFixture
) -> None:
    if format.closed:
        with pytest.raises(ValueError, match=r"place has 'x_tool_0', .* and 20 more; "):
            format.check(UNKNOWN, "place")
        return
    with caplog.at_level(logging.INFO):
        format.check(UNKNOWN, "place")
        format.check(dict(list(UNKNOWN.items())[-3:]), "place")
    first, second = caplog.messages
    assert first.startswith("place has settings that") and "and 20 more" in first
    for message in (first, second):
        assert message.isprintable() and len(message) < 3000


def test_the_document_has_the_tables() -> None:
    assert documented() == table(), "python tests/settings_tables.py writes them"


# For each setting that is read: two values, and a function of the setting that has different results for them.
READ: dict[str, Changes] = {
    GENERATION_CONFIG.name: {
        name: (values, generation_result)
        for name, values in {
            "temperature": (0.5, 0.6), "top_k": (5, 6), "top_p": (0.5, 0.6), "min_p": (0.1, 0.2),
            "repetition_penalty": (1.1, 1.2), "max_new_tokens": (5, 6), "suppress_tokens": ([5], [6]),
            "eos_token_id": (5, [5, 6]),
        }.items()
    },
}  # fmt: skip


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_every_setting_that_is_read_changes_results(format: Format, tmp_path: Path) -> None:
    changes = READ[format.name]
    assert changes.keys() == {name for name, setting in format.all.items() if setting.verdict == "read"}
    for number, (name, (values, result)) in enumerate(changes.items()):
        first, second = (
            result(tmp_path / f"{number}-{choice}", name, value) for choice, value in enumerate(values)
        )
        assert first != second, name


def write(folder: Path, **settings: Any) -> Path:
    (folder / "generation_config.json").write_text(json.dumps(settings))
    return folder


def defaults(folder: Path, **arguments: Any) -> dict[str, Any]:
    args = EngineArgs(model=str(folder), **arguments)
    return args.create_engine_config().model_config.get_diff_sampling_param()


def test_a_models_folder_with_refused_generation_settings_does_not_start(model_folder: Path) -> None:
    write(model_folder, num_beams=4, temperature=0.5, guidance_scale=1.5, typical_p=1.0)

    words = (
        r"generation_config.json has num_beams 4 \(it takes 1 or null\), guidance_scale 1.5 \(it takes 1 or null\), "
        "which is not supported; generation_config vllm ignores the file, and override_generation_config"
    )
    with pytest.raises(ValueError, match=words):
        defaults(model_folder)
    with pytest.raises(ValueError, match=r"guidance_scale 1\.5"):
        defaults(model_folder, override_generation_config={"num_beams": None})
    with pytest.raises(ValueError, match=r"override_generation_config has num_beams 2 "):
        defaults(model_folder, generation_config="vllm", override_generation_config={"num_beams": 2})

    assert defaults(model_folder, generation_config="vllm") == {}
    override = {"num_beams": 1, "guidance_scale": None}
    assert defaults(model_folder, override_generation_config=override) == {"temperature": 0.5}
    defaults(model_folder, runner="pooling")


def test_unknown_generation_settings_do_not_keep_a_model_from_starting(model_folder: Path) -> None:
    write(model_folder, top_k=7, **UNKNOWN)
    assert defaults(model_folder) == {"top_k": 7}


def test_suppressed_tokens_are_never_generated_and_others_are_no_tokens(model_folder: Path) -> None:
    write(model_folder, suppress_tokens=[5, 7, -1, 10**9])
    assert defaults(model_folder) == {"bad_words_token_ids": [[5], [7]]}
    write(model_folder, suppress_tokens=["five"])
    with pytest.raises(
        ValueError, match=r"suppress_tokens \['five'\]; it takes a token's id, or a list of them"
    ):
        defaults(model_folder)
