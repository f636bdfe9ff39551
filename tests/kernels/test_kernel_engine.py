"""Greedy output in float32 of an engine on our kernels, compared with that of plain torch's attention."""

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from interpreted import kernel_platform
from step_counts import Counts
from tiny_models import TINY
from transformers import Gemma2Config, Gemma2ForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from engine_server import EngineArgs, LLMEngine, SamplingParams
from engine_server.core import model_runner
from engine_server.modeling.attention.hook import ForwardContext
from engine_server.modeling.graphs import step_graphs as graphs

# Output tokens of the first prompt; each following prompt gets one more.
NEW_TOKENS = 3
PROMPTS = [[(7 * place + length) % 126 + 2 for place in range(length)] for length in (1, 9, 20, 45)]
SIZES = TINY | {"vocab_size": 128, "max_position_embeddings": 128, "eos_token_id": 1, "bos_token_id": 0}


def llama() -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**SIZES))


def gemma2() -> PreTrainedModel:
    """Build a model with one windowed layer and one without a window, both with softcap."""
    config = Gemma2Config(
        **SIZES, pad_token_id=0, head_dim=12, query_pre_attn_scalar=12, sliding_window=20,
        layer_types=["sliding_attention", "full_attention"], attn_logit_softcapping=5.0,
    )  # fmt: skip
    return Gemma2ForCausalLM(config)


class RecordedStep:
    """A fake CUDA graph that computes again from the staged inputs, into the same buffers."""

    def __init__(self, run: Callable[[int], None], size: int) -> None:
        self.run, self.size = run, size
        assert run(size) is None, "results must be in buffers that all sizes share"

    def replay(self) -> None:
        self.run(self.size)


def record(
    run: Callable[[int], None], sizes: list[int], prepare: Callable[[int], None]
) -> Iterator[tuple[int, RecordedStep]]:
    for size in sizes:
        prepare(size)
        yield size, RecordedStep(run, size)


@pytest.fixture
def replayed(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let engines run on the kernels, on a CPU with fake graphs; return the list of the sizes that were replayed."""
    monkeypatch.setattr(model_runner, "choose_platform", lambda *_: kernel_platform(device))
    sizes: list[int] = []
    replay = graphs.StepGraphs.replay

    def noted(self: graphs.StepGraphs, size: int) -> None:
        sizes.append(size)
        replay(self, size)

    monkeypatch.setattr(graphs.StepGraphs, "replay", noted)
    if device.type == "cpu":
        monkeypatch.setattr(graphs, "capture", record)
        # The replay of a real graph runs no Python code. That of a fake one does, in a context of its own.
        monkeypatch.setattr(ForwardContext, "replay", lambda *_: nullcontext())
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (0, 0))
    return sizes


@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize(("make", "dtype"), [(llama, "auto"), (gemma2, "fp8")])
def test_engine_on_triton_kernels_generates_the_same_as_on_torch(
    make, dtype: str, eager: bool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    torch.manual_seed(0)
    make().save_pretrained(tmp_path)
    expected = generate(tmp_path, dtype, eager=True, device="cpu")
    assert len(set(expected.values())) == len(PROMPTS)
    replayed = request.getfixturevalue("replayed")
    counts = Counts()
    assert generate(tmp_path, dtype, eager, counts=counts) == expected
    assert counts.replayed == (0 if eager else counts.steps)
    # Steps of three decodes are padded to four, and steps with prompts to 24 and 32 tokens.
    assert set(replayed) == (set() if eager else {1, 2, 4, 24, 32})


@pytest.mark.usefixtures("replayed")
def test_engine_logs_its_kernels_and_their_launch_settings_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    llama().save_pretrained(tmp_path)
    with caplog.at_level(logging.INFO):
        generate(tmp_path, "auto", eager=True)
    (line,) = [record.message for record in caplog.records if record.message.startswith("kernels: ")]
    launch = r"\d+: \d+ rows, \d+ keys, \d+ warps, \d+ stages"
    assert re.fullmatch(
        rf"kernels: triton.*, attention by TritonAttention, decode {launch}; prefill {launch}", line
    )


@pytest.mark.usefixtures("replayed")
def test_all_device_memory_of_steps_is_allocated_before_the_kv_cache_is_sized(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that allocates a table later might find no memory for it."""
    torch.manual_seed(0)
    llama().save_pretrained(tmp_path)
    order: list[str] = []

    def trace(owner: object, name: str, label: str) -> None:
        original = getattr(owner, name)

        def traced(*args: object, **kwargs: object) -> object:
            order.append(label)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, traced)

    trace(model_runner, "StepCapture", "buffers")
    trace(model_runner, "Penalties", "penalties")
    trace(model_runner, "num_blocks", "size of the cache")
    generate(tmp_path, "auto", eager=False)
    assert order == ["buffers", "penalties", "size of the cache"]


def generate(
    model: Path, cache_dtype: str, eager: bool, device: str = "auto", counts: Counts | None = None
) -> dict[str, tuple[int, ...]]:
    """Return greedy tokens. The small budget cuts prompts into chunks that share steps with decodes."""
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=str(model), dtype="float32", skip_tokenizer_init=True, num_gpu_blocks_override=40,
            max_num_batched_tokens=32, max_num_seqs=4,
            kv_cache_dtype=cache_dtype, enforce_eager=eager, async_scheduling=not eager, device=device,
        ),
        stat_loggers={"counts": counts or Counts()},
    )  # fmt: skip
    for number, prompt in enumerate(PROMPTS):
        count = NEW_TOKENS + number
        params = SamplingParams(
            temperature=0, max_tokens=count, min_tokens=count, detokenize=False
        )  # masks tokens
        engine.add_request(number, {"prompt_token_ids": prompt}, params)
    tokens = {}
    while engine.has_unfinished_requests():
        tokens |= {output.request_id: tuple(output.outputs[0].token_ids) for output in engine.step()}
    return tokens
