"""Two models in one process, such as a target and its draft, with separate forwards, device time and progress."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from engine_server import EngineArgs, LLMEngine, SamplingParams
from engine_server.modeling.attention.hook import IMPLEMENTATION, ForwardContext, running_forward
from engine_server.modeling.attention.interface import StepInputs
from engine_server.modeling.attention.step_attention import StepAttention
from engine_server.modeling.heads.pending import Heads
from engine_server.modeling.heads.scoring import Scoring

pytestmark = pytest.mark.transformers

PROMPTS = {"target": [[5, 77, 31, 8, 120], [9, 4, 11]], "draft": [[63, 2, 90], [17, 40, 101, 33]]}


def start(model: Path) -> LLMEngine:
    return LLMEngine.from_engine_args(
        EngineArgs(
            model=str(model), dtype="float32", skip_tokenizer_init=True, num_gpu_blocks_override=32,
            disable_log_stats=True,
        )
    )  # fmt: skip


def add(engine: LLMEngine, prompts: list[list[int]]) -> None:
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, detokenize=False)
    for number, prompt in enumerate(prompts):
        engine.add_request(str(number), {"prompt_token_ids": prompt}, params)


def drain(engine: LLMEngine) -> dict[str, list[int]]:
    tokens = {}
    while engine.has_unfinished_requests():
        tokens |= {output.request_id: list(output.outputs[0].token_ids) for output in engine.step()}
    return tokens


def generate(engine: LLMEngine, prompts: list[list[int]]) -> dict[str, list[int]]:
    add(engine, prompts)
    return drain(engine)


@pytest.fixture(scope="module")
def engines(tiny_llama: Path) -> dict[str, LLMEngine]:
    return {"target": start(tiny_llama), "draft": start(tiny_llama)}


@pytest.fixture(scope="module")
def alone(engines: dict[str, LLMEngine]) -> dict[str, dict[str, list[int]]]:
    """Return each engine's tokens while the other is idle."""
    return {name: generate(engine, PROMPTS[name]) for name, engine in engines.items()}


def test_interleaved_engines_generate_the_same_as_each_alone(engines, alone) -> None:
    for name, engine in engines.items():
        add(engine, PROMPTS[name])
    tokens: dict[str, dict[str, list[int]]] = {name: {} for name in engines}
    while any(engine.has_unfinished_requests() for engine in engines.values()):
        for name, engine in engines.items():
            tokens[name] |= {one.request_id: list(one.outputs[0].token_ids) for one in engine.step()}
    assert tokens == alone


def test_engines_in_two_threads_generate_the_same_as_each_alone(engines, alone) -> None:
    with ThreadPoolExecutor(2) as pool:
        running = {name: pool.submit(generate, engine, PROMPTS[name]) for name, engine in engines.items()}
        assert {name: future.result() for name, future in running.items()} == alone


def test_device_time_and_progress_are_counted_for_the_engine_that_steps(engines) -> None:
    busy, idle = (engines[name]._core for name in ("target", "draft"))
    idle.executor.first.timer.take()
    before = busy.progress.latest, idle.progress.latest
    generate(engines["target"], PROMPTS["target"])
    assert busy.progress.latest > before[0]
    assert idle.progress.latest == before[1]
    assert idle.executor.first.timer.take() == 0.0


class DraftingAttention(StepAttention):
    """Attention of a target whose layers run a draft's forward before their own."""

    def __init__(self, draft: Callable[[], Tensor]) -> None:
        super().__init__()
        self.draft = draft
        self.drafted: list[Tensor] = []

    def attend(self, layer: int | None, heads: Heads, scoring: Scoring) -> Tensor:
        self.drafted.append(self.draft())
        return super().attend(layer, heads, scoring)


def load(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation=IMPLEMENTATION
    )


@torch.inference_mode()
def forward(model: PreTrainedModel, context: ForwardContext, token_ids: list[int]) -> Tensor:
    count = len(token_ids)
    with context.run(StepInputs.of([0], [count], [count])):
        assert running_forward() is context
        tokens, places = torch.tensor([token_ids]), torch.arange(count)[None]
        return model(input_ids=tokens, position_ids=places, use_cache=False).logits


def test_forward_of_a_draft_nests_in_that_of_its_target(tiny_llama: Path) -> None:
    target, draft = load(tiny_llama), load(tiny_llama)
    target_alone = forward(target, ForwardContext(StepAttention()), [5, 77, 31])
    draft_alone = forward(draft, ForwardContext(StepAttention()), [63, 2])
    draft_context = ForwardContext(StepAttention())
    drafting = DraftingAttention(lambda: forward(draft, draft_context, [63, 2]))
    logits = forward(target, ForwardContext(drafting), [5, 77, 31])
    assert torch.equal(logits, target_alone)
    assert len(drafting.drafted) == 2
    assert all(torch.equal(drafted, draft_alone) for drafted in drafting.drafted)


def test_forwards_of_one_model_do_not_nest(tiny_llama: Path) -> None:
    model = load(tiny_llama)
    context = ForwardContext(StepAttention())
    with context.run(StepInputs.of([0], [2], [2])), pytest.raises(AssertionError, match="do not nest"):
        forward(model, context, [1, 2])
    assert torch.isfinite(forward(model, context, [1, 2])).all()  # the context can be used again
