"""The tables of settings: they have what the installed libraries have, docs/models.md has them, and they hold."""

import inspect
import json
import logging
import re
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from causal_models import run_engine, start
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from peft import LoraConfig, PeftConfig, PromptEncoderConfig, PromptTuningConfig
from pydantic import BaseModel
from read_settings import (
    EMBEDDING,
    GROUP,
    READ,
    RERANKER,
    SETTINGS,
    llama,
    read_lora,
    read_modules,
    read_virtual_tokens,
    read_weight,
    transforms,
)
from settings_tables import FORMATS, documented, table
from transformers import (
    AwqConfig,
    FbgemmFp8Config,
    FineGrainedFP8Config,
    GenerationConfig,
    GPTQConfig,
    Mxfp4Config,
)

from engine_server import EngineArgs
from engine_server.model_sources import settings_tables as tables
from engine_server.model_sources.folder_settings import Format
from engine_server.model_sources.settings_tables import GENERATION_CONFIG

# Settings of other tools, and names that must not harm a log.
UNKNOWN: dict[str, Any] = {f"x_tool_{number}": number for number in range(27)} | {
    "line\nend": 1, "\x1b[31mred": True, "long" * 100_000: "value" * 100_000,
}  # fmt: skip


def generation_defaults() -> dict[str, Any]:
    """Return every setting of transformers with its default in `generate`."""
    return GenerationConfig().__dict__ | GenerationConfig._get_default_generation_params()


def quantization_defaults(*kinds: type) -> dict[str, Any]:
    """Return every setting of a quantisation of transformers with its default, None where it has none."""
    settings: dict[str, Any] = {"quant_method": None}
    for kind in kinds:
        for name, parameter in inspect.signature(kind).parameters.items():
            if parameter.kind is not parameter.VAR_KEYWORD:
                settings[name] = None if parameter.default is parameter.empty else parameter.default
    return settings


def model_defaults(kind: type[BaseModel]) -> dict[str, Any]:
    """Return every setting of a class of compressed-tensors with its default."""
    return {name: field.get_default(call_default_factory=True) for name, field in kind.model_fields.items()}


def adapter_defaults(kind: type[PeftConfig]) -> dict[str, Any]:
    """Return every setting of a class of PEFT with its default."""
    return {field.name: getattr(kind(), field.name) for field in fields(kind)}


# The settings of the libraries' classes, with their defaults. The other formats have no class.
LIBRARIES: dict[str, Callable[[], dict[str, Any]]] = {
    GENERATION_CONFIG.name: generation_defaults,
    tables.GPTQ.name: partial(quantization_defaults, GPTQConfig),
    tables.AWQ.name: partial(quantization_defaults, GPTQConfig, AwqConfig),
    tables.FP8.name: partial(quantization_defaults, FineGrainedFP8Config),
    tables.FBGEMM.name: partial(quantization_defaults, FbgemmFp8Config),
    tables.MXFP4.name: partial(quantization_defaults, Mxfp4Config),
    tables.COMPRESSED_TENSORS.name: partial(model_defaults, QuantizationConfig),
    tables.SCHEME.name: partial(model_defaults, QuantizationScheme),
    tables.WEIGHTS.name: partial(model_defaults, QuantizationArgs),
    tables.UNUSED_ARGUMENTS.name: partial(model_defaults, QuantizationArgs),
    tables.LORA.name: partial(adapter_defaults, LoraConfig),
    tables.PROMPT_TUNING.name: partial(adapter_defaults, PromptTuningConfig),
    tables.P_TUNING.name: partial(adapter_defaults, PromptEncoderConfig),
}


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    return llama(tmp_path / "model")


def refused() -> list[Any]:
    return [
        pytest.param(format, name, id=f"{format.name}: {name}")
        for format in FORMATS
        for name in format.refused
    ]


# Modules of sentence-transformers, which few installations have, by the names of formats.
MODULES = {
    tables.ENCODER.name: ("base.modules.transformer", "Transformer"),
    tables.POOLING.name: ("sentence_transformer.modules.pooling", "Pooling"),
    tables.NORMALIZE.name: ("base.modules.normalize", "Normalize"),
    tables.DENSE.name: ("base.modules.dense", "Dense"),
    tables.LOGIT_SCORE.name: ("cross_encoder.modules.logit_score", "LogitScore"),
}
WITH_CLASS = [format for format in FORMATS if format.name in LIBRARIES]


@pytest.mark.parametrize("format", WITH_CLASS, ids=lambda format: format.name)
def test_a_table_has_the_settings_of_the_librarys_class(format: Format) -> None:
    assert format.settings.keys() == LIBRARIES[format.name]().keys()
    assert not format.settings.keys() & format.others.keys()


def test_tables_have_the_settings_that_modules_of_sentence_transformers_save() -> None:
    pytest.importorskip("sentence_transformers")
    for format in FORMATS:
        if format.name in MODULES:
            module, name = MODULES[format.name]
            kind = getattr(import_module(f"sentence_transformers.{module}"), name)
            assert format.settings.keys() == set(kind.config_keys), format.name


@pytest.mark.parametrize("format", WITH_CLASS, ids=lambda format: format.name)
def test_defaults_of_the_library_are_never_refused(format: Format) -> None:
    format.check(LIBRARIES[format.name](), "file")


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_empty_values_are_never_refused(format: Format) -> None:
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


@pytest.mark.parametrize("format", FORMATS, ids=lambda format: format.name)
def test_every_setting_that_is_read_changes_results(format: Format, tmp_path: Path) -> None:
    changes = READ[format.name]
    assert changes.keys() == {name for name, setting in format.all.items() if setting.verdict == "read"}
    for name, (values, result) in changes.items():
        first, second = (result(tmp_path / f"{name}-{number}", value) for number, value in enumerate(values))
        assert not isinstance(first, str), f"{name}: {first}"
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


def test_unknown_settings_of_the_config_do_not_keep_a_model_from_starting(model_folder: Path) -> None:
    file = model_folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | UNKNOWN))
    write(model_folder, **UNKNOWN)
    engine = start(str(model_folder), "dummy")
    ((tokens, _),) = run_engine(engine, [[5, 6]])
    assert tokens


def test_suppressed_tokens_are_never_generated_and_others_are_no_tokens(model_folder: Path) -> None:
    write(model_folder, suppress_tokens=[5, 7, -1, 10**9])
    assert defaults(model_folder) == {"bad_words_token_ids": [[5], [7]]}
    write(model_folder, suppress_tokens=["five"])
    with pytest.raises(
        ValueError, match=r"suppress_tokens \['five'\]; it takes a token's id, or a list of them"
    ):
        defaults(model_folder)


@pytest.mark.parametrize("method", SETTINGS)
def test_unknown_settings_of_a_quantisation_do_not_keep_weights_from_being_read(
    method: str, tmp_path: Path
) -> None:
    settings = {"quant_method": method} | SETTINGS[method]
    known = read_weight(tmp_path / "known", method, settings)
    assert read_weight(tmp_path / "more", method, settings | UNKNOWN) == known and not isinstance(known, str)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"quant_method": "gptq", "dynamic": {"-:x": {}, "y": {"bits": 8}}}, "has dynamic {'"),
        (
            {"quant_method": "fp8", "expert_dtype": "fp4"},
            r"has expert_dtype 'fp4' \(it takes 'fp8' or null\)",
        ),
        (
            {"quant_method": "compressed-tensors", "transform_config": transforms("input")},
            "transform_config.config_groups.R4 has location 'input', .* takes weight_input and weight_output",
        ),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"g": GROUP | {"x_tool": 1}}},
            "config_groups.g has 'x_tool'; compressed-tensors' QuantizationScheme takes format",
        ),
    ],
    ids=str,
)
def test_refused_quantisation_settings_name_the_file(
    tmp_path: Path, settings: dict[str, Any], words: str
) -> None:
    method = settings["quant_method"]
    message = read_weight(tmp_path / "model", method, SETTINGS[method] | settings)
    assert re.search(f"^quantization_config in FOLDER/config.json.*{words}", message), message


def test_unknown_settings_of_an_adapter_do_not_keep_it_from_being_read(tmp_path: Path) -> None:
    short = {name: value for name, value in UNKNOWN.items() if len(name) < 1000} | {"long": "value" * 10_000}
    assert read_lora(tmp_path / "lora", short) == read_lora(tmp_path / "known", {})
    for kind in ("PROMPT_TUNING", "P_TUNING"):
        assert read_virtual_tokens(tmp_path / kind, {"peft_type": kind} | short) == [[1.0] * 8] * 3
    found = read_virtual_tokens(tmp_path / "refused", {"peft_type": "P_TUNING", "modules_to_save": ["score"]})
    assert "adapter_config.json has modules_to_save ['score'] (it takes null)" in found


def test_unknown_settings_of_sentence_transformers_do_not_keep_a_model_from_starting(tmp_path: Path) -> None:
    for kind in (EMBEDDING, RERANKER):
        name = next(iter(kind))
        files = {"config_sentence_transformers": UNKNOWN, "sentence_bert_config": UNKNOWN}
        modules = {module: settings | UNKNOWN for module, settings in kind.items()}
        known = read_modules(tmp_path / f"{name}-known", kind)
        assert read_modules(tmp_path / name, modules, **files) == known and not isinstance(known, str)


@pytest.mark.parametrize(
    ("modules", "files", "words"),
    [
        (
            EMBEDDING,
            {"sentence_bert_config": {"query_length": 32}},
            r"FOLDER/sentence_bert_config.json has query_len",
        ),
        (
            EMBEDDING,
            {"sentence_roberta_config": {"config_args": {"x": 1}}},
            r"sentence_roberta_config.json has config_",
        ),
        (
            EMBEDDING | {"Normalize": {"module_input_name": "token_embeddings"}},
            {},
            r"3_Normalize/config.json has module_input_name 'token_embeddings' \(it takes 'sentence_embedding'",
        ),
        (
            EMBEDDING,
            {"config_sentence_transformers": {"model_type": "SparseEncoder"}},
            "has model_type 'SparseEncoder', which is not supported; it takes SentenceTransformer and CrossEncoder",
        ),
    ],
    ids=str,
)
def test_refused_settings_of_sentence_transformers_name_the_file(
    tmp_path: Path, modules: dict[str, Any], files: dict[str, Any], words: str
) -> None:
    assert re.search(words, message := read_modules(tmp_path / "model", modules, **files)), message


def test_pooling_mode_precedes_the_flags_of_older_files(tmp_path: Path) -> None:
    both = {"pooling_mode": ["cls"], "pooling_mode_mean_tokens": True}
    found, _ = read_modules(tmp_path / "model", {"Pooling": both})
    assert found.pooling == "CLS"


def test_settings_of_the_encoder_are_found_by_their_older_names(tmp_path: Path) -> None:
    _, length = read_modules(tmp_path / "model", EMBEDDING, sentence_distilbert_config={"max_seq_length": 13})
    assert length == 13
