"""Layers that read the keys and values of others: which ones they read, and what the cache keeps."""

from pathlib import Path

import pytest
import torch
import transformers
from architectures import SHARED, SIZES, WINDOW

from engine_server import EngineArgs
from engine_server.modeling.attention.hook import IMPLEMENTATION
from engine_server.modeling.cache.layout import lay_out
from engine_server.modeling.cache.spec import FULL, LayerShape, WindowSpec
from engine_server.modeling.loader.probe import probe

CPU = torch.device("cpu")
GEMMA_4 = {"global_head_dim": 16, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 96}


@pytest.mark.transformers
def test_layers_that_share_keys_and_values_are_found_and_cached_once() -> None:
    """By the config's arithmetic: keys and values of the layers that have their own, which are the first ones."""
    kind = transformers.Gemma4ForCausalLM
    layer_types = [*["sliding_attention"] * 2, "full_attention", "sliding_attention", "full_attention"]
    settings = SIZES | SHARED | GEMMA_4 | {"layer_types": layer_types, "num_hidden_layers": 5}
    config = kind.config_class(**settings, attn_implementation=IMPLEMENTATION)
    shapes = probe(kind(config).eval(), config, 4, CPU).layers
    assert [shape.source for shape in shapes] == [None, None, None, 1, 2]
    layout = lay_out(shapes, 64)
    assert layout.readers == {3, 4}
    assert [layout.tensors[layer] for layer in (3, 4)] == [layout.tensors[layer] for layer in (1, 2)]
    heads, dims = SIZES["num_key_value_heads"], 2 * SHARED["head_dim"] + GEMMA_4["global_head_dim"]
    assert layout.token_bytes(torch.float32) == torch.float32.itemsize * 2 * heads * dims


@pytest.mark.transformers
@pytest.mark.parametrize("setting", ["enable_prompt_embeds", "enable_prompt_adapter"])
def test_embeddings_in_place_of_tokens_are_refused_where_layers_have_inputs_by_token(
    tmp_path: Path, setting: str
) -> None:
    """One request's embeddings would fail the steps of others."""
    kind = transformers.Gemma4ForCausalLM
    kind(kind.config_class(**SIZES | SHARED | GEMMA_4)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f"{setting} is set; the model's layers have inputs by token"):
        EngineArgs(model=str(tmp_path), skip_tokenizer_init=True, **{setting: True}).create_engine_config()
    config = EngineArgs(model=str(tmp_path), skip_tokenizer_init=True, enable_prompt_adapter=None)
    assert config.create_engine_config().prompt_adapter_config is None


def test_readers_use_the_kind_and_the_tensor_of_their_source() -> None:
    window, full = LayerShape(2, 8, 8, WindowSpec(WINDOW)), LayerShape(2, 8, 8)
    layout = lay_out([window, full, full, window._replace(source=0), full._replace(source=2)], 64)
    assert layout.specs == [WindowSpec(WINDOW), FULL]
    assert layout.kinds == [0, 1, 1, 0, 1]
    assert layout.tensors == [0, 1, 2, 0, 2]
    assert layout.readers == {3, 4}
