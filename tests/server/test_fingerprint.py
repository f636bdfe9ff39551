"""The fingerprint of a served model."""

import json
import shutil
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from msgspec import structs
from safetensors.torch import save_file

from engine_server import EngineArgs
from engine_server.config.start_facts import StartFacts
from engine_server.engine.conversation.capabilities import Capabilities
from engine_server.server import fingerprint as fingerprint_module
from engine_server.server.conversation.layout import Layout
from engine_server.server.fingerprint import (
    HEAD_BYTES,
    SAMPLE_BYTES,
    SAMPLES,
    fingerprint,
)
from engine_server.server.settings import ApiSettings


@pytest.fixture
def model(tiny_llama: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_llama, tmp_path / "model"))


def fingerprint_of(model: Path, template: str | None = None, **args: str) -> str:
    return fingerprint(EngineArgs(model=str(model), **args).create_engine_config(), template)


def test_copy_at_another_place_and_time_has_the_same_fingerprint(model: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(model, tmp_path / "elsewhere", copy_function=shutil.copyfile))
    assert fingerprint_of(copy) == fingerprint_of(model)


@pytest.mark.parametrize("at", [0.0, 0.3, 0.999])
def test_changed_weights_have_another_fingerprint(model: Path, at: float) -> None:
    before = fingerprint_of(model)
    (file,) = model.glob("*.safetensors")
    data = bytearray(file.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    data[start + int((len(data) - start) * at)] ^= 1
    file.write_bytes(data)
    assert fingerprint_of(model) != before


def test_settings_that_change_answers_change_the_fingerprint(model: Path) -> None:
    prints = [
        fingerprint_of(model),
        fingerprint_of(model, dtype="bfloat16"),
        fingerprint_of(model, kv_cache_dtype="fp8"),
        fingerprint_of(model, template="{{ messages }}"),
    ]
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-3}))
    prints.append(fingerprint_of(model))
    assert len(set(prints)) == len(prints)


SAMPLING = {"temperature": 0.6}
SETTINGS = {setting.name for setting in fields(ApiSettings)}


def layout_of(**changed: Any) -> Layout:
    return Layout("hermes", **changed)


def test_settings_that_change_streams_change_their_hash_and_no_others_do(model: Path) -> None:
    config = EngineArgs(model=str(model)).create_engine_config().model_config
    stream_settings = partial(fingerprint_module.stream_settings, config)
    base = stream_settings(ApiSettings(), SAMPLING, layout_of())
    others = [
        fingerprint_module.stream_settings(
            structs.replace(config, logprobs_mode="processed_logprobs"), ApiSettings(), SAMPLING, layout_of()
        ),
        fingerprint_module.stream_settings(
            structs.replace(config, eos_token_ids=[7]), ApiSettings(), SAMPLING, layout_of()
        ),
        stream_settings(ApiSettings(), {"temperature": 0.7}, layout_of()),
        *(
            stream_settings(replace(ApiSettings(), **{name: "changed"}), SAMPLING, layout_of())
            for name in ApiSettings().of_streams()
        ),
        stream_settings(ApiSettings(), SAMPLING, layout_of(data={"fields": {}})),
        stream_settings(ApiSettings(), SAMPLING, layout_of(capabilities=Capabilities(arguments="text"))),
        stream_settings(ApiSettings(), SAMPLING, None),
    ]
    with mock.patch.object(fingerprint_module, "RENDERING", 0):
        others.append(stream_settings(ApiSettings(), SAMPLING, layout_of()))

    same = stream_settings(
        replace(ApiSettings(), **dict.fromkeys(SETTINGS - set(ApiSettings().of_streams()), "changed")),
        SAMPLING,
        replace(layout_of(), name="/models/response_template.yaml"),
    )
    assert same == base
    assert len({base, *others}) == 1 + len(others)


def test_effective_batch_invariance_changes_the_fingerprint(model: Path) -> None:
    config = EngineArgs(model=str(model)).create_engine_config()
    facts = [
        StartFacts(100, 64, batch_invariant=invariant, kernels="", memory={}) for invariant in (True, False)
    ]
    prints = {fingerprint(config.as_started(one), None) for one in facts}
    assert len(prints) == 2


def test_large_file_is_sampled_over_its_whole_length(model: Path) -> None:
    """A change of a thousandth of the file is found wherever it is."""
    (file,) = model.glob("*.safetensors")
    size = HEAD_BYTES + 4 * SAMPLES * SAMPLE_BYTES
    with file.open("r+b") as stream:
        stream.truncate(size)
    before = fingerprint_of(model)
    for part in (0, SAMPLES // 2, SAMPLES - 2):
        changed = Path(shutil.copytree(model, model.parent / str(part)))
        with (changed / file.name).open("r+b") as stream:
            stream.seek(HEAD_BYTES + part * 4 * SAMPLE_BYTES)
            stream.write(b"\1" * 4 * SAMPLE_BYTES)
        assert fingerprint_of(changed) != before


def test_layers_and_prompts_of_an_embedding_model_are_covered(model: Path) -> None:
    def write(name: str, content: object) -> None:
        (model / name).parent.mkdir(exist_ok=True)
        (model / name).write_text(json.dumps(content))

    modules = {"Transformer": "", "Pooling": "pooling"}
    types = "sentence_transformers.models."
    write("modules.json", [{"type": types + kind, "path": path} for kind, path in modules.items()])
    write("pooling/config.json", {"pooling_mode": "mean"})
    prints = [fingerprint_of(model)]
    write("config_sentence_transformers.json", {"prompts": {}})
    assert fingerprint_of(model) == prints[0]  # as before there were layers and prompts
    for prompts in ({"query": "a"}, {"query": "b"}):
        write("config_sentence_transformers.json", {"prompts": prompts})
        prints.append(fingerprint_of(model))
    size = json.loads((model / "config.json").read_text())["hidden_size"]
    modules["Dense"] = "dense"
    write("modules.json", [{"type": types + kind, "path": path} for kind, path in modules.items()])
    write("dense/config.json", {"in_features": size, "out_features": 4})
    for value in (0.0, 1.0):
        save_file({"linear.weight": torch.full((4, size), value)}, model / "dense/model.safetensors")
        prints.append(fingerprint_of(model))
    assert len(set(prints)) == len(prints)
