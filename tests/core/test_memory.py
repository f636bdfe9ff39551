"""Shares of a GPU's memory, and the errors when it is too small. tests/gpu has the tests that need a GPU."""

import ast
import weakref
from pathlib import Path

import pytest
import torch

import engine_server.core
from engine_server import EngineArgs, LLMEngine, SamplingParams
from engine_server.modeling.attention.interface import UnsupportedModelError
from engine_server.modeling.attention.step_attention import StepAttention
from engine_server.modeling.loading.probe import largest_step
from engine_server.modeling.memory import device_memory as memory
from engine_server.modeling.memory.cache_layout import LayerShape, lay_out
from engine_server.modeling.memory.device_memory import measured_memory
from engine_server.modeling.memory.kv_cache import num_blocks
from engine_server.modeling.platform.cpu import CpuPlatform
from engine_server.modeling.platform.cuda import CudaPlatform

GPU = CudaPlatform(torch.device("cuda"))
GIB = 1 << 30


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a GPU with 80 GiB of memory, 50 of them free, and a step that needs 6 temporarily."""
    reported = {
        "mem_get_info": (50 * GIB, 80 * GIB),
        "max_memory_allocated": 30 * GIB,
        "memory_allocated": 24 * GIB,
    }
    for name, value in reported.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    for name in ("reset_peak_memory_stats", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda *device: None)


def test_cache_size_leaves_room_for_the_largest_step_and_the_spared_share(a_gpu, tiny_llama: Path) -> None:
    layout = lay_out([LayerShape(kv_heads=8, key_dim=128, value_dim=128)] * 32, 4096)
    block = 16 * 32 * 8 * 256 * 2
    config = EngineArgs(model=str(tiny_llama), skip_tokenizer_init=True).create_engine_config().cache_config
    blocks = num_blocks(config, [(layout, torch.bfloat16)], GPU, 4096, step=6 * GIB)
    assert blocks == (50 - 6 - 8) * GIB // block
    sizes = "131072 MiB of cuda memory needed, 36864 MiB available"
    with pytest.raises(
        ValueError, match=f"needs 65536 blocks .* room for 18432: {sizes}.* raise gpu_memory_utilization"
    ):
        num_blocks(config, [(layout, torch.bfloat16)], GPU, 1 << 20, step=6 * GIB)


def test_out_of_memory_error_names_sizes_and_advice(a_gpu) -> None:
    words = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has 79.15 GiB, of which 1.20 GiB are free"
    with pytest.raises(ValueError) as caught, measured_memory("weights", GPU):
        raise torch.OutOfMemoryError(f"{words}. Process 7 has 70.00 GiB. And so on.")
    assert str(caught.value) == (
        f"weights: at least 51200 MiB of cuda memory needed, 51200 MiB available. {words}. "
        "Use a smaller model or dtype, or more GPUs by tensor_parallel_size"
    )


@pytest.mark.parametrize("stage", sorted(memory.ADVICE))
def test_each_stage_has_advice_in_its_error(a_gpu, stage: str) -> None:
    with pytest.raises(ValueError) as caught, measured_memory(stage, GPU):
        raise torch.OutOfMemoryError("CUDA out of memory")
    assert str(caught.value).startswith(f"{stage}: ") and memory.ADVICE[stage] in str(caught.value)


def test_all_stages_that_are_measured_have_advice() -> None:
    calls = [
        node
        for file in Path(engine_server.core.__path__[0]).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "measured_memory"
    ]
    stages = {node.args[0].value for node in calls if isinstance(node.args[0], ast.Constant)}
    assert len(calls) >= 5 and stages == set(memory.ADVICE)


def test_memory_of_each_stage_is_logged(a_gpu, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger=memory.__name__), measured_memory("KV cache", GPU):
        pass
    assert caplog.messages == ["KV cache: 0 MiB of GPU memory, 6144 MiB more at its peak; 51200 MiB are left"]


@pytest.fixture(scope="module")
def tiny(tiny_llama: Path) -> LLMEngine:
    return LLMEngine.from_engine_args(
        EngineArgs(
            model=str(tiny_llama), dtype="float32", skip_tokenizer_init=True, num_gpu_blocks_override=20
        )
    )


def test_largest_step_has_as_many_tokens_as_the_budget(tiny: LLMEngine, monkeypatch) -> None:
    sequences, rows = [], []
    begin, model = StepAttention.begin, tiny._core.executor.runner.model
    monkeypatch.setattr(
        StepAttention, "begin", lambda self, inputs: (sequences.append(inputs), begin(self, inputs))
    )
    hook = model.lm_head.register_forward_hook(lambda module, given, output: rows.append(output.shape[1]))
    largest_step(model, 100, 30, 7, torch.device("cpu"), 0, sorts=True)
    hook.remove()
    [step] = sequences
    assert step.lengths.tolist() == step.contexts.tolist() == [30, 30, 30, 10]
    assert step.positions.tolist() == [*range(30)] * 3 + [*range(10)]
    assert rows == [7]


@pytest.mark.parametrize("sorts", [False, True])
def test_largest_step_sorts_logits_only_for_a_sampler_that_does(
    tiny: LLMEngine, monkeypatch, sorts: bool
) -> None:
    """A sort takes three times the memory of the logits."""
    sorted_shapes = []
    sort = torch.Tensor.sort
    monkeypatch.setattr(
        torch.Tensor,
        "sort",
        lambda self, *given: (sorted_shapes.append(self.shape[-2]), sort(self, *given))[1],
    )
    model = tiny._core.executor.runner.model
    largest_step(model, 100, 30, 7, torch.device("cpu"), 0, sorts=sorts)
    assert sorted_shapes == ([7] if sorts else [])


def test_no_reference_keeps_weights_alive_after_sleep_2(tiny: LLMEngine, finish) -> None:
    params = SamplingParams(max_tokens=1, prompt_logprobs=1, detokenize=False)
    tiny.add_request("0", {"prompt_token_ids": [5, 6, 7]}, params)
    finish(tiny)
    weights = [weakref.ref(weight) for weight in tiny._core.executor.runner.model.parameters()]
    tiny.sleep(2)
    assert weights and not any(weight() is not None for weight in weights)
    tiny.wake_up()


def test_triton_attention_refuses_heads_larger_than_its_kernels_support() -> None:
    pytest.importorskip("triton")
    from engine_server.modeling.attention.triton_backend import TritonAttention

    layout = lay_out([LayerShape(kv_heads=1, key_dim=576, value_dim=512)], 64)
    with pytest.raises(
        UnsupportedModelError, match="heads have 576 dims, of which the kernels take 512 at most"
    ):
        TritonAttention(layout, 4, 16, torch.float32, CpuPlatform(), processors=1)
