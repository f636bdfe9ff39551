"""Shares of a GPU's memory, and the errors when it is too small. tests/gpu has the tests that need a GPU."""

import ast
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from allocations import AllocationMeter
from draft_checkpoints import save_eagle3, save_target
from metered_device import GIB, MeteredDevice
from sampling import launch, make_sampler
from transformers import AutoModelForCausalLM

import engine_server.core
from engine_server import EngineArgs, LLMEngine, SamplingParams
from engine_server.core import loaded_model, model_runner
from engine_server.core.loaded_model import LoadedModel
from engine_server.core.scheduling.request import GenerationRequest
from engine_server.modeling.attention.hook import ForwardContext
from engine_server.modeling.attention.interface import StepInputs, UnsupportedModelError
from engine_server.modeling.attention.step_attention import StepAttention
from engine_server.modeling.cache.kv_cache import num_blocks
from engine_server.modeling.cache.layout import lay_out
from engine_server.modeling.cache.ledger import ADVICE, MemoryLedger, storage_bytes
from engine_server.modeling.cache.spec import LayerShape
from engine_server.modeling.drafting.draft_head import DraftHead
from engine_server.modeling.formats.dense import DenseFormat
from engine_server.modeling.formats.low_rank import LowRankFormat
from engine_server.modeling.formats.packed import PackedFormat
from engine_server.modeling.loader.probe import Probe
from engine_server.modeling.native import library
from engine_server.modeling.platform.cpu import CpuPlatform, NativePlatform
from engine_server.modeling.platform.cuda import CudaPlatform

GPU = CudaPlatform(torch.device("cuda"))


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


def test_cache_size_leaves_room_for_steps_and_the_spared_share(a_gpu, tiny_llama: Path) -> None:
    layout = lay_out([LayerShape(kv_heads=8, key_dim=128, value_dim=128)] * 32, 4096)
    block = 16 * 32 * 8 * 256 * 2
    config = EngineArgs(model=str(tiny_llama), skip_tokenizer_init=True).create_engine_config()
    ledger = MemoryLedger(GPU)
    with ledger.running("largest step"):
        pass
    assert num_blocks(config, [(layout, torch.bfloat16)], ledger, 4096) == (50 - 6 - 8) * GIB // block
    ledger.record("weights", 20 * GIB)
    sizes = "131072 MiB of cuda memory needed, 36864 MiB available"
    with pytest.raises(ValueError, match="one request of max_model_len") as caught:
        num_blocks(config, [(layout, torch.bfloat16)], ledger, 1 << 20)
    assert str(caught.value) == (
        "one request of max_model_len 1048576 needs 65536 blocks of KV cache; there is room for 18432: "
        f"{sizes}. Lower max_model_len, or raise gpu_memory_utilization. The memory is taken by weights 20480 MiB, "
        "largest step 6144 MiB. The largest of these is weights. Use a smaller model or dtype, or more GPUs by "
        "tensor_parallel_size"
    )


def test_cache_of_a_given_size_is_advised_about_by_its_setting_alone(a_gpu, tiny_llama: Path) -> None:
    layout = lay_out([LayerShape(kv_heads=8, key_dim=128, value_dim=128)] * 32, 4096)
    args = EngineArgs(model=str(tiny_llama), skip_tokenizer_init=True, kv_cache_memory_bytes=1 << 20)
    ledger = MemoryLedger(GPU)
    ledger.record("weights", 20 * GIB)
    with pytest.raises(ValueError, match=r"max_model_len, or raise kv_cache_memory_bytes$"):
        num_blocks(args.create_engine_config(), [(layout, torch.bfloat16)], ledger, 4096)


def test_out_of_memory_error_names_sizes_and_advice(a_gpu) -> None:
    words = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has 79.15 GiB, of which 1.20 GiB are free"
    with pytest.raises(ValueError) as caught, MemoryLedger(GPU).taking("weights"):
        raise torch.OutOfMemoryError(f"{words}. Process 7 has 70.00 GiB. And so on.")
    assert str(caught.value) == (
        f"weights: at least 51200 MiB of cuda memory needed, 51200 MiB available. {words}. "
        "Use a smaller model or dtype, or more GPUs by tensor_parallel_size"
    )


@pytest.mark.parametrize("part", sorted(ADVICE))
def test_error_of_each_part_has_its_advice_and_that_for_the_largest_part(a_gpu, part: str) -> None:
    ledger = MemoryLedger(GPU)
    ledger.record("draft model", 3 * GIB)
    ledger.record("penalty tables", 4 * GIB)
    with pytest.raises(ValueError) as caught, ledger.taking(part):
        raise torch.OutOfMemoryError("CUDA out of memory")
    assert str(caught.value).startswith(f"{part}: ")
    assert str(caught.value).endswith(
        f". {ADVICE[part]}. The memory is taken by draft model 3072 MiB, penalty tables 4096 MiB. "
        f"The largest of these is penalty tables. {ADVICE['penalty tables']}"
    )


def test_error_of_a_step_that_is_measured_has_its_advice(a_gpu) -> None:
    expected = r"^largest step: .*\. Lower max_num_batched_tokens"
    with pytest.raises(ValueError, match=expected), MemoryLedger(GPU).running("largest step"):
        raise torch.OutOfMemoryError("CUDA out of memory")


def test_all_parts_of_the_core_have_advice() -> None:
    calls = [
        node
        for file in Path(engine_server.core.__path__[0]).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", "") in ("taking", "reserve", "running", "record", "keep_free")
    ]
    parts = {
        argument.value
        for call in calls
        for argument in call.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    }
    assert parts | {"weights", "draft model"} == set(ADVICE)  # a loaded model is given its part


def test_ledger_counts_each_storage_once_and_a_part_again_in_place_of_its_earlier_size() -> None:
    ledger, table = MemoryLedger(CpuPlatform()), torch.zeros(4, 100)
    with ledger.taking("weights") as tensors:
        tensors += [table, table[1:], torch.zeros(10)]
    with ledger.taking("KV cache") as tensors:
        tensors.append(torch.zeros(50, dtype=torch.int8))
    assert ledger.sizes == {"weights": 1640, "kv_cache": 50}
    with ledger.taking("weights") as tensors:
        tensors.append(table)
    assert ledger.sizes == {"weights": 1600, "kv_cache": 50}


def test_ledger_counts_weights_that_only_their_library_can_read() -> None:
    dense = DenseFormat(torch.zeros(64, 32))
    packed = PackedFormat(dense)
    assert storage_bytes(packed.opaque) == 64 * 32 * 4


def test_largest_of_several_steps_is_reserved(monkeypatch) -> None:
    device = MeteredDevice()
    ledger = MemoryLedger(device)
    for transient in (3 * GIB, 6 * GIB, 1 * GIB):
        with ledger.running("largest step"):
            device.take(0, transient)
    with ledger.running("captured steps"):
        device.take(0, 2 * GIB)
    ledger.cache_memory(0.9)
    ledger.record("captured steps", 1 * GIB)
    ledger.cache_memory(0.9)
    assert device.reserved == [8 * GIB, 6 * GIB]
    assert ledger.sizes == {"captured_steps": 1 * GIB, "largest_step": 6 * GIB}


def test_step_and_encoding_take_their_memory_in_turn() -> None:
    device = MeteredDevice()
    ledger = MemoryLedger(device)
    ledger.keep_free("rows of pictures", 1 * GIB)
    for part, transient in (
        ("largest step", 3 * GIB),
        ("largest picture", 5 * GIB),
        ("largest step", 7 * GIB),
    ):
        with ledger.running(part):
            device.take(0, transient)
        ledger.cache_memory(0.9)
    assert device.reserved == [(1 + 3) * GIB, (1 + 5) * GIB, (1 + 7) * GIB]
    assert str(ledger) == "rows of pictures 1024 MiB, largest step 7168 MiB, largest picture 5120 MiB"


@pytest.fixture(scope="module")
def tiny(tiny_llama: Path) -> LLMEngine:
    return LLMEngine.from_engine_args(
        EngineArgs(
            model=str(tiny_llama), dtype="float32", skip_tokenizer_init=True, num_gpu_blocks_override=20
        )
    )


def test_largest_step_has_as_many_tokens_as_the_budget(tiny: LLMEngine, monkeypatch) -> None:
    sequences, rows = [], []
    begin, loaded = StepAttention.begin, tiny._core.executor.first.loaded
    monkeypatch.setattr(
        StepAttention, "begin", lambda self, inputs: (sequences.append(inputs), begin(self, inputs))
    )
    hook = loaded.model.lm_head.register_forward_hook(
        lambda module, given, output: rows.append(output.shape[1])
    )
    loaded.run_step(600, 7)
    hook.remove()
    [step] = sequences
    longest = tiny.config.model_config.max_model_len
    assert step.lengths.tolist() == step.contexts.tolist() == [longest, longest, 600 - 2 * longest]
    assert step.positions.tolist() == [*range(longest)] * 2 + [*range(600 - 2 * longest)]
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
    head = tiny._core.executor.first.head
    if not sorts:
        monkeypatch.setattr(head, "kernels", object())  # which draw without a sort
    tiny._core.executor.first.loaded.run_step(100, 7, head.run_largest)
    assert sorted_shapes == ([7] if sorts else [])


def low_rank_formats(model) -> list[LowRankFormat]:
    formats = [getattr(module, "format", None) for module in model.modules()]
    return [format for format in formats if isinstance(format, LowRankFormat)]


def test_largest_step_has_an_adapter_of_the_largest_rank_in_every_row(tiny_llama: Path, monkeypatch) -> None:
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=str(tiny_llama), dtype="float32", skip_tokenizer_init=True, num_gpu_blocks_override=20,
            enable_lora=True, max_lora_rank=8,
        )
    )  # fmt: skip
    adapted = engine._core.executor.first.loaded.adapted
    given: set[tuple[int, int]] = set()
    add = adapted._add

    def recording(out, x, slots, a, b, ranks):
        given.add((len(slots), int(ranks[0])))
        return add(out, x, slots, a, b, ranks)

    for module in low_rank_formats(engine._core.executor.first.model):
        monkeypatch.setattr(module, "_add", recording)
    engine._core.executor.first.loaded.run_step(100, 7)
    assert given == {(100, 8), (7, 8)}
    assert adapted.slots.rows is None and not any(int(table.ranks.sum()) for table in adapted._tables)


def test_no_reference_keeps_weights_alive_after_sleep_2(tiny: LLMEngine, finish) -> None:
    params = SamplingParams(max_tokens=1, prompt_logprobs=1, detokenize=False)
    tiny.add_request("0", {"prompt_token_ids": [5, 6, 7]}, params)
    finish(tiny)
    weights = [weakref.ref(weight) for weight in tiny._core.executor.first.model.parameters()]
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
        TritonAttention(layout, [4], 16, torch.float32, CpuPlatform(), processors=1)


@pytest.mark.more
def test_load_of_a_draft_model_leaves_the_largest_steps_peak(tiny_llama: Path, monkeypatch) -> None:
    device = MeteredDevice()
    monkeypatch.setattr(model_runner, "choose_platform", lambda *_: device)
    load, steps, peaks = loaded_model.load_model, [], iter([6 * GIB, 2 * GIB])
    run_step = LoadedModel.run_step

    def load_and_take(*given):
        device.take(10 * GIB, 1 * GIB)
        return load(*given)

    def step_and_take(self, num_tokens, num_logits, sample):
        steps.append((num_tokens, num_logits))
        device.take(0, next(peaks))
        run_step(self, num_tokens, num_logits, sample)

    monkeypatch.setattr(loaded_model, "load_model", load_and_take)
    monkeypatch.setattr(LoadedModel, "run_step", step_and_take)
    LLMEngine.from_engine_args(
        EngineArgs(
            model=str(tiny_llama), dtype="float32", skip_tokenizer_init=True, max_num_batched_tokens=64,
            max_num_seqs=2, speculative_config={"model": str(tiny_llama), "num_speculative_tokens": 3},
        )
    )  # fmt: skip
    assert [tokens for tokens, _ in steps] == [64, 64]  # the target's and the draft model's
    assert device.reserved == [6 * GIB]


class NoGraphs:
    """A captured step of no size."""

    bytes = 0

    def size_for(self, count: int) -> None:
        return None


class CapturingDevice(MeteredDevice):
    """A device with captured steps, none of which is ever replayed."""

    captures_graphs = True

    def capture(self, part) -> NoGraphs:
        return NoGraphs()


def start(monkeypatch, device: CpuPlatform, target: Path, **speculative_config: str) -> LLMEngine:
    """Start an engine with drafts on a device."""
    monkeypatch.setattr(model_runner, "choose_platform", lambda *_: device)
    settings = {"num_speculative_tokens": 3, **speculative_config}
    return LLMEngine.from_engine_args(
        EngineArgs(
            model=str(target), dtype="float32", skip_tokenizer_init=True, max_num_batched_tokens=64,
            max_num_seqs=2, speculative_config=settings,
        )
    )  # fmt: skip


@pytest.mark.more
def test_captured_steps_of_a_draft_model_are_reserved_and_those_of_the_target_once(
    tiny_llama: Path, monkeypatch
) -> None:
    device, peaks, steps = CapturingDevice(), iter([6 * GIB, 1 * GIB, 2 * GIB, 3 * GIB]), []

    def take(self, num_tokens, num_logits, sample):
        steps.append((num_tokens, num_logits, sample is not None))
        device.take(0, next(peaks))

    monkeypatch.setattr(LoadedModel, "run_step", take)

    rows = start(monkeypatch, device, tiny_llama, model=str(tiny_llama)).config.scheduler_config.max_num_rows

    # The target's largest and captured step, and the draft model's. Captured logits have a buffer, which is counted.
    assert steps == [(64, rows, True), (64, rows, False), (64, rows, False), (rows, rows, False)]
    assert device.reserved == [(6 + 1 + 3) * GIB]


@pytest.fixture(scope="module")
def eagle3(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the settings of a target with an EAGLE-3 head."""
    target, head = tmp_path_factory.mktemp("target"), tmp_path_factory.mktemp("head")
    save_target(target)
    save_eagle3(head)
    return {"target": target, "method": "eagle3", "model": str(head)}


@pytest.mark.more
def test_largest_and_captured_steps_of_a_draft_head_are_reserved(eagle3: dict[str, Any], monkeypatch) -> None:
    device, steps = CapturingDevice(), []
    run_step, peaks = DraftHead.run_step, iter([8 * GIB, 3 * GIB])

    def take(self, num_tokens, num_logits, longest):
        steps.append((num_tokens, num_logits, longest))
        device.take(0, next(peaks))
        run_step(self, num_tokens, num_logits, longest)

    monkeypatch.setattr(DraftHead, "run_step", take)

    config = start(monkeypatch, device, **eagle3).config

    rows, longest = config.scheduler_config.max_num_rows, config.model_config.max_model_len
    assert steps == [(64, rows, longest), (rows, rows, longest)]
    assert device.reserved == [(8 + 3) * GIB]


@pytest.mark.more
def test_largest_step_takes_as_much_as_one_that_keeps_states_for_an_eagle3_head(
    eagle3: dict[str, Any], monkeypatch
) -> None:
    runner = start(monkeypatch, CpuPlatform(), **eagle3)._core.executor.first
    inputs = StepInputs.of([0], [64], [64])
    arguments = {
        "input_ids": torch.zeros(1, 64, dtype=torch.int64),
        "position_ids": torch.arange(64)[None],
        "use_cache": False,
    }
    with AllocationMeter() as largest:
        runner.loaded.run_step(64, 0)

    with torch.inference_mode(), AllocationMeter() as step, ForwardContext(Probe()).run(inputs):
        runner.drafting.target_states(runner.loaded, arguments)

    assert 0 < step.peak <= largest.peak


def test_largest_step_takes_as_much_as_penalties_of_the_most_and_longest_requests() -> None:
    vocabulary, requests, longest = 50, 8, 100  # make_sampler's context
    tested, logits = make_sampler(vocabulary, requests), torch.zeros(requests, vocabulary)
    params = SamplingParams(temperature=0, repetition_penalty=1.5, presence_penalty=1)
    penalised = [
        GenerationRequest(str(row), [3] * longest, 1, params, longest + 1) for row in range(requests)
    ]
    with AllocationMeter() as largest:
        tested.sampler.run_largest(logits)

    with AllocationMeter() as step:
        launch(tested, logits, penalised)

    assert step.peak > 10 * logits.nbytes
    assert largest.peak >= 0.98 * step.peak  # a real step has small tensors with its parameters


def test_start_reports_every_part_of_the_memory(tiny_llama: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger=model_runner.__name__):
        engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=str(tiny_llama), dtype="float32", skip_tokenizer_init=True, kv_cache_memory_bytes=1 << 21,
                max_num_seqs=2, enable_lora=True, max_model_len=64,
                speculative_config={"model": str(tiny_llama), "num_speculative_tokens": 3},
            )
        )  # fmt: skip
    sizes, runner = engine.config.device_config.memory_bytes, engine._core.executor.first
    weights = sum(
        parameter.nbytes for parameter in AutoModelForCausalLM.from_pretrained(tiny_llama).parameters()
    )
    assert list(sizes) == [
        "weights", "adapters", "step_buffers", "penalty_tables", "draft_model", "draft_buffers", "kv_cache",
        "kv_cache_of_drafts", "captured_steps", "captured_steps_of_drafts",
    ]  # fmt: skip
    assert weights <= sizes["weights"] < 1.2 * weights  # ropes, and padding of layouts
    assert sizes["draft_model"] == sizes["weights"]
    assert sizes["penalty_tables"] == 2 * (65 + 128 + 3) * 4  # tokens, counts and parameters
    assert sizes["kv_cache"] + sizes["kv_cache_of_drafts"] <= 1 << 21
    assert sizes["kv_cache"] == sum(cache.nbytes for cache in runner.backend.caches)
    (line,) = [message for message in caplog.messages if message.startswith("memory of cpu: ")]
    assert "weights 0 MiB, " in line and line.endswith(" MiB are left")


@pytest.mark.parametrize("platform", [CpuPlatform, NativePlatform])
def test_weights_are_counted_in_every_layout(tiny_llama: Path, monkeypatch, platform) -> None:
    if platform is NativePlatform and not library.loads():
        pytest.skip("the C++ kernels are not compiled")
    monkeypatch.setattr(model_runner, "choose_platform", lambda *_: platform())
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=str(tiny_llama), dtype="float32", skip_tokenizer_init=True, num_gpu_blocks_override=20
        )
    )
    weights = sum(
        parameter.nbytes for parameter in AutoModelForCausalLM.from_pretrained(tiny_llama).parameters()
    )
    assert weights <= engine.config.device_config.memory_bytes["weights"] < 1.2 * weights
