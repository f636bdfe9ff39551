"""Prompt adapters with text: grammars and bad words."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from adapters import greedy, save_prompt
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from engine_server import (
    LLM,
    PromptAdapterRequest,
    SamplingParams,
    StructuredOutputsParams,
)

TEXT = "the adapter"
COUNT = 5
SETTINGS: dict[str, Any] = {
    "dtype": "float32", "num_gpu_blocks_override": 80, "max_model_len": 64, "enable_prompt_adapter": True,
    "disable_log_stats": True,
}  # fmt: skip
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def adapter(tiny_writer: Path, tmp_path_factory: pytest.TempPathFactory) -> PromptAdapterRequest:
    model = LlamaForCausalLM.from_pretrained(tiny_writer)
    folder = save_prompt(model, tmp_path_factory.mktemp("prompt") / "adapter", 1, "PROMPT_TUNING", COUNT)
    return PromptAdapterRequest("adapter", 1, str(folder), COUNT)


@pytest.fixture(scope="module")
def llm(tiny_writer: Path) -> LLM:
    return LLM(str(tiny_writer), **SETTINGS)


def test_llm_generates_with_an_adapter(llm: LLM, tiny_writer: Path, adapter: PromptAdapterRequest) -> None:
    (output,) = llm.generate(TEXT, GREEDY, use_tqdm=False, prompt_adapter_request=adapter)
    model = LlamaForCausalLM.from_pretrained(tiny_writer)
    assert output.prompt == TEXT and output.prompt_token_ids == llm.get_tokenizer().encode(TEXT)
    expected = greedy(model, None, output.prompt_token_ids, 6, prompt_adapter=Path(adapter.path))
    assert output.outputs[0].token_ids == expected
    assert expected != greedy(model, None, output.prompt_token_ids, 6)


def test_grammars_and_bad_words_begin_after_the_prompt(llm: LLM, adapter: PromptAdapterRequest) -> None:
    grammar = StructuredOutputsParams(choice=["alpha", "omega"])
    params = [
        SamplingParams(temperature=0, max_tokens=20, structured_outputs=grammar),
        SamplingParams(
            temperature=0,
            max_tokens=2,
            min_tokens=2,
            allowed_token_ids=[5, 6],
            bad_words_token_ids=[[5, 5], [6, 6]],
        ),
    ]
    chosen, worded = llm.generate([TEXT, TEXT], params, use_tqdm=False, prompt_adapter_request=adapter)
    assert chosen.outputs[0].text in ("alpha", "omega")
    assert sorted(worded.outputs[0].token_ids) == [5, 6]


def test_a_pooling_model_takes_no_prompt_adapters(tiny_llama: Path) -> None:
    with pytest.raises(
        ValueError, match="enable_prompt_adapter is set; a pooling model takes no prompt adapters"
    ):
        LLM(str(tiny_llama), runner="pooling", skip_tokenizer_init=True, enable_prompt_adapter=True)


@pytest.mark.thorough
def test_embeddings_of_words_act_as_the_words(smollm2: Path, tmp_path: Path) -> None:
    llm = LLM(
        str(smollm2), dtype="float32", max_model_len=256, num_gpu_blocks_override=64, max_num_batched_tokens=16,
        enable_prompt_adapter=True, disable_log_stats=True,
    )  # fmt: skip
    encode = llm.get_tokenizer().encode
    words, prompt = (
        encode("The following poem is about the sea, and all of its lines rhyme:"),
        encode("\n\nThe waves"),
    )
    embedding = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32).get_input_embeddings()
    save_file({"prompt_embeddings": embedding.weight[words].detach()}, tmp_path / "adapter_model.safetensors")
    settings = {"peft_type": "PROMPT_TUNING", "num_virtual_tokens": len(words)}
    (tmp_path / "adapter_config.json").write_text(json.dumps(settings))
    adapter = PromptAdapterRequest("words", 1, str(tmp_path), len(words))
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    (whole,) = llm.generate({"prompt_token_ids": words + prompt}, params, use_tqdm=False)
    for _ in range(2):  # computed, and then cached
        (adapted,) = llm.generate(
            {"prompt_token_ids": prompt}, params, use_tqdm=False, prompt_adapter_request=adapter
        )
        assert adapted.outputs[0].text == whole.outputs[0].text
        assert adapted.prompt_token_ids == prompt
