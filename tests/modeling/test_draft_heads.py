"""Draft heads on a paged KV cache, compared with the formulas of their papers over whole prefixes."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from draft_checkpoints import (
    HIDDEN,
    MTP,
    WEIGHTS,
    quantise,
    save_eagle3,
    save_mtp,
    save_speculator,
    save_target,
)
from draft_references import Reference, eagle3_reference, expected_chain, mtp_reference, qwen_reference
from native_kernels import needs_kernels
from safetensors.torch import save_file
from tiers import tiered
from torch import Tensor, nn
from torch.distributed import HashStore, ProcessGroupGloo
from transformers import PreTrainedModel

from engine_server import EngineArgs, EngineConfig
from engine_server.modeling.attention.hook import ForwardContext
from engine_server.modeling.attention.interface import StepInputs, UnsupportedModelError
from engine_server.modeling.cache.layout import lay_out
from engine_server.modeling.cache.spec import FULL, WindowSpec
from engine_server.modeling.device.communicator import Communicator
from engine_server.modeling.drafting.draft_head import DraftHead, collect_states
from engine_server.modeling.drafting.eagle3_folder import load_eagle3
from engine_server.modeling.drafting.mtp_checkpoint import load_mtp
from engine_server.modeling.loader.model_loader import load_model
from engine_server.modeling.loader.probe import probe
from engine_server.modeling.platform.cpu import CpuPlatform, NativePlatform
from engine_server.modeling.platform.interface import Platform

pytestmark = [pytest.mark.transformers, pytest.mark.usefixtures("shared_trials")]

PROMPTS = [[5, 77, 31, 8, 90, 2, 64], [9, 4, 11]]
BLOCK_SIZE, NUM_BLOCKS, LONGEST = 4, 16, 64
NUM_DRAFTS = 4
CPU = torch.device("cpu")
platforms = pytest.mark.parametrize(
    "platform",
    [
        pytest.param(CpuPlatform(), id="torch", marks=pytest.mark.thorough),
        pytest.param(NativePlatform(), id="native", marks=needs_kernels),
    ],
)


def engine_config(folder: Path, **options: Any) -> EngineConfig:
    settings = {"dtype": "float32", "max_model_len": LONGEST} | options
    return EngineArgs(model=str(folder), skip_tokenizer_init=True, **settings).create_engine_config()


def load_target(folder: Path, platform: Platform, **options: Any) -> tuple[EngineConfig, PreTrainedModel]:
    config = engine_config(folder, **options)
    return config, load_model(config.model_config, config.load_config, platform, Communicator())


class Cache:
    """A paged cache of a target and a head, in which the blocks of two sequences alternate."""

    def __init__(self, target: PreTrainedModel, head: DraftHead, platform: Platform) -> None:
        shapes = probe(target, target.config, 4, CPU).layers
        self.layout = lay_out([*shapes, head.cache_shape()], LONGEST)
        kinds = len(self.layout.specs)
        sizes = [NUM_BLOCKS * kinds] * self.layout.num_pools
        self.backend = platform.paged_attention(self.layout, sizes, BLOCK_SIZE, target.dtype)
        self.context = ForwardContext(self.backend)
        # [kinds, sequences, blocks]
        self.tables = (
            np.arange(NUM_BLOCKS * kinds, dtype=np.int32).reshape(kinds, -1, len(PROMPTS)).swapaxes(1, 2)
        )

    def inputs(self, firsts: list[int], lengths: list[int]) -> StepInputs:
        """Return a step of `lengths` tokens for each sequence, from the position in `firsts`."""
        contexts = np.add(firsts, lengths)
        step = StepInputs.of(range(len(lengths)), lengths, contexts, len(self.tables))
        step.place(self.tables, BLOCK_SIZE)
        return step._replace(tables=self.tables)


@torch.inference_mode()
def target_states(target: PreTrainedModel, head: DraftHead, cache: Cache, inputs: StepInputs) -> Tensor:
    """Run the prompts but for their last tokens through the target; return the states [T, hidden] of a chain."""
    tokens = torch.tensor([[token for prompt in PROMPTS for token in prompt[:-1]]])
    positions = torch.from_numpy(inputs.positions)[None]
    with cache.context.run(inputs), collect_states(target, head.aux_layers) as auxiliary:
        output = target.get_decoder()(input_ids=tokens, position_ids=positions, use_cache=False)
    return head.prepare(output.last_hidden_state[0], auxiliary)


@torch.inference_mode()
def first_states(head: DraftHead, cache: Cache, inputs: StepInputs, hidden: Tensor) -> Tensor:
    """Run the prompts but for their first tokens through the head; return its states [T, hidden]."""
    tokens = torch.tensor([token for prompt in PROMPTS for token in prompt[1:]])
    with cache.context.run(inputs):
        return head.states(tokens, torch.from_numpy(inputs.positions), hidden)


@torch.inference_mode()
def drafted_chain(
    target: PreTrainedModel, head: DraftHead, cache: Cache
) -> tuple[list[list[int]], list[Tensor]]:
    """Return the tokens and the logits [drafts, vocabulary] of a chain for each prompt, all in one batch."""
    inputs = cache.inputs([0] * len(PROMPTS), [len(prompt) - 1 for prompt in PROMPTS])
    states = first_states(head, cache, inputs, target_states(target, head, cache, inputs))
    states = states[torch.from_numpy(inputs.starts + inputs.lengths - 1)]
    logits = [head.logits(states)]
    while len(logits) < NUM_DRAFTS:
        firsts = [len(prompt) + len(logits) - 2 for prompt in PROMPTS]
        inputs = cache.inputs(firsts, [1] * len(PROMPTS))
        with cache.context.run(inputs):
            states = head.states(logits[-1].argmax(-1), torch.tensor(firsts), states)
        logits.append(head.logits(states))
    stacked = torch.stack(logits, 1)
    return stacked.argmax(-1).tolist(), list(stacked)


def compare(target: PreTrainedModel, head: DraftHead, reference: Reference, platform: Platform) -> None:
    drafts, found = drafted_chain(target, head, Cache(target, head, platform))
    for prompt, tokens, logits in zip(PROMPTS, drafts, found, strict=True):
        torch.testing.assert_close(logits, expected_chain(reference, prompt, tokens), rtol=1e-4, atol=1e-4)


class Eagle3(NamedTuple):
    """A form of an EAGLE-3 head: settings of its config, and whether it has an embedding of its own."""

    settings: dict[str, Any] = {}  # noqa: RUF012 - never written to
    embedding: bool = False
    layers: tuple[int, ...] = (1, 2, 3)


EAGLE3 = {
    "plain": Eagle3(),
    "own embedding": Eagle3(embedding=True),
    "chosen layers": Eagle3(
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 3, 5]}}, layers=(0, 3, 5)
    ),
    "wider than its target": Eagle3({"hidden_size": 48, "target_hidden_size": HIDDEN}, embedding=True),
    "whole vocabulary": Eagle3({"draft_vocab_size": None}),
}


@platforms
@pytest.mark.parametrize("form", tiered(EAGLE3, "chosen layers", "wider than its target"))
def test_eagle3_chain_equals_its_formulas(tmp_path: Path, platform: Platform, form: str) -> None:
    settings, embedding, layers = EAGLE3[form]
    save_target(tmp_path)
    tensors = save_eagle3(tmp_path / "head", embedding, **settings)
    config, target = load_target(tmp_path, platform)
    head = load_eagle3(tmp_path / "head", target, config.model_config, config.load_config, platform)
    assert head.aux_layers == layers
    compare(target, head, eagle3_reference(tmp_path, tensors, layers), platform)


@pytest.mark.more
@pytest.mark.parametrize("norm_before_residual", tiered([False, True], True))
def test_eagle3_chain_of_a_speculator_equals_its_formulas(tmp_path: Path, norm_before_residual: bool) -> None:
    save_target(tmp_path)
    tensors = save_speculator(
        tmp_path / "head",
        embedding=True,
        norm_before_residual=norm_before_residual,
        eagle_aux_hidden_state_layer_ids=[1, 4, 6],
    )
    config, target = load_target(tmp_path, CpuPlatform())
    head = load_eagle3(tmp_path / "head", target, config.model_config, config.load_config, CpuPlatform())
    assert head.aux_layers == (0, 3, 5)
    reference = eagle3_reference(tmp_path, tensors, head.aux_layers, norm_before_residual)
    compare(target, head, reference, CpuPlatform())


@pytest.mark.more
@platforms
@pytest.mark.parametrize("layout", ["deepseek", "mimo"])
def test_mtp_chain_equals_its_formulas(tmp_path: Path, platform: Platform, layout: str) -> None:
    tensors = save_mtp(tmp_path, layout)
    config, target = load_target(tmp_path, platform)
    head = load_mtp(target, config.model_config, config.load_config, platform)
    compare(target, head, mtp_reference(tmp_path, tensors, layout), platform)


@pytest.mark.more
def test_mtp_chain_of_a_float8_checkpoint_equals_its_formulas(tmp_path: Path) -> None:
    tensors = quantise(tmp_path / "float8", save_mtp(tmp_path / "float8", "deepseek"))
    save_mtp(tmp_path / "dense", "deepseek")
    save_file(tensors, tmp_path / "dense" / WEIGHTS, {"format": "pt"})
    config, target = load_target(tmp_path / "float8", CpuPlatform())
    head = load_mtp(target, config.model_config, config.load_config, CpuPlatform())
    compare(target, head, mtp_reference(tmp_path / "dense", tensors, "deepseek"), CpuPlatform())


@pytest.mark.more
@platforms
def test_mtp_chain_of_qwen_equals_its_formulas(tmp_path: Path, platform: Platform) -> None:
    """Its decoder layer is transformers' own, without a cache."""
    tensors = save_mtp(tmp_path, "qwen")
    config, target = load_target(tmp_path, platform)
    head = load_mtp(target, config.model_config, config.load_config, platform)
    compare(target, head, qwen_reference(tmp_path, tensors), platform)


@platforms
def test_head_of_a_target_with_windows_attends_to_all_tokens(tmp_path: Path, platform: Platform) -> None:
    save_target(tmp_path, model="MistralForCausalLM", sliding_window=BLOCK_SIZE)
    tensors = save_eagle3(tmp_path / "head")
    config, target = load_target(tmp_path, platform)
    head = load_eagle3(tmp_path / "head", target, config.model_config, config.load_config, platform)
    assert Cache(target, head, platform).layout.specs == [WindowSpec(BLOCK_SIZE), FULL]
    compare(target, head, eagle3_reference(tmp_path, tensors, (1, 2, 3)), platform)


def save_and_load(folder: Path, kind: str, **options: Any) -> tuple[PreTrainedModel, DraftHead]:
    """Return a target with a head of a kind: eagle3, or a layout of multi-token prediction."""
    if kind == "eagle3":
        save_target(folder)
        save_eagle3(folder / "head")
    else:
        save_mtp(folder, kind)
    return load_both(folder, Communicator(), **options)


def load_both(folder: Path, ranks: Communicator, **options: Any) -> tuple[PreTrainedModel, DraftHead]:
    """Return one rank's part of a target, and its head, which has a folder of its own or is in the target's."""
    config, platform = engine_config(folder, **options), CpuPlatform()
    target = load_model(config.model_config, config.load_config, platform, ranks)
    own = folder / "head"
    if own.is_dir():
        return target, load_eagle3(own, target, config.model_config, config.load_config, platform)
    return target, load_mtp(target, config.model_config, config.load_config, platform)


@pytest.mark.more
@pytest.mark.parametrize("kind", tiered(["eagle3", *MTP], "eagle3", "qwen"))
def test_head_and_target_write_different_layers_of_the_cache(tmp_path: Path, kind: str) -> None:
    target, head = save_and_load(tmp_path, kind)
    assert head.layer == target.config.num_hidden_layers
    cache = Cache(target, head, CpuPlatform())
    inputs = cache.inputs([0] * len(PROMPTS), [len(prompt) - 1 for prompt in PROMPTS])
    tensors = [cache.backend.keys, cache.backend.values]
    own = cache.layout.tensors[head.layer]
    assert cache.layout.tensors.count(own) == 1

    def written() -> list[bool]:
        return [all(bool(pages[tensor].data.any()) for pages in tensors) for tensor in range(len(tensors[0]))]

    hidden = target_states(target, head, cache, inputs)
    assert written() == [tensor != own for tensor in range(len(tensors[0]))]
    before = [
        pages[tensor].data.clone() for pages in tensors for tensor in range(len(pages)) if tensor != own
    ]
    first_states(head, cache, inputs, hidden)
    after = [pages[tensor].data for pages in tensors for tensor in range(len(pages)) if tensor != own]
    assert all(written())
    assert all(torch.equal(*pair) for pair in zip(before, after, strict=True))


def test_head_that_would_use_a_layer_of_its_target_is_refused(tmp_path: Path) -> None:
    _target, head = save_and_load(tmp_path, "eagle3")
    head.module.midlayer.self_attn.layer_idx = 0
    with pytest.raises(UnsupportedModelError, match=r"attends as the layers \['0'\], not once as layer 7"):
        head.cache_shape()


@pytest.mark.parametrize("kind", tiered(["eagle3", *MTP], "eagle3", more=["qwen"]))
def test_head_computes_in_the_dtype_of_its_target(tmp_path: Path, kind: str) -> None:
    target, head = save_and_load(tmp_path, kind, dtype="bfloat16")
    cache = Cache(target, head, CpuPlatform())
    _drafts, found = drafted_chain(target, head, cache)
    assert all(logits.dtype == torch.bfloat16 and not logits.isnan().any() for logits in found)


@pytest.mark.more
@pytest.mark.parametrize("kind", tiered(["eagle3", "deepseek", "mimo"], "eagle3"))
def test_head_is_rounded_as_its_target_is(tmp_path: Path, kind: str) -> None:
    (_, dense), (_, rounded) = (
        save_and_load(tmp_path, kind, quantization=quantization) for quantization in (None, "int8")
    )
    inputs = torch.eye(output_projection(dense).in_features)
    expected, found = (output_projection(head)(inputs) for head in (dense, rounded))
    assert not torch.equal(found, expected)
    torch.testing.assert_close(found, expected, rtol=0, atol=expected.abs().max().item() / 100)


def output_projection(head: DraftHead) -> nn.Module:
    return next(module for name, module in head.module.named_modules() if name.endswith("o_proj"))


@pytest.mark.more
@pytest.mark.parametrize("kind", tiered(["eagle3", "deepseek", "mimo"], "eagle3"))
def test_each_rank_of_a_shared_target_drafts_as_a_whole_one_does(tmp_path: Path, kind: str) -> None:
    target, head = save_and_load(tmp_path, kind)
    expected, _logits = drafted_chain(target, head, Cache(target, head, CpuPlatform()))
    store, loading = HashStore(), Lock()

    def drafts(rank: int) -> list[list[int]]:
        group = ProcessGroupGloo(store, rank, 2, timedelta(seconds=60))
        with loading:
            target, head = load_both(tmp_path, Communicator(rank, 2, group))
        return drafted_chain(target, head, Cache(target, head, CpuPlatform()))[0]

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(drafts, range(2))) == [expected] * 2


def test_states_are_collected_only_while_asked_for(tmp_path: Path) -> None:
    target, head = save_and_load(tmp_path, "eagle3")
    cache = Cache(target, head, CpuPlatform())
    inputs = cache.inputs([0] * len(PROMPTS), [len(prompt) - 1 for prompt in PROMPTS])
    with collect_states(target, (0, 6)) as collected:
        target_states(target, head, cache, inputs)
    assert [state.shape for state in collected] == [(len(inputs.positions), HIDDEN)] * 2
    target_states(target, head, cache, inputs)
    assert len(collected) == 2


def test_further_mtp_modules_are_not_used(tmp_path: Path) -> None:
    tensors = save_mtp(tmp_path, "mimo")
    further = {
        name.replace("mtp_layers.0", "mtp_layers.1"): torch.zeros_like(tensor)
        for name, tensor in tensors.items()
        if "mtp_layers" in name
    }
    save_file(tensors | further, tmp_path / WEIGHTS, {"format": "pt"})
    config, target = load_target(tmp_path, CpuPlatform())
    head = load_mtp(target, config.model_config, config.load_config, CpuPlatform())
    compare(target, head, mtp_reference(tmp_path, tensors, "mimo"), CpuPlatform())
